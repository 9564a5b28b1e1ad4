from __future__ import annotations

import pytest

from clusterbench.checks.stack_size import StackSize
from clusterbench.facts.limits import UNLIMITED, Limits
from tests.facts.machine import laptop, training


def limits(size_bytes, **unread):
    return Limits(memlock_bytes=0, open_files=0, stack_bytes=size_bytes, processes=0, **unread)


@pytest.mark.parametrize(
    ("size_bytes", "what"),
    [
        (UNLIMITED, "the stack has no limit, for which glibc gives threads 2 MiB; NCCL needs 8 MiB"),
        (2**20, "the stack is limited to 1 MiB; NCCL needs 8 MiB"),
    ],
)
def test_no_limit_and_a_small_one_are_found(size_bytes, what):
    (fault,) = StackSize().judge(training(limits(size_bytes))).faults
    assert fault.what == what


def test_eight_mebibytes_and_more_are_in_order():
    assert StackSize().judge(training(limits(8 * 2**20))).healthy == "stack: 8 MiB"
    assert StackSize().judge(training(limits(64 * 2**20))).healthy == "stack: 64 MiB"


def test_a_host_that_does_not_train_is_not_asked():
    assert StackSize().judge(laptop(limits(UNLIMITED))).not_applicable


def test_without_the_file_it_is_not_judged():
    host = training(limits(None, unread={"/proc/self/limits": "is not there"}))
    (said,) = StackSize().judge_all([host]).values()
    assert said.unknown[0].why == "/proc/self/limits is not there"
