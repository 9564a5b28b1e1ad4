from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.processes import Processes
from clusterbench.facts import Files
from clusterbench.facts.cgroup import Cgroup
from clusterbench.facts.kernel import Kernel
from clusterbench.facts.limits import UNLIMITED, Limits
from tests.facts.machine import laptop, training


@pytest.fixture
def judged(tmp_path):
    files = Files(tmp_path)
    group, kernel, limits = Cgroup.read(files), Kernel.read(files), Limits.read(files)

    def judge(own=UNLIMITED, of_group=None, of_system=4_194_304, made=training):
        facts = (
            replace(limits, processes=own),
            replace(group, path="/kubepods/pod7", processes_limit=of_group),
            replace(kernel, processes_limit=of_system),
        )
        (said,) = Processes().judge_all([made(*facts)]).values()
        return said

    return judge


def test_a_pods_limit_is_found(judged):
    (fault,) = judged(of_group=1024).faults
    assert fault.what == "a job may have 1,024 processes and threads, and ranks of 8 GPUs need more"
    assert fault.evidence == "/proc/self/cgroup: pids.max of /kubepods/pod7: 1024"


def test_a_users_and_the_systems_limits_are_found(judged):
    assert judged(own=4096).faults[0].evidence == "/proc/self/limits: Max processes: 4096"
    (fault,) = judged(of_system=4096).faults
    assert fault.evidence == "/proc/sys/kernel/pid_max: 4096"


@pytest.mark.parametrize(("number", "faults"), [(8191, 1), (8192, 0)])
def test_at_the_bound(judged, number, faults):
    assert len(judged(own=number).faults) == faults


def test_the_tightest_is_said(judged):
    assert judged(own=127_000, of_group=100_000).healthy == "processes and threads: 100,000"
    assert judged(of_system=None).healthy == "processes and threads: no limit"


def test_without_the_file_it_is_not_judged_and_a_laptop_not_asked(judged):
    assert judged(own=None).unknown[0].why == "/proc/self/limits is not there"
    assert judged(made=laptop).not_applicable == "no GPU here"
