from __future__ import annotations

import pytest

from clusterbench.checks.iommu_passthrough import IommuPassthrough
from clusterbench.facts.iommu import Guarded, Iommu
from clusterbench.facts.kernel import Kernel
from clusterbench.facts.virtualization import Virtualization
from tests.facts.machine import laptop, training


def iommu(*kinds, number=9):
    return Iommu(
        num_groups=number, devices=tuple(Guarded(f"0000:{bus}8:00.0", str(bus), k) for bus, k in enumerate(kinds))
    )


def machine(word="none"):
    return Virtualization(machine=word, container=None, maker=None, product=None)


def started(*options):
    unknown = dict.fromkeys(("release", "version", "uptime_s", "boot_id", "processes_limit", "threads_limit"))
    return Kernel(**unknown, options=options)


def judged(*facts):
    (said,) = IommuPassthrough().judge_all([training(*facts)]).values()
    return said


@pytest.mark.parametrize("kind", ["DMA", "DMA-FQ"])
def test_a_device_that_is_translated_is_found(kind):
    (fault,) = judged(iommu("identity", kind), machine()).faults
    assert fault.what == "the IOMMU translates 1 of 2 GPUs and RDMA devices: 0000:18:00.0"
    assert fault.evidence == f"/sys/kernel/iommu_groups/1/type: {kind}"
    assert fault.severity is None


def test_in_a_guest_it_is_a_note():
    (fault,) = judged(iommu("DMA"), machine("kvm")).faults
    assert fault.severity == "note"


def test_pass_through_and_no_iommu_are_in_order():
    assert judged(iommu("identity", "identity")).healthy == "the IOMMU lets 2 GPUs and RDMA devices pass"
    assert judged(iommu(number=0)).healthy == "the kernel uses no IOMMU"


def test_where_types_may_not_be_read_the_command_line_decides():
    assert judged(iommu(None), started("iommu=pt")).healthy == "the kernel was started with iommu=pt"
    (fault,) = judged(iommu(None), started("intel_iommu=on"), machine()).faults
    assert fault.what == "the IOMMU is used, and the kernel was started without iommu=pt"
    assert fault.evidence == "/proc/cmdline: intel_iommu=on"


def test_without_the_groups_it_is_not_judged():
    unread = {"/sys/kernel/iommu_groups": "is not there"}
    said = judged(Iommu(num_groups=None, devices=(), unread=unread))
    assert said.unknown[0].why == "/sys/kernel/iommu_groups is not there"
    assert judged(iommu(number=3)).unknown[0].why == "no GPU and no RDMA device is in a group of the IOMMU"


def test_a_host_that_does_not_train_is_not_asked():
    assert IommuPassthrough().judge(laptop(iommu("DMA"))).not_applicable
