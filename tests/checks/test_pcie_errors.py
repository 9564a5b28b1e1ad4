from __future__ import annotations

import pytest

from clusterbench.checks.pcie_errors import PcieErrors
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "pcieport 0000:15:01.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)"


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = PcieErrors().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "pcieport 0000:15:01.0"
    assert fault.what == "reported a PCIe error that was not corrected, once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = PcieErrors().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = PcieErrors().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")


@pytest.mark.parametrize(("count", "severity"), [(99, "note"), (100, "warning")])
def test_corrected_errors_are_a_warning_from_a_hundred_a_day(tmp_path, count, severity):
    machine = logging(*["pcieport 0000:15:01.0: PCIe Bus Error: severity=Correctable, type=Physical Layer"] * count)
    (fault,) = PcieErrors().judge(machine.host(tmp_path)).faults
    assert fault.severity == severity


@pytest.mark.parametrize(
    ("line", "where", "what"),
    [
        ("pcieport 0000:15:01.0: pciehp: Slot(4): Link Down", "pcieport 0000:15:01.0", "lost the card in its slot"),
        (
            "nvidia 0000:5c:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0017 address=0xffc0 flags=0x0020]",
            "nvidia 0000:5c:00.0",
            "was refused an access to memory by the IOMMU",
        ),
        (
            "DMAR: [DMA Read NO_PASID] Request device [5c:00.0] fault addr 0xffc0 [fault reason 0x06] PTE Read access",
            "5c:00.0",
            "was refused an access to memory by the IOMMU",
        ),
    ],
)
def test_a_slot_that_lost_its_card_and_an_access_that_was_refused_are_a_warning(tmp_path, line, where, what):
    (fault,) = PcieErrors().judge(logging(line).host(tmp_path)).faults
    assert (fault.where, fault.severity) == (where, "warning")
    assert fault.what == f"{what}, once, 2026-03-02 14:01:39 UTC"
