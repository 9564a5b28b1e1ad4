from __future__ import annotations

import pytest

from clusterbench.checks.dma_buf import DmaBuf
from tests.facts.healthy.modules import CLOSED, OPEN
from tests.facts.machine import healthy

KERNEL, DRIVER = "/proc/sys/kernel/osrelease", "/proc/driver/nvidia/version"


def judged(folder, *without, driver=OPEN, kernel="6.8.0-45-generic"):
    machine = healthy()
    machine.files |= {DRIVER: driver, KERNEL: f"{kernel}\n"}
    (said,) = DmaBuf().judge_all([machine.without(*without).host(folder)]).values()
    return said


@pytest.mark.parametrize(
    ("driver", "kernel", "why"),
    [
        (CLOSED, "6.8.0", "NVIDIA's kernel module 535.183.01 is the closed one"),
        (OPEN, "5.11.0-49", "kernel 5.11.0-49 is older than 5.12"),
        (OPEN.replace("570.86.15", "510.47.03"), "6.8.0", "driver 510.47.03 is older than 515"),
    ],
)
def test_what_stands_against_it_is_named(tmp_path, driver, kernel, why):
    (fault,) = judged(tmp_path, "/sys/module/nvidia_peermem", driver=driver, kernel=kernel).faults
    assert (fault.what, fault.severity) == (f"DMA-BUF cannot be used: {why}", None)


def test_it_is_a_note_where_peermem_is_loaded(tmp_path):
    (fault,) = judged(tmp_path, driver=CLOSED).faults
    assert fault.what.endswith("is the closed one; nvidia_peermem serves instead")
    assert fault.severity == "note"


@pytest.mark.parametrize(("driver", "kernel"), [(OPEN, "5.12.0"), (OPEN.replace("570.86.15", "515.43.04"), "6.8.0")])
def test_the_first_that_will_do_is_in_order(tmp_path, driver, kernel):
    assert judged(tmp_path, driver=driver, kernel=kernel).healthy.endswith(f" on kernel {kernel}")


def test_an_old_kernel_of_a_distribution_that_takes_later_code_is_not_judged(tmp_path):
    said = judged(tmp_path, kernel="4.18.0-553.el8_10.x86_64")
    assert said.unknown[0].takes == "a line 'DMA-BUF is available on GPU device 0' of NCCL_DEBUG=INFO"
    assert not said.faults


def test_without_its_sources_it_is_not_judged(tmp_path):
    assert judged(tmp_path / "a", DRIVER).unknown[0].why == f"{DRIVER} is not there"
    assert judged(tmp_path / "b", KERNEL).unknown[0].why == f"{KERNEL} is not there"


def test_a_host_without_rdma_needs_none(tmp_path):
    assert judged(tmp_path, "/sys/class/infiniband").not_applicable
