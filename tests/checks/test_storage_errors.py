from __future__ import annotations

from clusterbench.checks.storage_errors import StorageErrors
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller"


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = StorageErrors().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "nvme4"
    assert fault.what == "disk or file system reported an error, once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_server_that_did_not_respond_once_is_a_note_and_twice_a_warning(tmp_path):
    line = "CIFS: VFS: \\\\store1 has not responded in 180 seconds. Reconnecting..."
    (once,) = StorageErrors().judge(logging(line).host(tmp_path / "once")).faults
    assert (once.severity, once.what.partition(", once")[0]) == (
        "note",
        "did not respond, and the kernel connected to it anew",
    )
    (twice,) = StorageErrors().judge(logging(line, line).host(tmp_path / "twice")).faults
    assert twice.severity is None


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = StorageErrors().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = StorageErrors().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")
