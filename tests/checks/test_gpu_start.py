from __future__ import annotations

from clusterbench.checks.gpu_start import GpuStart
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1474)"


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = GpuStart().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "GPU 0000:3b:00"
    assert fault.what == "could not be started by the driver (RmInitAdapter failed), once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = GpuStart().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = GpuStart().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")
