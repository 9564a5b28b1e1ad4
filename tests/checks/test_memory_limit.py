from __future__ import annotations

from clusterbench.checks.memory_limit import MemoryLimit
from tests.facts.healthy.cgroup import GROUP
from tests.facts.machine import healthy, laptop


def judged(root, **files):
    machine = healthy()
    machine.files |= {f"{GROUP}/memory.{name}": f"{text}\n" for name, text in files.items()}
    return MemoryLimit().judge(machine.host(root))


def test_a_limit_far_below_what_ranks_need_is_found(tmp_path):
    (fault,) = judged(tmp_path, max=16 * 2**30).faults
    assert fault.what == "a job may have 16 GiB of memory, and ranks of 8 GPUs need more"
    assert fault.evidence == ("/proc/self/cgroup: /system.slice/slurmstepd.scope, memory limit 17179869184 bytes")


def test_processes_that_were_killed_are_found(tmp_path):
    (fault,) = judged(tmp_path, events="oom 3\noom_kill 2").faults
    assert fault.what == "the kernel killed 2 processes of this control group for memory"
    assert fault.evidence == "/proc/self/cgroup: /system.slice/slurmstepd.scope, oom_kill 2"


def test_a_limit_that_is_wide_enough_and_none_are_in_order(tmp_path):
    assert judged(tmp_path / "a", max=128 * 2**30).healthy == "memory: 128 GiB"
    assert judged(tmp_path / "b").healthy == "memory: no limit"


def test_without_gpus_there_is_no_bound():
    assert MemoryLimit().judge(laptop()).not_applicable == "no GPU here"
