"""What the tests of training and parallel run on Gloo ranks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from queue import Empty
from typing import Any

from clusterbench import parallel
from clusterbench.expected.flops import executed_by_rank
from clusterbench.expected.memory import OF_TOTAL, TOTAL, held_memory
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Parallelism, active_in, expected_traffic, from_options, part_of
from clusterbench.shape import named_shape
from clusterbench.trainers import trainers
from tests.ranks import run_ranks

Case = tuple[str, dict[str, Any], dict[str, Any]]
"""A layout, the options of its parallelisms, and what the job has other than :func:`make_job` says."""

TINY_VARIANTS: dict[str, dict[str, Any]] = {
    "llama-tiny-tied": {"tied_embeddings": True},
    "llama-tiny-mqa": {"num_kv_heads": 1},
    "llama-tiny-mha": {"num_kv_heads": 8},
    "llama-tiny-deep": {"num_layers": 8},
    "llama-tiny-five": {"num_layers": 5},
    "llama-tiny-six": {"num_layers": 6},
    "llama-tiny-seven": {"num_layers": 7},
    "llama-tiny-narrow": {"head_dim": 8},
    "llama-tiny-uneven": {"head_dim": 10, "num_kv_heads": 8},
    "llama-tiny-wide": {"hidden_size": 32, "num_kv_heads": 8, "ffn_hidden_size": 64, "vocab_size": 64},
    "llama-tiny-single": {"num_heads": 1, "num_kv_heads": 1, "head_dim": 4, "hidden_size": 16},
    "llama-tiny-switch": {"num_experts": 4, "experts_per_token": 1},
    "llama-tiny-16": {"num_layers": 16, "hidden_size": 64, "num_heads": 2, "num_kv_heads": 2, "ffn_hidden_size": 128},
    "llama-tiny-pair": {"num_experts": 2, "experts_per_token": 2},
    "llama-tiny-lone": {"num_experts": 1, "experts_per_token": 1},
    "llama-tiny-odd": {"num_experts": 4, "experts_per_token": 1, "hidden_size": 100, "ffn_hidden_size": 66},
}


def make_job(layout: str = "tp1", **changes: Any) -> TrainingJob:
    """Two micro-batches of two sequences of 16 tokens per dp rank, on llama-tiny in float64."""
    parsed = ParallelLayout.parse(layout)
    values: dict[str, Any] = {
        "seq_len": 16,
        "global_batch_size": 4 * parsed.dp,
        "micro_batch_size": 2,
        "dtype": "float64",
        **changes,
    }
    values.pop("rank_order", None)
    name = values.pop("shape", "llama-tiny")
    shape = replace(named_shape("llama-tiny"), **TINY_VARIANTS[name]) if name in TINY_VARIANTS else named_shape(name)
    return TrainingJob(shape, parsed, **values)


def objection_to(case: Case) -> str | None:
    """Why a case would not be run, as a plan says it; None for one that would."""
    layout, options, changes = case
    job = make_job(layout, **changes)
    every = active_in(job.layout, from_options(options))
    return parallel.objection_to(job, every)


def name_of(case: Case) -> str:
    """As a test is called."""
    layout, options, changes = case
    return " ".join([layout, *(f"{key}={value}" for key, value in {**options, **changes}.items())])


class Together:
    """What a function of this module says of each case on every rank.

    Cases of as many ranks run in one start, when the first of them is asked for: starting ranks takes longer than most.
    Where ranks of a start fail, each of its cases has a start of its own: a failure is that of one case, and a rank
    that died in Gloo's own thread, as one did in an hour of tests, is that of none.
    """

    def __init__(self, function: Callable[..., Any], cases: Sequence[Case], at_once: int = 12) -> None:
        self.function, self.at_once = function, at_once
        self.names: dict[int, list[str]] = {}
        self.cases = {name_of(case): case for case in cases}
        assert len(self.cases) == len(cases), "a case is there twice"
        for name, (layout, _, _) in self.cases.items():
            self.names.setdefault(ParallelLayout.parse(layout).world_size, []).append(name)
        self.found: dict[str, list[Any] | BaseException] = {}
        self.alone: set[str] = set()

    def __call__(self, case: Case) -> list[Any]:
        name = name_of(case)
        world_size = ParallelLayout.parse(case[0]).world_size
        if name not in self.found and name not in self.alone:
            at = self.names[world_size].index(name) // self.at_once * self.at_once
            self._run(world_size, self.names[world_size][at : at + self.at_once])
        if name not in self.found:
            self._run(world_size, [name])
        found = self.found[name]
        if isinstance(found, BaseException):
            raise found
        return found

    def _run(self, world_size: int, names: Sequence[str]) -> None:
        try:
            ranks = run_ranks(world_size, each, self.function, [self.cases[name] for name in names], timeout_s=280)
        except AssertionError as error:
            if len(names) == 1:
                self.found[names[0]] = error
            self.alone.update(names)
        except Empty as error:  # a start that hangs is that of all of them
            self.found |= dict.fromkeys(names, error)
        else:
            self.found |= {name: [rank[index] for rank in ranks] for index, name in enumerate(names)}


# On the ranks


def each(function: Callable[..., Any], cases: Sequence[Case]) -> list[Any]:
    """What a function says of some cases, one after the other."""
    found = []
    for case in cases:
        try:
            found.append(function(*case))
        except BaseException as error:
            error.add_note(f"in {name_of(case)}")
            raise
        gc.collect()
    return found


@cache
def make_rig(layout: ParallelLayout, rank_order: str = "megatron") -> Any:
    """The rig of this rank, with the layout's groups."""
    import torch
    import torch.distributed as dist

    from clusterbench.engine.rig import Rig

    rank = dist.get_rank()
    rig = Rig(rank=rank, world_size=dist.get_world_size(), local_rank=rank, host="here", device=torch.device("cpu"))
    rig.build_grid(layout, rank_order)
    assert rig.grid is not None
    _names.update(rig.grid.names())
    return rig


