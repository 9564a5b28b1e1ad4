from __future__ import annotations

import pytest

from clusterbench.checks.cpu_heat import CpuHeat
from tests.facts.healthy.cpu_throttling import throttled
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "mce: CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)"


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = CpuHeat().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "CPU3"
    assert fault.what == "was too hot and lowered its clock, once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = CpuHeat().judge(healthy().host(tmp_path))
    log = "no processor that was too hot in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC"
    assert said.healthy == f"{log}; 2 processors never lowered the clock for heat"
    (unknown,) = CpuHeat().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")


@pytest.mark.parametrize(("lowered_ms", "severity"), [(900_000, None), (87_000, None), (86_000, "note"), (20, "note")])
def test_what_the_kernel_counted_is_found_without_root(tmp_path, lowered_ms, severity):
    machine = healthy().without("/dev/kmsg")
    machine.files |= throttled(3, 4123, lowered_ms)
    said = CpuHeat().judge(machine.host(tmp_path))
    (fault,) = said.faults
    lasted = f"4,123 times, for {lowered_ms / 1e3:.0f} s"
    assert (fault.where, fault.severity) == ("processor 1", severity)
    assert fault.what == f"was too hot and lowered its clock {lasted} in 1.0 days"
    assert fault.evidence == f"/sys/devices/system/cpu/cpu*/thermal_throttle: {lasted}"
    assert [unknown.why for unknown in said.unknown] == ["/dev/kmsg is not there"]


@pytest.mark.parametrize(("times", "severity"), [(10, "note"), (11, None)])
def test_without_the_time_ten_a_day_are_a_warning(tmp_path, times, severity):
    machine = healthy()
    machine.files |= throttled(3, times, 0)
    for path in [path for path in machine.files if path.endswith("_total_time_ms")]:
        del machine.files[path]
    (fault,) = CpuHeat().judge(machine.host(tmp_path)).faults
    assert fault.severity == severity


def test_what_the_log_tells_is_not_said_again(tmp_path):
    machine = logging(LINE)
    machine.files |= throttled(3, 4123, 900_000)
    (fault,) = CpuHeat().judge(machine.host(tmp_path)).faults
    assert fault.where == "CPU3"
