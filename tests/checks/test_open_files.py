from __future__ import annotations

import pytest

from clusterbench.checks.open_files import OpenFiles
from clusterbench.facts.limits import UNLIMITED, Limits
from tests.facts.machine import laptop, training


def limits(number, **unread):
    return Limits(memlock_bytes=0, open_files=number, stack_bytes=0, processes=0, **unread)


def test_a_thousand_are_found():
    (fault,) = OpenFiles().judge(training(limits(1024))).faults
    assert fault.what == "a process may open 1,024 files, and large jobs need 131,072"
    assert fault.evidence == "/proc/self/limits: Max open files 1024"


@pytest.mark.parametrize(("number", "faults"), [(131_071, 1), (131_072, 0), (UNLIMITED, 0)])
def test_at_the_limit(number, faults):
    assert len(OpenFiles().judge(training(limits(number))).faults) == faults


def test_a_host_that_does_not_train_needs_none():
    assert OpenFiles().judge(laptop(limits(1024))).not_applicable == "neither a GPU nor an RDMA device here"


def test_without_the_file_it_is_not_judged():
    host = training(limits(None, unread={"/proc/self/limits": "is not there"}))
    (said,) = OpenFiles().judge_all([host]).values()
    assert said.unknown[0].why == "/proc/self/limits is not there"
