"""What a worker on a GPU sets before CUDA is touched, unless the suite or the user has; and how it times a case."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterbench.benchmarks import benchmarks
from clusterbench.engine.settling import Rule
from clusterbench.launch.messages import RankFailed, RunCase
from clusterbench.launch.worker import ALLOCATOR, _Worker, cores_of, num_threads
from clusterbench.types import Step, Timing
from tests.ranks import run_ranks

LEGACY = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.fixture(autouse=True)
def variables(monkeypatch: Any) -> None:
    monkeypatch.delenv(ALLOCATOR, raising=False)
    monkeypatch.delenv(LEGACY, raising=False)


def worker_of(ranks_per_gpu: int = 1, environment: Mapping[str, str] | None = None) -> _Worker:
    worker = _Worker.__new__(_Worker)
    worker.start = SimpleNamespace(ranks_per_gpu=ranks_per_gpu, environment=environment or {})  # type: ignore[assignment]
    return worker


def test_what_a_rank_says_is_without_the_secrets_of_its_own_host(monkeypatch: Any) -> None:
    """The head, whose variables are others, wrote it down as it came: into hosts.json, the page and the bundle."""
    monkeypatch.setenv("MY_TOKEN", "plain-words-of-host-two")
    worker, sent = worker_of(), list[RankFailed]()
    worker.channel = SimpleNamespace(send=sent.append)  # type: ignore[assignment]
    worker.place, worker.order, worker._phase = SimpleNamespace(rank=1), SimpleNamespace(host="cb2"), "timed"  # type: ignore[assignment]
    worker.report_failure(RuntimeError("login with plain-words-of-host-two was refused"))
    assert sent[0].reason == "RuntimeError: login with [removed] was refused"


def test_the_allocators_segments_grow(monkeypatch: Any) -> None:
    monkeypatch.setenv(ALLOCATOR, "")
    monkeypatch.delenv(ALLOCATOR)
    worker_of().have_growing_segments()
    assert os.environ[ALLOCATOR] == "expandable_segments:True"


@pytest.mark.parametrize("name", [ALLOCATOR, LEGACY])
def test_the_users_settings_of_the_allocator_stand(monkeypatch: Any, name: str) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:512")
    worker_of().have_growing_segments()
    assert {key: os.environ.get(key) for key in (ALLOCATOR, LEGACY)} == {
        ALLOCATOR: None,
        LEGACY: None,
        name: "max_split_size_mb:512",
    }


def cores(first: int, end: int) -> frozenset[int]:
    return frozenset(range(first, end))


@pytest.mark.parametrize(
    ("others", "each"),
    [
        ([("a", cores(0, 16))] * 4, 4),  # bound by none
        ([("a", cores(0, 16)), ("a", cores(16, 32)), ("a", cores(32, 48)), ("a", cores(48, 64))], 16),
        ([("a", cores(0, 16)), ("a", cores(0, 16)), ("a", cores(16, 32)), ("a", cores(16, 32))], 8),  # to sockets
        ([("a", cores(0, 16)), ("b", cores(0, 16))], 16),  # another host's are others
        ([("a", cores(0, 16))] * 32, 1),
    ],
)
def test_ranks_share_those_cores_of_their_host_that_they_may_all_use(
    others: Sequence[tuple[str, frozenset[int]]], each: int
) -> None:
    """Of a rank to which a launcher had bound 16 cores only a quarter computed, where it saw four GPUs."""
    told = torch.stack([cores_of(host, usable, 64) for host, usable in others])
    assert num_threads(cores_of("a", cores(0, 16), 64), told) == each


def threads_on_a_rank() -> list[int]:
    """Bound by nothing, to four cores of its own, and where the suite says how many threads."""
    import torch.distributed as dist

    rank, given = dist.get_rank(), []
    torch.set_num_threads = given.append
    for usable, environment in (
        (range(8), {}),
        (range(4 * rank, 4 * rank + 4), {}),
        (range(8), {"OMP_NUM_THREADS": "3"}),
    ):
        os.sched_getaffinity = lambda process, usable=usable: set(usable)  # type: ignore[misc]
        worker = worker_of(environment=environment)
        worker.host, worker.world_size = "here", 2
        worker.share_cores()
    return given


@pytest.mark.gloo
def test_ranks_tell_each_other_which_cores_they_may_use_unless_the_suite_says_how_many_threads() -> None:
    assert run_ranks(2, threads_on_a_rank) == [[4, 4], [4, 4]]


@pytest.mark.parametrize(
    ("benchmark", "device", "ranks_per_gpu", "settles"),
    [
        ("matmul", "cuda", 1, True),
        ("device_copy", "cuda", 1, True),
        ("train_step", "cuda", 1, True),
        ("all_reduce", "cuda", 1, False),  # latency bounds it
        ("kernel_launch", "cuda", 1, False),
        ("matmul", "cuda", 2, False),
        ("matmul", "cpu", 1, False),
    ],
)
def test_what_power_bounds_settles_on_gpus(benchmark: str, device: str, ranks_per_gpu: int, settles: bool) -> None:
    worker = worker_of(ranks_per_gpu)
    worker.rig = SimpleNamespace(device=torch.device(device))  # type: ignore[assignment]
    assert worker.settling(benchmarks()[benchmark], {}) == (Rule() if settles else None)
    assert worker.settling(benchmarks()[benchmark], {"settle": False}) is None


def timed_on_a_rank(rule: Rule | None) -> tuple[list[float], Timing, list[str], tuple[int, int]]:
    """A product as a worker times it, on a CPU; and how often by its own count, and by that of the product."""
    import torch.distributed as dist

    from clusterbench.engine.rig import Rig

    worker = worker_of()
    rank, phases = dist.get_rank(), []
    worker.rig = Rig(rank=rank, world_size=2, local_rank=rank, host="here", device=torch.device("cpu"))
    worker.phase = phases.append  # type: ignore[method-assign]
    worker.at = lambda phase: lambda iteration: phases.append(phase)  # type: ignore[method-assign]
    point = {"size": 64, "dtype": "float32", "num_ranks": 2}
    case = RunCase("matmul", point, None, "megatron", 5, 2, True, True, 2)
    step, calls = benchmarks()["matmul"].prepare(worker.rig, point), list[int]()

    def counted() -> None:
        calls.append(1)
        step.run()

    seconds, timing = worker.timed(replace(step, run=counted), case, rule)
    return seconds, timing, phases, (worker.rig.made_calls, len(calls))


@pytest.mark.gloo
def test_ranks_that_settle_time_as_many_samples_and_record_how_they_came_to_it() -> None:
    # products take as long as the machine lets them: any two stretches agree
    rule = Rule(stretch_s=0.02, within=100.0, most_s=5.0, timed_s=0.1, most_samples=50)
    (first, timing, phases, (made, calls)), (second, other, *_) = run_ranks(2, timed_on_a_rank, rule)
    assert made == calls
    assert len(first) == len(second) <= 50
    for own in (timing, other):
        assert own.warm_up is not None
        assert own.warm_up.is_settled
        assert (len(own.warm_up.burst_s), own.warm_up.calls) == (len(timing.warm_up.burst_s), timing.warm_up.calls)
        assert own.ended_s > own.began_s > 1.7e9
    assert sum(first) * timing.warm_up.calls <= timing.ended_s - timing.began_s + 0.01
    assert phases.index("warm") > phases.index("checked")
    assert "checked" not in phases[phases.index("warm") :]


@pytest.mark.gloo
def test_ranks_whose_warm_up_is_counted_time_what_was_asked_for() -> None:
    for seconds, timing, phases, made_and_calls in run_ranks(2, timed_on_a_rank, None):
        assert len(seconds) == 5
        assert made_and_calls == (7, 7)
        assert timing.warm_up is None
        assert phases == ["checked"] * 2 + ["warm"] * 6


def test_ranks_meet_between_warm_up_and_clock() -> None:
    """The first sample would have what a rank waits for one that leaves its warm-up later."""
    worker, order = worker_of(), list[str]()
    worker.rig = SimpleNamespace(  # type: ignore[assignment]
        device=torch.device("cpu"), comm=SimpleNamespace(barrier=lambda: order.append("meet"))
    )
    worker.phase = order.append  # type: ignore[method-assign]
    worker.at = lambda phase: lambda iteration: None  # type: ignore[method-assign]
    case = RunCase("matmul", {}, None, "megatron", 3, 2, True, True, 2)
    worker.timed(Step(lambda: order.append("run"), dict), case, None)
    assert order == ["run"] * 2 + ["meet", "warm"] + ["run"] * 3


def halved_on_a_rank() -> str:
    """What a worker says of a clock that shows half of the seconds."""
    from clusterbench.engine import loop as module
    from clusterbench.engine.rig import Rig
    from clusterbench.errors import WrongResult

    worker, measure = worker_of(), module.measure
    worker.rig = Rig(rank=0, world_size=1, local_rank=0, host="here", device=torch.device("cpu"))
    worker.phase = lambda name: None  # type: ignore[method-assign]
    worker.at = lambda phase: lambda iteration: None  # type: ignore[method-assign]
    module.measure = lambda *asked: [seconds / 2 for seconds in measure(*asked)]
    case = RunCase("matmul", {}, None, "megatron", 5, 0, True, True, 2)
    try:
        worker.timed(Step(lambda: time.sleep(0.01), dict), case, None)
    except WrongResult as error:
        return str(error)
    return "nothing"


@pytest.mark.gloo
def test_a_worker_holds_its_samples_against_its_own_clock() -> None:
    (said,) = run_ranks(1, halved_on_a_rank)
    assert said.startswith("the samples add up to ")
