from __future__ import annotations

from clusterbench.checks.nccl_crash import NcclCrash
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "pt_main_thread[2536443]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]"


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = NcclCrash().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == ""
    assert fault.what == "pt_main_thread crashed inside NCCL, once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = NcclCrash().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = NcclCrash().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")
