from __future__ import annotations

import pytest

from clusterbench.checks.machine_check import MachineCheck
from clusterbench.facts.memory_errors import FOLDER
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.healthy.memory_errors import module
from tests.facts.machine import healthy, planted

LINE = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0"


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = MachineCheck().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "MC0"
    assert fault.what == "processor or memory reported an error that was not corrected, once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = MachineCheck().judge(healthy().host(tmp_path))
    log = "no machine check in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC"
    assert said.healthy == f"{log}; no memory error counted by 4 controllers"
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


def counting(counts, controller=1, over_s=86_400):
    machine = healthy()
    own = {f"dimm_{name}": count for name, count in counts.items()}
    machine.files |= planted(module(controller, 0), own)
    machine.files |= planted(f"{FOLDER}/mc{controller}", counts | {"seconds_since_reset": over_s})
    return machine


def test_errors_that_the_kernel_counted_are_found_without_root_by_their_module(tmp_path):
    machine = counting({"ue_count": 2}).without("/dev/kmsg")
    said = MachineCheck().judge(machine.host(tmp_path))
    (fault,) = said.faults
    assert (fault.where, fault.severity) == ("MC1 CPU_SrcID#0_MC#1_Chan#0_DIMM#0", None)
    assert fault.what == "2 memory errors could not be corrected"
    assert fault.evidence == f"{module(1, 0)}/dimm_ue_count: 2"
    assert [unknown.why for unknown in said.unknown] == ["/dev/kmsg is not there"]


@pytest.mark.parametrize(
    ("count", "days", "severity"), [(9, 1, "note"), (10, 1, "warning"), (50, 60, "note"), (50_000, 60, "warning")]
)
def test_counts_of_corrected_errors_are_a_warning_from_ten_a_day(tmp_path, count, days, severity):
    machine = counting({"ce_count": count}, over_s=days * 86_400)
    (fault,) = MachineCheck().judge(machine.host(tmp_path)).faults
    assert (fault.severity, fault.what) == (severity, f"{count:,} memory errors were corrected in {days:.1f} days")


def test_what_the_log_tells_of_a_controller_is_said_once(tmp_path):
    machine = counting({"ue_count": 1}, controller=0)
    machine.files["/dev/kmsg"] = logging(LINE).files["/dev/kmsg"]
    (fault,) = MachineCheck().judge(machine.host(tmp_path)).faults
    assert fault.evidence.startswith("/dev/kmsg: ")


def test_counts_of_zero_are_in_order_where_the_log_cannot_be_read(tmp_path):
    said = MachineCheck().judge(healthy().without("/dev/kmsg").host(tmp_path))
    assert (said.healthy, len(said.unknown)) == ("no memory error counted by 4 controllers", 1)
