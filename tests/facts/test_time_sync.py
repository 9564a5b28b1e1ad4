from __future__ import annotations

from clusterbench.facts import Files
from clusterbench.facts.time_sync import CHRONYC, NTPQ, TIMEDATECTL, TimeSync
from tests.facts.healthy import time_sync
from tests.facts.machine import Machine

NTPD = """\
associd=0 status=0615 leap_none, sync_ntp, 1 event, clock_sync,
version="ntpd 4.2.8p15", processor="x86_64", leap=00, stratum=3,
offset=-0.213000, frequency=-12.345, sys_jitter=0.012
"""


def read(folder, programs=None):
    machine = Machine()
    time_sync.plant(machine)
    machine.programs = machine.programs if programs is None else programs
    machine.write(folder)
    return TimeSync.read(Files(folder, machine.run))


def test_the_kernel_says_whether_and_chrony_how_far(tmp_path):
    facts = read(tmp_path)
    assert (facts.is_synchronised, facts.said_by) == (True, TIMEDATECTL)
    assert (facts.offset_s, facts.server, facts.clock_source) == (0.000012345, "10.77.0.1", "tsc")


def test_chrony_alone_is_believed(tmp_path):
    row = "7F7F0101,,0,0.0,0.000000000,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised\n"
    facts = read(tmp_path, {CHRONYC: row})
    assert (facts.is_synchronised, facts.said_by, facts.server) == (False, CHRONYC, None)


def test_chrony_that_does_not_run_is_not_asked(tmp_path):
    facts = TimeSync.read(Files(tmp_path, Machine(programs={CHRONYC: "7F7F0101,,0"}).run))
    assert CHRONYC not in facts.unread


def test_ntpd_alone_is_believed(tmp_path):
    facts = read(tmp_path, {NTPQ: NTPD})
    assert (facts.is_synchronised, facts.said_by, facts.offset_s) == (True, NTPQ, -0.000213)
    alarm = NTPD.replace("leap_none, sync_ntp", "leap_alarm, sync_unspec").replace("leap=00", "leap=11")
    assert read(tmp_path, {NTPQ: alarm}).is_synchronised is False


def test_where_no_service_answers_nothing_is_known(tmp_path):
    facts = read(tmp_path, {})
    assert (facts.is_synchronised, facts.said_by, facts.offset_s) == (None, None, None)
    assert facts.unread[TIMEDATECTL] == "timedatectl is not on PATH"
