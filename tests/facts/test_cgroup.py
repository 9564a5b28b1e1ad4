from __future__ import annotations

from clusterbench.facts import Files
from clusterbench.facts.cgroup import Cgroup
from tests.facts.healthy import cgroup
from tests.facts.machine import Machine

ROOT = "/sys/fs/cgroup"


def read(folder, **files):
    machine = Machine()
    cgroup.plant(machine)
    machine.files |= files
    machine.write(folder)
    return Cgroup.read(Files(folder))


def test_without_bounds(tmp_path):
    facts = read(tmp_path)
    assert (facts.version, facts.cpus, facts.memory_used_bytes) == (2, "0-223", 2**30)
    assert (facts.cpu_quota, facts.memory_limit_bytes, facts.processes_limit) == (None, None, None)
    assert (facts.num_throttled, facts.oom_kills) == (0, 0)


def test_the_tightest_bound_on_the_way_up_counts(tmp_path):
    above = {f"{ROOT}/system.slice/cpu.max": "400000 100000\n", f"{ROOT}/system.slice/memory.max": str(2**33)}
    facts = read(tmp_path, **above, **{f"{cgroup.GROUP}/cpu.max": "800000 100000\n"})
    assert (facts.cpu_quota, facts.memory_limit_bytes) == (4.0, 2**33)


def test_version_1_has_a_tree_for_each_controller(tmp_path):
    files = {
        "/proc/self/cgroup": "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n3:cpuset:/\n2:pids:/\n0::/\n",
        f"{ROOT}/cpu/docker/ab/cpu.cfs_quota_us": "-1\n",
        f"{ROOT}/cpu/docker/ab/cpu.cfs_period_us": "100000\n",
        f"{ROOT}/cpu/cpu.cfs_quota_us": "250000\n",
        f"{ROOT}/cpu/cpu.cfs_period_us": "100000\n",
        f"{ROOT}/memory/docker/ab/memory.limit_in_bytes": "9223372036854771712\n",
        f"{ROOT}/memory/memory.limit_in_bytes": "17179869184\n",
        f"{ROOT}/cpuset/cpuset.cpus": "0-3\n",
        f"{ROOT}/memory/docker/ab/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    }
    Machine(files=files).write(tmp_path)
    facts = Cgroup.read(Files(tmp_path))
    assert (facts.version, facts.path, facts.cpu_quota) == (1, "/docker/ab", 2.5)
    assert (facts.memory_limit_bytes, facts.cpus, facts.oom_kills) == (2**34, "0-3", 3)


def test_a_quota_of_minus_one_is_none(tmp_path):
    files = {
        "/proc/self/cgroup": "5:cpu:/\n",
        f"{ROOT}/cpu/cpu.cfs_quota_us": "-1",
        f"{ROOT}/cpu/cpu.cfs_period_us": "1",
    }
    Machine(files=files).write(tmp_path)
    assert Cgroup.read(Files(tmp_path)).cpu_quota is None
