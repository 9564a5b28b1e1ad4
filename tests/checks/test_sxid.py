from __future__ import annotations

from clusterbench.checks.sxid import Sxid
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"


DATA = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00100000, 0x00140004}"
SEVERITY = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00"


def test_data_without_the_line_of_its_sxid_says_that_the_line_is_missing(tmp_path):
    (fault,) = Sxid().judge(logging(SEVERITY, DATA, DATA).host(tmp_path)).faults
    assert fault.where == "NVSwitch 0000:05:00.0"
    assert fault.what.startswith(
        "reported SXid 12028 (egress non-posted PRIV error: traffic of its GPU stalls), of which the log has the data "
        "alone: the line that says whether it is fatal, and on which link, is missing, 3 times"
    )


def test_data_beside_the_line_of_its_sxid_is_not_counted(tmp_path):
    (fault,) = Sxid().judge(logging(LINE, SEVERITY, DATA).host(tmp_path)).faults
    assert ", once, " in fault.what


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = Sxid().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "NVSwitch 0000:05:00.0"
    assert (
        fault.what == "reported SXid 12028 (egress non-posted PRIV error: traffic of its GPU stalls), once, "
        "2026-03-02 14:01:39 UTC"
    )
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = Sxid().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = Sxid().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")


def test_a_corrected_error_of_a_switch_is_a_note(tmp_path):
    machine = logging("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24001, Non-fatal, Link 3 sourcetrack ECC limit")
    (fault,) = Sxid().judge(machine.host(tmp_path)).faults
    assert fault.severity == "note"
