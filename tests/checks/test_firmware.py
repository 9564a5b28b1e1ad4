from __future__ import annotations

from clusterbench.checks.firmware import Firmware
from tests.facts.machine import healthy

PATH = "/sys/class/infiniband/mlx5_3/fw_ver"


def hosts(folder, *odd, number=4):
    """Hosts of which those in ``odd`` have an older firmware on one card."""
    machines = {f"n{each}": healthy() for each in range(number)}
    for name in odd:
        machines[name].files[PATH] = "28.37.1014\n"
    return [machine.host(folder, name) for name, machine in machines.items()]


def test_one_card_that_is_older_is_found_on_its_host_alone(tmp_path):
    said = Firmware().judge_all(hosts(tmp_path, "n2"))
    (fault,) = said["n2"].faults
    assert fault.what == "the firmware of mlx5_3 is 28.37.1014, and 28.39.2048 on most hosts"
    assert fault.evidence == f"{PATH}: 28.37.1014; on 3 of 4 hosts 28.39.2048"
    assert not any(said[name].faults for name in ("n0", "n1", "n3"))


def test_where_neither_half_is_the_larger_both_are_named(tmp_path):
    said = Firmware().judge_all(hosts(tmp_path, "n1", number=2))
    words = "the firmware of mlx5_3 differs between hosts: 28.39.2048 on 1 and 28.37.1014 on 1"
    assert [judged.faults[0].what for judged in said.values()] == [words, words]


def test_a_host_without_cards_is_not_compared(tmp_path):
    bare = healthy().without("/sys/class/infiniband").host(tmp_path, "bare")
    said = Firmware().judge_all([*hosts(tmp_path), bare])
    assert said["bare"].not_applicable
    assert said["n0"].healthy == "24 traits as on most hosts"
