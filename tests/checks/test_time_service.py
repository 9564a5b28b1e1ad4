from __future__ import annotations

from clusterbench.checks.time_service import TimeService
from clusterbench.facts.time_sync import CHRONYC, TIMEDATECTL, TimeSync
from tests.facts.machine import laptop, training


def clock(synchronised, said_by=TIMEDATECTL, server=None, **unread):
    known = {"is_synchronised": synchronised, "said_by": said_by, "server": server}
    return TimeSync(**known, offset_s=None, clock_source="tsc", **unread)


def test_a_clock_that_nothing_keeps_is_found():
    (fault,) = TimeService().judge(training(clock(False, CHRONYC))).faults
    assert fault.what == "no time service keeps the clock right: it is not synchronised"
    assert fault.evidence == "chronyc -n -c tracking: not synchronised"


def test_a_clock_that_follows_a_server_is_in_order():
    said = TimeService().judge(training(clock(True, server="10.77.0.1")))
    assert said.healthy == "the clock is synchronised to 10.77.0.1"


def test_where_no_program_answers_it_is_not_judged():
    unread = {TIMEDATECTL: "timedatectl is not on PATH"}
    (said,) = TimeService().judge_all([training(clock(None, None, unread=unread))]).values()
    assert said.unknown[0].takes == "the program timedatectl"


def test_a_laptop_is_not_asked():
    assert TimeService().judge(laptop(clock(False))).not_applicable
