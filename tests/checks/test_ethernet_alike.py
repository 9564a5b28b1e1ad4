from __future__ import annotations

import pytest

from clusterbench.checks.ethernet_alike import EthernetAlike
from tests.facts.healthy.ethernet import ABOUT, PAUSES
from tests.facts.machine import healthy, planted

FOLDER = "/sys/class/net/eno1"


def judged(folder, odd):
    machines = {"n0": healthy(), "n1": healthy(), "n2": odd}
    return EthernetAlike().judge_all([machine.host(folder, name) for name, machine in machines.items()])


@pytest.mark.parametrize(
    ("file", "holds", "what"),
    [
        (f"{FOLDER}/speed", "10000\n", "the speed of eno1 is 10 Gb/s, and 25 Gb/s on most hosts"),
        (f"{FOLDER}/mtu", "9000\n", "the MTU of eno1 is 9000 bytes, and 1500 bytes on most hosts"),
    ],
)
def test_what_sysfs_says_is_compared(tmp_path, file, holds, what):
    odd = healthy()
    odd.files[file] = holds
    said = judged(tmp_path, odd)
    (fault,) = said["n2"].faults
    assert (fault.where, fault.what) == ("eno1", what)
    assert fault.evidence.startswith(f"{file}: ")
    assert said["n0"].healthy == "5 traits as on most hosts"


@pytest.mark.parametrize(
    ("command", "printed", "what"),
    [
        (
            "ethtool -a eno1",
            PAUSES.format("eno1", "on"),
            "the pause setting of eno1 is rx on, tx on, and rx off, tx off on most hosts",
        ),
        (
            "ethtool -i eno1",
            ABOUT.replace("28.39.2048", "28.37.1014"),
            "the firmware of eno1 is 28.37.1014 (MT_0000000838), and 28.39.2048 (MT_0000000838) on most hosts",
        ),
    ],
)
def test_what_ethtool_says_is_compared(tmp_path, command, printed, what):
    odd = healthy()
    odd.programs[command] = printed
    assert judged(tmp_path, odd)["n2"].faults[0].what == what


def test_ecn_that_is_on_for_other_priorities_is_found(tmp_path):
    machines = {name: healthy() for name in ("n0", "n1", "n2")}
    for name, machine in machines.items():
        on = 3 if name != "n2" else 5
        for role in ("roce_np", "roce_rp"):
            machine.files |= planted(f"{FOLDER}/ecn/{role}/enable", {str(each): int(each == on) for each in range(8)})
    said = EthernetAlike().judge_all([machine.host(tmp_path, name) for name, machine in machines.items()])
    (fault,) = said["n2"].faults
    assert fault.what == "the ECN setting of eno1 is np 5, rp 5, and np 3, rp 3 on most hosts"
    assert fault.evidence.startswith(f"{FOLDER}/ecn: ")


def test_a_link_that_is_down_has_no_speed_to_compare(tmp_path):
    odd = healthy()
    odd.files[f"{FOLDER}/operstate"] = "down\n"
    assert not judged(tmp_path, odd)["n2"].faults


def test_a_host_without_interfaces_is_not_compared(tmp_path):
    assert judged(tmp_path, healthy().without("/sys/class/net"))["n2"].not_applicable
