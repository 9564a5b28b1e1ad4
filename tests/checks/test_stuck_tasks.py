from __future__ import annotations

from clusterbench.checks.stuck_tasks import StuckTasks
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "INFO: task kcompactd1:1177 blocked for more than 120 seconds."


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = StuckTasks().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "task kcompactd1:1177"
    assert fault.what == "waited longer than 120 s in the kernel, once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = StuckTasks().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = StuckTasks().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")


def test_a_processor_that_does_not_schedule_is_named(tmp_path):
    machine = logging("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]")
    (fault,) = StuckTasks().judge(machine.host(tmp_path)).faults
    assert (fault.where, fault.what[:35]) == ("CPU#18", "was stuck in the kernel for 27 s, o")


def test_a_task_whose_name_holds_a_colon_is_named(tmp_path):
    machine = logging(*["INFO: task kworker/u256:3:98765 blocked for more than 122 seconds."] * 5)
    (fault,) = StuckTasks().judge(machine.host(tmp_path)).faults
    assert (fault.where, fault.what[:48]) == (
        "task kworker/u256:3:98765",
        "waited longer than 122 s in the kernel, 5 times,",
    )