_names: dict[str, str] = {}
"""Axes of all groups of this process. DTensor remembers how it went from one placement to another, for all meshes that
are equal, so a second grid's tensors may travel in a group of the first."""


def traffic_counter(rig: Any) -> Any:
    """Counts what is sent in groups of this and of earlier rigs."""
    from clusterbench.engine.traffic import TrafficCounter

    return TrafficCounter({**_names, **rig.grid.names()})


@cache
def remember_one_rank() -> None:
    """Has the proof run a twin on one rank once for all cases of a start: what tests break are steps on many."""
    from clusterbench.proof import parity

    parity._on_one_rank = cache(parity._on_one_rank)


def parity_of(
    layout: str, options: dict[str, Any], changes: dict[str, Any], trainer: str = "ours"
) -> dict[str, float] | str:
    """The evidence of a layout, or the sentence with which it was found wrong."""
    from clusterbench.errors import WrongResult
    from clusterbench.proof import parity

    remember_one_rank()
    job = make_job(layout, **changes)
    rig = make_rig(job.layout, changes.get("rank_order", "megatron"))
    try:
        return parity.check_parity(trainers()[trainer](), job, from_options(options), rig.grid, rig.device)
    except WrongResult as error:
        return str(error)


def steps_to_settle(step: Any) -> int:
    """After how many steps the next is like all that follow: what is not DDP is built in the first."""
    from torch.nn.parallel import DistributedDataParallel

    from clusterbench.training.passes import STEPS_TO_SETTLE

    return STEPS_TO_SETTLE if isinstance(step.model, DistributedDataParallel) else 1


Totals = dict[tuple[str, str], tuple[int, int]]


def traffic_of(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> tuple[Totals, Totals]:
    """Counted and expected collectives of one step: (axis, op) -> calls and bytes."""
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, **changes)
    rig, every = make_rig(job.layout), from_options(options)
    step = TrainingStep(job, every, rig.grid, rig.device)
    for _ in range(steps_to_settle(step)):
        step()
    with traffic_counter(rig) as counter:
        step()
    counted = {key: (total.count, total.size_bytes) for key, total in counter.totals().items()}
    return counted, expected(job, every, rig.grid.rank("pp"))


def expected(job: TrainingJob, every: tuple[Parallelism, ...], pp_rank: int) -> Totals:
    active = active_in(job.layout, every)
    job = part_of(job, active, pp_rank)
    return {(sent.axis, sent.op): (sent.count, sent.size_bytes) for sent in expected_traffic(active, job)}


Flops = dict[tuple[str, str], int]


def flops_of(
    layout: str, options: dict[str, Any], changes: dict[str, Any], trainer: str = "ours"
) -> tuple[Flops, Flops]:
    """Counted and expected FLOPs of one step of this rank: (kind, forward or backward) -> FLOPs."""
    from clusterbench.engine.flops import FlopCounter

    job = make_job(layout, **changes)
    rig, every = make_rig(job.layout, changes.get("rank_order", "megatron")), from_options(options)
    step = trainers()[trainer]().build(job, every, rig.grid, rig.device)
    step()
    with FlopCounter() as counter:
        step()
    counted: Flops = {}
    for executed in counter.executed():
        work = executed.kind, executed.during
        counted[work] = counted.get(work, 0) + executed.flops
    active = active_in(job.layout, every)
    return counted, dict(executed_by_rank(active, step.job, rig.grid.rank("cp")))


def fits(peak: Mapping[str, int], formula: Mapping[str, float], less: float, more: float) -> bool:
    """Whether a rank held what is expected, and in all no more than that."""
    held = formula["activations"]
    exact = [name for name in formula if name not in (TOTAL, "activations")]
    return (
        all(abs(peak[name] - formula[name]) <= SCALARS_BYTES for name in exact)
        and held * (1 + less) - SCALARS_BYTES <= peak["activations"] <= held * (1 + more) + SCALARS_BYTES
        and peak[TOTAL] <= formula[TOTAL] * (1 + OF_TOTAL)
    )


SCALARS_BYTES = 512
"""Losses, and a few numbers in each layer with experts."""


def memory_of(
    layout: str, options: dict[str, Any], changes: dict[str, Any], less: float = 0.0, more: float = 0.0
) -> tuple[dict[str, int], dict[str, float]]:
    """Tracked and expected peaks of one step, by category and in all.

    The least of three, as Gloo may let go of a buffer late.

    Fewer than three where every rank held what is expected to the byte, but for scalars and for a share of activations
    that may be ``less`` or ``more``, or the same twice.
    """
    import torch
    import torch.distributed as dist

    from clusterbench.engine.memory import MemoryTracker
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, **changes)
    rig, every = make_rig(job.layout), from_options(options)
    step = TrainingStep(job, every, rig.grid, rig.device)
    for _ in range(steps_to_settle(step)):
        step()
    formula = held_memory(active_in(job.layout, every), step.job)
    peaks: list[dict[str, int]] = []
    for _ in range(3):
        with MemoryTracker(step.assembly.decoders, step.optimizers) as tracker:
            step()
        seen = tracker.peak()
        peak = {**seen.peak_by_category, TOTAL: seen.total_bytes}
        is_sure = peak in peaks or fits(peak, formula, less, more)
        peaks.append(peak)
        unsure = torch.tensor(int(not is_sure))
        dist.all_reduce(unsure)
        if not unsure:
            break
    tracked = {category: min(peak[category] for peak in peaks) for category in peaks[0]}
    return tracked, formula
