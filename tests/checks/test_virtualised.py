from __future__ import annotations

from clusterbench.checks.virtualised import Virtualised
from clusterbench.facts.virtualization import Virtualization
from tests.facts.machine import laptop


def host(machine, **unread):
    return laptop(Virtualization(machine=machine, container=None, maker="QEMU", product="Standard PC", **unread))


def test_a_virtual_machine_is_a_note():
    (fault,) = Virtualised().judge(host("kvm")).faults
    assert fault.what == "is a virtual machine of kvm (QEMU Standard PC)"
    assert Virtualised.severity == "note"


def test_bare_metal_is_said():
    assert Virtualised().judge(host("none")).healthy == "bare metal"


def test_what_nothing_says_is_not_judged():
    unread = {"systemd-detect-virt --vm": "systemd-detect-virt is not on PATH"}
    (said,) = Virtualised().judge_all([host(None, unread=unread)]).values()
    assert said.unknown[0].takes == "the program systemd-detect-virt"
