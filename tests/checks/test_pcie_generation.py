from __future__ import annotations

from clusterbench.checks.pcie_generation import PcieGeneration
from tests.checks.gpus import host, only, virtualization

IN_ORDER = "NVIDIA GPUs on PCIe in slots that allow their generation"


def judged(*others, **changed):
    (said,) = PcieGeneration().judge_all([host(*others, **changed)]).values()
    return said


def test_a_slot_below_the_gpu_is_found_whatever_the_link_does_now():
    for now in (1, 4):
        fault = only(PcieGeneration(), virtualization(), most_pcie_generation=4, pcie_generation=now)
        assert fault.what == "its slot allows PCIe generation 4, and the GPU could do 5"
        assert fault.evidence == "NVML PCIe generation: GPU 5; GPU and slot 4"


def test_a_virtual_machine_does_not_show_the_slot():
    said = judged(virtualization("kvm"), most_pcie_generation=3, pcie_generation=3)
    assert said.unknown[0].why == "a virtual machine does not show the slot"
    assert said.faults == ()


def test_an_idle_link_is_no_finding():
    said = judged(virtualization(), pcie_generation=1)
    assert (said.faults, said.unknown, said.healthy) == ((), (), f"8 {IN_ORDER}")


def test_a_link_at_its_most_is_in_order():
    assert judged().healthy == f"8 {IN_ORDER}"
