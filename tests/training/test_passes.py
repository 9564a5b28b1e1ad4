"""What a rank records of a step beside its time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterbench.engine import memory
from clusterbench.engine.flops import FlopCounter
from clusterbench.engine.traffic import Collective, TrafficCounter
from clusterbench.errors import WrongResult
from clusterbench.run_folder.passes import OWN_SECONDS
from clusterbench.training import passes
from clusterbench.training.step import TrainingStep


class Built:
    """A step of nothing: what :func:`passes._memory_of` asks of one."""

    num_steps = 3
    modules: tuple[Any, ...] = ()
    optimizers: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.retries = 2

    def __call__(self) -> None:
        self.retries += 1


def memory_of(monkeypatch: pytest.MonkeyPatch, device: str, counts: bool = True) -> dict[str, int]:
    built = Built()

    def told(_: object) -> dict[str, int]:
        peaks = {"allocated_bytes.all.peak": 5, "reserved_bytes.all.peak": 8}
        return {**peaks, "num_alloc_retries": built.retries} if counts else peaks

    monkeypatch.setattr(memory, "_with_index", lambda named: named)  # there is no such device here
    monkeypatch.setattr(torch.cuda, "memory_stats", told)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    rig: Any = SimpleNamespace(device=torch.device(device), world_size=1)
    return passes._memory_of(built, rig, {})  # type: ignore[arg-type]


def test_a_peak_that_is_too_large_is_taken_again_and_the_least_of_three_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = iter([150, 120, 100, 90])
    monkeypatch.setattr(passes, "_tracked", lambda step, rig: {"total": next(sizes), "activations": 7})
    comm = SimpleNamespace(all_reduce=lambda flag, op: None)
    rig: Any = SimpleNamespace(device=torch.device("cpu"), world_size=2, comm=comm)
    assert passes._memory_of(Built(), rig, {"total": 119.5})["total"] == 120  # type: ignore[arg-type]
    assert passes._memory_of(Built(), rig, {"total": 100.0})["total"] == 100  # type: ignore[arg-type]


def test_emptied_caches_are_those_of_the_steps_before_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = memory_of(monkeypatch, "cuda:0")
    assert (seen["num_alloc_retries"], seen["allocated"], seen["reserved"]) == (2, 5, 8)


def test_an_allocator_that_does_not_count_them_and_a_cpu_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "num_alloc_retries" not in memory_of(monkeypatch, "cuda:0", counts=False)
    assert not {"num_alloc_retries", "allocated"} & memory_of(monkeypatch, "cpu").keys()


def of_a_step_that_sends(*dtypes: str, gradient_bytes: int = 0) -> list[passes.Moved]:
    counter = TrafficCounter()

    def step() -> None:
        counter.collectives += [Collective("reduce_scatter", "dp", 1000, dtype, 2) for dtype in dtypes]

    step.modules, step.job = (), SimpleNamespace(layout="dp2+zero2")  # type: ignore[attr-defined]
    moved = passes._traffic_of(step, counter, FlopCounter())  # type: ignore[arg-type]
    passes._expect_whole_gradients(step, counter, gradient_bytes)  # type: ignore[arg-type]
    return moved


def test_float16_is_as_many_bytes_as_bfloat16_and_nobody_asked_for_it() -> None:
    (moved,) = of_a_step_that_sends("bfloat16", "float32", "uint8", "int64")
    assert moved.count == 4
    with pytest.raises(WrongResult, match=r"sends float16 along dp on rank 0 \(reduce_scatter\)"):
        of_a_step_that_sends("bfloat16", "float16")


def test_gradients_are_summed_over_dp_in_as_many_bytes_as_were_asked_for() -> None:
    of_a_step_that_sends("float32", "uint8", gradient_bytes=4)
    of_a_step_that_sends("bfloat16", gradient_bytes=2)
    with pytest.raises(WrongResult, match=r"sums bfloat16 over dp on rank 0 \(reduce_scatter\), and .* 4 bytes"):
        of_a_step_that_sends("float32", "bfloat16", gradient_bytes=4)


class Keeping:
    """A step whose calls leave so many bytes each; the second of two ranks says what the first one does."""

    job = SimpleNamespace(layout="dp2")

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.kept = list(sizes), list[torch.Tensor]()

    def __call__(self) -> None:
        self.kept.append(torch.empty(self.sizes.pop(0), dtype=torch.uint8))


def said_of(*sizes: int) -> str:
    step: Any = Keeping(*sizes)
    rig: Any = SimpleNamespace(
        device=torch.device("cpu"), world_size=2, rank=1, comm=SimpleNamespace(all_reduce=lambda more: None)
    )
    before = memory.alive_bytes(rig.device)
    step()
    try:
        passes._expect_let_go(step, rig, before)
    except WrongResult as error:
        return str(error)
    return f"{len(step.kept)} steps"


def test_a_step_that_keeps_more_each_time_is_wrong() -> None:
    assert said_of(5000, 6000, 7000).startswith("dp2 keeps 5000B more with each step on rank 1: ")


def test_what_one_step_leaves_or_a_scalar_of_each_is_no_growth() -> None:
    assert said_of(8, 8, 8) == "1 steps"
    assert said_of(5000, 8, 8) == "2 steps"
    assert said_of(5000, 5000, 0) == "3 steps"


def test_a_view_and_what_it_is_of_are_the_same_bytes() -> None:
    device = torch.device("cpu")
    before = memory.alive_bytes(device)
    whole = torch.empty(3000, dtype=torch.uint8)
    views = [whole[:10], whole.view(30, 100)]
    assert memory.alive_bytes(device) - before == 3000
    del whole, views
    assert memory.alive_bytes(device) == before


def test_what_a_compiler_imagines_has_no_bytes() -> None:
    """A case with layers compiled for any length failed, as the sizes that Dynamo keeps are symbols."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    before = memory.alive_bytes(torch.device("cpu"))
    kept = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.zeros(7, 5), static_shapes=False)
    assert memory.alive_bytes(torch.device("cpu")) == before
    assert str(kept.device) == "cpu"


def test_steps_that_build_say_nothing_of_a_ranks_own_work() -> None:
    rig: Any = SimpleNamespace(
        device=torch.device("cpu"), world_size=2, own_steps=2, most_spans=0, grid=SimpleNamespace(names=dict)
    )
    step: Any = SimpleNamespace(own_passes=lambda rig: {})
    own_seconds = passes.passes_of(step, rig, own_s=[9.0, 8.0, 0.25, 0.5])[OWN_SECONDS.name]
    assert own_seconds() == [0.25, 0.5]


def test_ranks_meet_before_the_actions_of_a_pipeline_are_timed() -> None:
    order = list[str]()
    step: Any = SimpleNamespace(
        assembly=SimpleNamespace(stages=SimpleNamespace(timeline=lambda _: order.append("timed")))
    )
    rig: Any = SimpleNamespace(comm=SimpleNamespace(barrier=lambda: order.append("meet")))
    TrainingStep._timeline(step, rig)
    assert order == ["meet", "timed"]
