from __future__ import annotations

import pytest

from clusterbench.checks.open_files import OpenFiles
from clusterbench.facts.infiniband import Device, Infiniband
from clusterbench.facts.limits import UNLIMITED, Limits
from tests.facts.machine import laptop, training


def limits(number, **unread):
    return Limits(memlock_bytes=0, open_files=number, stack_bytes=0, processes=0, **unread)


RDMA = Infiniband(
    devices=(Device("mlx5_0", "0000:1a:00.0", "1: CA", None, None, None, None, "mlx5_core", ()),), ports=()
)


def test_a_thousand_are_found():
    (fault,) = OpenFiles().judge(training(limits(1024), RDMA)).faults
    assert fault.what == "a process may open 1,024 files, and large jobs need 131,072"
    assert fault.evidence == "/proc/self/limits: Max open files 1024"


@pytest.mark.parametrize(("number", "faults"), [(131_071, 1), (131_072, 0), (UNLIMITED, 0)])
def test_at_the_limit(number, faults):
    assert len(OpenFiles().judge(training(limits(number), RDMA)).faults) == faults


@pytest.mark.parametrize(("number", "faults"), [(8_191, 1), (8_192, 0), (20_000, 0)])
def test_a_host_without_rdma_runs_no_large_job(number, faults):
    """A virtual machine with one H200 and a limit of 20,000 was called unfit for want of 131,072."""
    found = OpenFiles().judge(training(limits(number))).faults
    assert [fault.what for fault in found] == faults * [
        "a process may open 8,191 files, and jobs of one node may need 8,192"
    ]


def test_a_host_that_does_not_train_needs_none():
    assert OpenFiles().judge(laptop(limits(1024))).not_applicable == "neither a GPU nor an RDMA device here"


def test_without_the_file_it_is_not_judged():
    host = training(limits(None, unread={"/proc/self/limits": "is not there"}))
    (said,) = OpenFiles().judge_all([host]).values()
    assert said.unknown[0].why == "/proc/self/limits is not there"
