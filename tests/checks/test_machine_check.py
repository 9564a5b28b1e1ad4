from __future__ import annotations

import pytest

from clusterbench.checks.machine_check import MachineCheck
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0"


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = MachineCheck().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "MC0"
    assert fault.what == "processor or memory reported an error that was not corrected, once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = MachineCheck().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = MachineCheck().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")


@pytest.mark.parametrize(("count", "severity"), [(9, "note"), (10, "warning")])
def test_corrected_errors_are_a_warning_from_ten_a_day(tmp_path, count, severity):
    machine = logging(*["EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0"] * count)
    (fault,) = MachineCheck().judge(machine.host(tmp_path)).faults
    assert fault.severity == severity


def test_many_errors_of_one_line_are_a_warning(tmp_path):
    (fault,) = MachineCheck().judge(logging("EDAC MC0: 32767 CE memory read error on DIMM_A1").host(tmp_path)).faults
    assert (fault.severity, "32,767 times" in fault.what) == ("warning", True)
