from __future__ import annotations

from clusterbench.checks.file_max import FileMax
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "VFS: file-max limit 1000000 reached"


def test_it_is_found_with_its_time(tmp_path):
    (fault,) = FileMax().judge(logging(LINE, LINE).host(tmp_path)).faults
    assert fault.where == ""
    assert fault.what == "had no file left to open, 2 times, last 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = FileMax().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = FileMax().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")
