"""Compiled layers compute what plain ones do, and are refused where torch cannot compile them."""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

import pytest

import clusterbench.parallel.recompute
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Parallelism, from_options
from clusterbench.parallel.compile import Compile
from clusterbench.parallel.context import ContextParallel
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.parallel.recompute import Recompute
from tests.ranks import run_ranks
from tests.training.jobs import Case, Together, make_job, make_rig, name_of, parity_of

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, with which torch compiles on a CPU")


CHOICES = ("none", "selective", "full")
COMPILED = {"compile": True}
MOE = {"shape": "moe-shared-tiny"}

CASES: list[Case] = [
    *(("tp1", {**COMPILED, "recompute": recompute}, {"dtype": "bfloat16"}) for recompute in CHOICES),
    ("tp1", {**COMPILED, "recompute": "full"}, {**MOE, "dtype": "float32"}),
    ("dp2+zero3", {**COMPILED, "recompute": "full"}, {"dtype": "bfloat16"}),
    ("pp2", {**COMPILED, "recompute": "selective"}, {"dtype": "float32"}),
    ("cp2", {**COMPILED, "recompute": "full", "context": "ring"}, {"dtype": "bfloat16"}),
    ("cp2", {**COMPILED, "recompute": "selective", "context": "all_gather"}, {"dtype": "bfloat16"}),
    ("dp2+ep2", {**COMPILED, "routing": "real"}, {**MOE, "dtype": "bfloat16"}),
]


def compiled(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    """What the confirmation says of a compiled step, or why it is wrong."""
    return confirmation_of(layout, options, changes)


def compiled_around(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    """The same where each layer's forward is torch's checkpoint itself."""
    from torch.utils.checkpoint import checkpoint

    def around(forward: Any, _: Any) -> Any:
        return partial(checkpoint, forward, use_reentrant=False)

    clusterbench.parallel.recompute._checkpointed = around
    return confirmation_of(layout, options, changes)


def confirmation_of(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    from clusterbench.errors import WrongResult
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, **changes)
    rig = make_rig(job.layout)
    timed = TimedStep(TrainingStep(job, from_options(options), rig.grid, rig.device))
    try:
        timed()
        timed()
        return timed.confirm(rig, is_first=True)
    except WrongResult as error:
        return str(error)


of_ranks = Together(compiled, CASES)


@pytest.mark.gloo
@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_layers_are_compiled_in_one_piece(case: Case) -> None:
    for confirmed in of_ranks(case):
        assert confirmed["compiled_frames"] >= 1
        assert confirmed["graph_breaks"] == 0


@pytest.mark.gloo
@needs_compiler
def test_a_step_is_wrong_of_which_nothing_was_compiled() -> None:
    options = {**COMPILED, "recompute": "full"}
    assert run_ranks(1, compiled_around, "tp1", options, {"dtype": "float32"}, timeout_s=300) == [
        "tp1 was to be compiled, and nothing was on rank 0: torch.compile left every layer as it is. The time is that "
        "of a plain step."
    ]


@pytest.mark.gloo
@needs_compiler
@pytest.mark.parametrize("recompute", CHOICES)
def test_a_compiled_step_equals_a_plain_one(recompute: str) -> None:
    options = {**COMPILED, "recompute": recompute}
    evidence = run_ranks(1, parity_of, "tp1", options, {"dtype": "float32"}, timeout_s=300)[0]
    assert evidence["parity_gradients"] < 1e-5


@pytest.mark.gloo
@needs_compiler
@pytest.mark.parametrize(("layout", "changes"), [("tp1", MOE), ("dp2", {})], ids=["experts", "several buckets of DDP"])
def test_compiled_steps_of_other_kinds_equal_plain_ones(layout: str, changes: dict[str, Any]) -> None:
    world_size = ParallelLayout.parse(layout).world_size
    for evidence in run_ranks(world_size, parity_of, layout, COMPILED, {**changes, "dtype": "float32"}, timeout_s=300):
        assert evidence["parity_gradients"] < 1e-5


def test_what_cannot_be_compiled_is_said() -> None:
    assert Compile(compile=True).objection(make_job("tp2")) == (
        "compile and tp2: layers see their parts of the weights as DTensors that are made outside of them, which "
        "torch.compile cannot trace"
    )
    clash = Compile(compile=True).clash(make_job("pp2"), [Pipeline(schedule="zbv")])
    assert clash == "compile and zbv: it splits backward, which compiled layers have in one piece"
    assert Compile(compile=True).clash(make_job("pp2"), [Pipeline(schedule="1f1b")]) is None


@pytest.mark.parametrize(
    ("job", "others", "parts"),
    [
        (make_job("tp1", **MOE), [], "experts"),
        (make_job("cp2"), [ContextParallel(context="zigzag")], "context zigzag"),
    ],
)
def test_results_within_compiled_parts_are_not_kept(job: TrainingJob, others: list[Parallelism], parts: str) -> None:
    assert Compile(compile=True).clash(job, [*others, Recompute(recompute="selective")]) == (
        f"compile and recompute selective with {parts}: layers are then compiled in parts, of which single results "
        "cannot be kept; recompute full can be compiled"
    )
    assert Compile(compile=True).clash(job, [*others, Recompute(recompute="full")]) is None
