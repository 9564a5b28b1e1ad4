from __future__ import annotations

import pytest

from clusterbench.checks.gpu_memory_held import GpuMemoryHeld
from clusterbench.facts.gpus import MEMORY, Process
from tests.checks.gpus import host, only
from tests.facts.healthy.gpus import facts
from tests.facts.machine import training


def test_memory_that_no_process_holds_is_found():
    """A training process was killed in another container, and 60 GiB of its GPU never came back."""
    fault = only(GpuMemoryHeld(), memory_used_bytes=60 * 2**30)
    assert fault.what == "60.0 of 79.6 GiB of its memory are in use by no process that is listed"
    assert fault.evidence == "NVML memory used: 64,424,509,440 B; compute processes: none"


@pytest.mark.parametrize(
    "changed",
    [
        {"processes": (Process(4711, "python", 60 * 2**30),)},
        {"name": "NVIDIA GH200 480GB"},
        {"mig": True},
        {"memory_used_bytes": 600 * 2**20},
    ],
)
def test_what_explains_itself_is_no_fault(changed):
    said = GpuMemoryHeld().judge(host(**({"memory_used_bytes": 60 * 2**30} | changed)))
    assert (said.faults, said.unknown) == ((), ())


def test_a_driver_that_counts_its_own_as_used_is_not_judged():
    said = GpuMemoryHeld().judge(host(memory_used_bytes=None, unread={MEMORY: "is not in this driver"}))
    assert (said.unknown[0].why, said.faults) == (f"{MEMORY} is not in this driver", ())


def test_healthy_gpus_are_in_order():
    said = GpuMemoryHeld().judge(training(facts())).healthy
    assert said == "8 NVIDIA GPUs with memory of their own hold nothing that belongs to no process"
