from pathlib import Path

import pytest

from clusterbench.engine.host_memory import memory_limit_bytes, oom_kills


@pytest.fixture
def root(tmp_path):
    def write(**files: str) -> Path:
        for name, text in {"proc/meminfo": "MemTotal:  1024 kB\nMemFree: 5 kB\n", **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_without_groups_it_is_the_hosts_memory(root):
    assert memory_limit_bytes(root()) == 2**20


def test_the_least_limit_on_the_way_up_counts_in_version_2(root):
    files = {
        "proc/self/cgroup": "0::/slurm/job7/step0\n",
        "sys/fs/cgroup/slurm/job7/step0/memory.max": "max\n",
        "sys/fs/cgroup/slurm/job7/memory.max": "500000\n",
        "sys/fs/cgroup/slurm/memory.max": "900000\n",
    }
    assert memory_limit_bytes(root(**files)) == 500_000


def test_version_1_has_a_folder_for_memory_and_a_number_for_no_limit(root):
    files = {
        "proc/self/cgroup": "9:name=systemd:/\n4:memory:/job\n1:cpu:/x\n0::/\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "700000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert memory_limit_bytes(root(**files)) == 700_000


def test_kills_are_counted(root):
    assert oom_kills(root(**{"proc/vmstat": "nr_free_pages 7\noom_kill 3\n"})) == 3
    assert oom_kills(root(**{"proc/vmstat": "nr_free_pages 7\n"})) == 0
    assert oom_kills() >= 0
    assert memory_limit_bytes() > 2**20


@pytest.mark.parametrize(
    ("group", "file"),
    [
        ("0::/job/step\n", "sys/fs/cgroup/job/step/memory.events.local"),
        ("0::/job/step\n", "sys/fs/cgroup/job/step/memory.events"),
        ("0::/\n", "sys/fs/cgroup/memory.events.local"),
        ("9:name=systemd:/\n4:memory:/job/step\n0::/\n", "sys/fs/cgroup/memory/job/step/memory.oom_control"),
    ],
)
def test_kills_are_those_of_the_own_group_where_it_counts_them(root, group, file):
    """What else was killed on a host is no reason for a process that somebody killed at the time."""
    files = {"proc/self/cgroup": group, "proc/vmstat": "oom_kill 9\n"}
    assert oom_kills(root(**files)) == 9
    assert oom_kills(root(**files, **{file: "under_oom 0\n"})) == 9
    assert oom_kills(root(**files, **{file: "oom 4\noom_kill 2\n"})) == 2
