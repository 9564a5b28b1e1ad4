from __future__ import annotations

from clusterbench.checks.pcie_width import PcieWidth
from tests.checks.gpus import host, only


def test_lost_lanes_are_found():
    fault = only(PcieWidth(), pcie_width=8)
    assert fault.what == "its PCIe link is x8, and could be x16"
    assert fault.evidence == "NVML PCIe link width: x8; most x16"


def test_a_narrow_slot_is_a_warning():
    fault = only(PcieWidth(), pcie_width=8, most_pcie_width=8)
    assert fault.what == "its PCIe link is x8, all that its slot has; most GPUs have x16"
    assert fault.severity == "warning"


def test_all_lanes_are_in_order_and_a_superchip_is_left_out():
    assert PcieWidth().judge(host()).healthy == "8 NVIDIA GPUs on PCIe have all lanes of their link"
    said = PcieWidth().judge(host(name="NVIDIA GB200", pcie_width=1))
    assert (said.faults, said.healthy) == ((), "7 NVIDIA GPUs on PCIe have all lanes of their link")
