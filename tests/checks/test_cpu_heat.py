from __future__ import annotations

from clusterbench.checks.cpu_heat import CpuHeat
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
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = CpuHeat().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")
