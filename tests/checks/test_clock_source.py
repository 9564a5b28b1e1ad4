from __future__ import annotations

import pytest

from clusterbench.checks.clock_source import ClockSource
from clusterbench.facts.kernel_log import KernelLog
from clusterbench.facts.time_sync import CLOCK_SOURCE, TimeSync
from tests.facts.healthy.kernel_log import logging
from tests.facts.machine import healthy, laptop, training


def read_from(source):
    return TimeSync(is_synchronised=True, said_by=None, offset_s=None, server=None, clock_source=source)


@pytest.mark.parametrize("slow", ["hpet", "acpi_pm"])
def test_a_clock_that_is_read_from_a_device_is_found(slow):
    (fault,) = ClockSource().judge(training(read_from(slow))).faults
    assert fault.what == f"the kernel reads its clock from {slow}: every look at it is a system call and a slow read"
    assert fault.evidence == f"{CLOCK_SOURCE}: {slow}"


@pytest.mark.parametrize("quick", ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen"])
def test_one_of_the_processor_or_of_a_hypervisor_is_in_order(quick):
    assert ClockSource().judge(training(read_from(quick))).healthy == f"the clock is {quick}"


MARKED = "clocksource: timekeeping watchdog on CPU14: Marking clocksource 'tsc' as unstable because the skew"


def test_the_log_alone_says_that_the_clock_was_found_unstable(tmp_path):
    """Of such a log it read 'HEALTHY: in order: 20 checks'."""
    log = logging(MARKED).host(tmp_path).of(KernelLog)
    (fault,) = ClockSource().judge(training(log)).faults
    assert fault.what.startswith("the kernel found the processor's clock unstable")
    assert fault.what.endswith(", once, 2026-03-02 14:01:39 UTC")


def test_what_the_kernel_reads_now_counts_more_than_its_log_which_says_why(tmp_path):
    log = logging(MARKED).host(tmp_path).of(KernelLog)
    assert ClockSource().judge(training(read_from("kvm-clock"), log)).healthy == "the clock is kvm-clock"
    (fault,) = ClockSource().judge(training(read_from("hpet"), log)).faults
    assert fault.evidence == f"{CLOCK_SOURCE}: hpet; /dev/kmsg: {MARKED}"


def test_what_is_not_shown_is_not_judged_and_a_laptop_not_asked(tmp_path):
    (said,) = ClockSource().judge_all([healthy().without(CLOCK_SOURCE).host(tmp_path)]).values()
    assert said.unknown[0].why == f"{CLOCK_SOURCE} is not there"
    assert ClockSource().judge(laptop(read_from("hpet"))).not_applicable
