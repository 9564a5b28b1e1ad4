from __future__ import annotations

from clusterbench.checks.nic_pcie import NicPcie, bits_per_s
from tests.checks.pcie import BUS, CARD, judged, no_devices, with_functions
from tests.facts.machine import healthy, planted

PATH = f"{BUS}/0000:4b:00.0"


def test_a_link_that_is_narrower_or_slower_than_it_could_be_is_found(tmp_path):
    said = judged(NicPcie(), tmp_path / "a", {f"{CARD}/current_link_width": "8\n"})
    (fault,) = said.faults
    assert fault.where == "mlx5_3 (0000:4b:00.0)"
    assert fault.what == "its PCIe link runs at 32 GT/s x8, and could at 32 GT/s x16"
    assert fault.evidence == f"{PATH}: 32 GT/s x8; the card could 32 GT/s x16"
    assert said.healthy == "7 network cards have the PCIe link that they and their slot can do"
    slow = {f"{CARD}/current_link_speed": "16.0 GT/s PCIe\n"}
    (fault,) = judged(NicPcie(), tmp_path / "b", slow).faults
    assert fault.what == "its PCIe link runs at 16 GT/s x16, and could at 32 GT/s x16"


def test_a_slot_that_carries_less_than_the_ports_do_is_found(tmp_path):
    for rate, faults in (("400 Gb/sec (4X NDR)", 1), ("200 Gb/sec (4X HDR)", 0)):
        machine = healthy()
        slot = "/sys/devices/pci0203:00/0000:48:01.0"
        link = {"current_link_speed": "16.0 GT/s PCIe", "current_link_width": 16, "max_link_width": 16}
        kinds = {"class": "0x020700", "vendor": "0x15b3", "infiniband/mlx5_3/x": ""}
        machine.files |= planted(slot, {**link, "max_link_speed": "16.0 GT/s PCIe", "class": "0x060400"})
        machine.files |= planted(f"{slot}/0000:4b:00.0", {**link, **kinds, "max_link_speed": "32.0 GT/s PCIe"})
        machine.links[f"{BUS}/0000:4b:00.0"] = f"../../..{slot.removeprefix('/sys')}/0000:4b:00.0"
        machine.links[f"{BUS}/0000:48:01.0"] = f"../../..{slot.removeprefix('/sys')}"
        machine.files["/sys/class/infiniband/mlx5_3/ports/1/rate"] = f"{rate}\n"
        said = NicPcie().judge(machine.host(tmp_path, rate[:3]))
        whats = ["its slot carries 252 Gb/s, and its ports do 400 Gb/s"]
        assert [fault.what for fault in said.faults] == whats[:faults]


def test_a_virtual_function_that_says_unknown_is_not_judged(tmp_path):
    said = judged(NicPcie(), tmp_path, {f"{CARD}/current_link_speed": "Unknown\n", f"{CARD}/current_link_width": "0\n"})
    (unknown,) = said.unknown
    assert unknown.why == "a virtual function does not show its card's PCIe link"
    assert said.faults == ()


def test_a_host_without_cards_has_none(tmp_path):
    assert judged(NicPcie(), tmp_path, without=no_devices()).not_applicable == "no network cards here"


def test_what_a_link_carries():
    assert bits_per_s(5.0, 8) == 32e9


def test_virtual_functions_of_cards_that_are_there_push_no_card_out(tmp_path):
    said = NicPcie().judge(with_functions(300, is_virtual=True).host(tmp_path))
    assert [fault.where for fault in said.faults] == ["network card 0000:dd:00.0"]
    assert (said.healthy, said.unknown) == ("8 network cards have the PCIe link that they and their slot can do", ())


def test_cards_beyond_those_that_were_looked_at_are_not_judged(tmp_path):
    said = NicPcie().judge(with_functions(300, is_virtual=False).host(tmp_path))
    (unknown,) = said.unknown
    assert unknown.why == f"{BUS} shows 325 GPUs, network cards and bridges, and 256 were looked at"
