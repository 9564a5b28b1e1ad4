import gc
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterbench.engine import own_work
from clusterbench.engine.own_work import OwnWork, own_seconds
from clusterbench.engine.trace import Event, device_work_s, work_on_device


def rig(own_steps: int, others_s: float = 0.0) -> Any:
    def all_reduce(elapsed_s: torch.Tensor, op: str) -> None:
        assert op == "max"
        elapsed_s.clamp_(min=others_s)

    return SimpleNamespace(own_steps=own_steps, device=torch.device("cpu"), comm=SimpleNamespace(all_reduce=all_reduce))


def compute(for_s: float) -> None:
    start_s = time.thread_time()
    while time.thread_time() - start_s < for_s:
        pass


def test_waiting_costs_nothing_and_computing_does() -> None:
    def step() -> None:
        compute(0.02)
        time.sleep(0.1)

    seconds = own_seconds(step, rig(3))
    assert len(seconds) == 3
    assert all(0.02 <= second < 0.04 for second in seconds)


def test_steps_that_ran_anyway_count_and_only_those_that_are_missing_run() -> None:
    calls: list[int] = []

    def step() -> None:
        calls.append(1)
        compute(0.02)
        time.sleep(0.05)

    timed = OwnWork(step, torch.device("cpu"))
    for _ in range(4):
        timed()
    seconds = own_seconds(step, rig(3), timed.spent_s[1:])
    assert len(calls) == 4
    assert seconds == [pytest.approx(second, abs=1e-9) for second in timed.spent_s[1:]]
    assert all(0.02 <= second < 0.04 for second in own_seconds(step, rig(6), timed.spent_s))
    assert len(calls) == 6
    assert len(own_seconds(step, rig(10, others_s=21.0), timed.spent_s)) == 4


def test_on_a_device_the_clock_of_the_thread_says_nothing() -> None:
    timed = OwnWork(lambda: None, torch.device("meta"))
    timed()
    assert timed.spent_s == []


def test_no_further_step_begins_when_any_rank_has_taken_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(own_seconds(lambda: None, rig(10, others_s=21.0))) == 1
    monkeypatch.setattr(own_work, "LONGEST_S", 0.05)
    assert len(own_seconds(lambda: time.sleep(0.03), rig(10))) == 2


def test_the_garbage_collector_rests_meanwhile() -> None:
    seen: list[bool] = []
    own_seconds(lambda: seen.append(gc.isenabled()), rig(2))
    assert seen == [False, False]
    assert gc.isenabled()


def kernel(name: str, start_s: float, end_s: float, annotation: bool = False, stream: int = 7) -> Event:
    return Event(name, start_s, end_s, stream, on_device=True, annotation=annotation)


def test_on_a_device_own_work_is_what_no_kernel_of_the_library_does() -> None:
    """A spinning kernel of NCCL, gaps and ranges count nothing; what runs at once counts once."""
    events = [
        kernel("ampere_bf16_gemm", 0.0, 2.0),
        kernel("flash_fwd_kernel", 1.5, 3.0, stream=9),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2.0, 9.0, stream=11),
        kernel("Memcpy PtoP (Device -> Device)", 9.0, 9.5),
        kernel("Memcpy HtoD (Pinned -> Device)", 10.0, 10.5),
        kernel("nccl:all_reduce", 2.0, 9.0, annotation=True),
        kernel("Optimizer.step#AdamW.step", 11.0, 15.0, annotation=True),
        kernel("multi_tensor_apply_kernel", 12.0, 12.25),
    ]
    assert device_work_s(events) == 3.75


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_profiler_sees_the_kernels_of_a_step() -> None:
    x = torch.ones(4096, 4096, device="cuda")
    one = work_on_device(lambda: x @ x, torch.device("cuda"))
    two = work_on_device(lambda: x @ x @ x, torch.device("cuda"))
    assert 1.5 < two / one < 2.5
