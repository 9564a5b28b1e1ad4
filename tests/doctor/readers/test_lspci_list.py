from __future__ import annotations

import pytest

GPU = "{bus}:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev {rev})"
SWITCH = "{bus}:00.0 Bridge [0680]: NVIDIA Corporation GH100 [H100 NVSwitch] [10de:22a3] (rev a1)"
CARD = "3a:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]"


def listed(gpus=8, switches=4, rev="a1"):
    lines = [GPU.format(bus=f"1{number:x}", rev=rev if number == 2 else "a1") for number in range(gpus)]
    return "\n".join([*lines, *(SWITCH.format(bus=f"0{number}") for number in range(switches)), CARD]) + "\n"


GONE = listed(rev="ff")


def test_a_board_that_is_whole_is_in_order(examined):
    examination, kind = examined(listed())
    assert (kind, examination.word) == ("lspci", "HEALTHY")
    assert examination.healthy[0].what == "8 GPUs and 4 NVSwitches, as HGX H100 has them"


@pytest.mark.parametrize(
    ("text", "name", "what"),
    [
        (GONE, "gpu_lost", "answers nothing but ones (revision ff): it fell off the bus"),
        (listed(gpus=7), "gpu_count", "the bus shows 7 GPUs; HGX H100 has 8, unless the text is cut"),
        (listed(switches=3), "gpu_count", "the bus shows 3 NVSwitches; HGX H100 has 4, unless the text is cut"),
    ],
)
def test_a_gpu_that_is_gone_is_found(examined, text, name, what):
    (found,) = examined(text)[0].found
    assert (found.name, found.what) == (name, what)


def test_drivers_below_devices_are_no_devices(examined):
    below = "\tSubsystem: NVIDIA Corporation Device [10de:16c1]\n\tKernel driver in use: nvidia\n"
    text = "".join(f"{line}\n{below}" for line in listed(gpus=7).splitlines())
    (found,) = examined(text)[0].found
    assert found.what == "the bus shows 7 GPUs; HGX H100 has 8, unless the text is cut"


def test_a_card_that_is_gone_is_found(examined):
    (found,) = examined(listed().replace("[15b3:1021]", "[15b3:1021] (rev ff)"))[0].found
    assert (found.name, found.where) == ("device_lost", "3a:00.0")


def test_switches_alone_say_nothing_of_gpus(examined):
    text = "\n".join(SWITCH.format(bus=f"0{number}") for number in range(4)) + "\n"
    assert examined(text)[0].found == ()


def test_gpus_without_switches_are_not_counted(examined):
    examination, _ = examined(listed(gpus=7, switches=0))
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.not_judged[0].why == "7 GPUs on the bus, and nothing says how many there should be"


def test_a_tree_is_read_behind_the_command_that_printed_it(examined):
    gpus = "".join(f" +-[000{number}:00]---00.0  NVIDIA Corporation Device 20b2\n" for number in range(1, 8))
    switches = "".join(f" +-[001{number}:00]---00.0  NVIDIA Corporation Device 1af1\n" for number in range(6))
    tree = f"-+-[0100:00]---00.0  Mellanox Technologies Device 101c\n{gpus}{switches} \\-[0000:00]-+-00.0  Intel\n"
    (found,) = examined(f"root@cb17:~# lspci -tv\n{tree}root@cb17:~#\n")[0].found
    assert found.what == "the bus shows 7 GPUs; HGX A100 has 8, unless the text is cut"


@pytest.mark.parametrize("name", ["lspci_nn_a100.txt", "lspci_t_azure_ndmv4_a100.txt", "lspci_t_azure_ndv4_a100.txt"])
def test_a_gpu_that_is_taken_out_of_a_real_list_is_found(examined, sample, name):
    text = sample(name)
    assert examined(text)[0].word == "HEALTHY"
    lines = text.splitlines(keepends=True)
    lines.remove(next(line for line in lines if "20b2" in line or "20b0" in line))
    assert [found.what for found in examined("".join(lines))[0].found] == [
        "the bus shows 7 GPUs; HGX A100 has 8, unless the text is cut"
    ]


@pytest.mark.parametrize(("name", "gpus"), [("lspci_t_v100.txt", 2), ("lspci_tv.txt", 4)])
def test_gpus_of_a_real_tree_without_switches_are_not_counted(examined, sample, name, gpus):
    examination, _ = examined(sample(name))
    assert examination.found == ()
    assert examination.not_judged[0].why.startswith(f"{gpus} GPUs on the bus")


def test_a_real_tree_that_is_cut_is_not_judged(examined, sample):
    text = sample("lspci_t_azure_ndmv4_a100.txt")
    examination, _ = examined(text[: text.index("[0004:00]")])
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
