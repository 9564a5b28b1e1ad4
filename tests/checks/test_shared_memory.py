from __future__ import annotations

import pytest

from clusterbench.checks.shared_memory import SharedMemoryCheck
from clusterbench.facts import Files
from clusterbench.facts.shared_memory import SharedMemory
from tests.facts.machine import laptop, training

GIB = 2**30


def judged(size_bytes, free_bytes):
    return SharedMemoryCheck().judge(training(SharedMemory(size_bytes=size_bytes, free_bytes=free_bytes)))


def test_what_docker_gives_unasked_is_found():
    (fault,) = judged(64 * 2**20, 64 * 2**20).faults
    assert fault.what == "shared memory is 64 MiB, and NCCL and data loaders need 8 GiB"
    assert fault.evidence == "/dev/shm: 64 MiB, 64 MiB free"


def test_what_jobs_left_behind_is_found():
    (fault,) = judged(64 * GIB, GIB // 2).faults
    assert fault.what == "of 64 GiB of shared memory only 512 MiB are free"


@pytest.mark.parametrize(
    ("size", "free", "faults"), [(8 * GIB, GIB, 0), (8 * GIB - 1, 8 * GIB - 1, 1), (8 * GIB, GIB - 1, 1)]
)
def test_at_the_bounds(size, free, faults):
    assert len(judged(size, free).faults) == faults


def test_a_host_without_it_is_not_judged(tmp_path):
    (said,) = SharedMemoryCheck().judge_all([training(SharedMemory.read(Files(tmp_path)))]).values()
    assert said.unknown[0].why == "/dev/shm could not be looked at: No such file or directory"


def test_a_host_that_does_not_train_is_not_asked():
    assert SharedMemoryCheck().judge(laptop(SharedMemory(size_bytes=1, free_bytes=1))).not_applicable


def test_the_size_is_that_of_the_file_system(tmp_path):
    (tmp_path / "dev/shm").mkdir(parents=True)
    read = SharedMemory.read(Files(tmp_path))
    assert 0 <= read.free_bytes <= read.size_bytes
