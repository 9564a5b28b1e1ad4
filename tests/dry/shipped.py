"""The training steps of the shipped suites on GPUs, and the smallest of each kind that goes the same ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from clusterbench.cluster import Found, MachineOptions
from clusterbench.dry import objection
from clusterbench.dry.processes import DryTask
from clusterbench.job import TrainingJob
from clusterbench.launch.dry import plan_of, tasks_of
from clusterbench.layout import AXES, ParallelLayout
from clusterbench.options import options_of
from clusterbench.parallel import active_in
from clusterbench.suite import load_suite

SUITES = Path(__file__).parents[2] / "suites"
MACHINE = MachineOptions(gpu="NVIDIA H200")
MIDDLE = 1  # of the stages between the first and the last


def tasks_of_suites() -> dict[DryTask, str]:
    """Each rank of each case that can be run dry, once, and the first case that it is of."""
    first: dict[DryTask, str] = {}
    for path in sorted(SUITES.glob("*.yaml")):
        suite = load_suite(path)
        if any(item.benchmark == "train_step" for item in suite.items):
            for case in plan_of(suite, MACHINE, Found()).cases:
                for task in tasks_of(case):
                    first.setdefault(task, f"{path.name}: {case.id}")
    return first


def of_each_kind(tasks: Iterable[DryTask], smallest: bool) -> Iterator[tuple[DryTask, DryTask]]:
    """Of tasks that go the same ways the first, with as few layers, micro-batches and copies as that takes.

    Parameters
    ----------
    smallest
        Whether degrees count as alike where all are more than one, down to the least that goes the same ways.
    """
    seen = set()
    for task in tasks:
        few = _fewest(task, smallest)
        shape = few.job.shape
        kind = (few.job.layout, few.every, few.rank, few.job.dtype, shape.has_experts, shape.tied_embeddings)
        if kind not in seen:
            seen.add(kind)
            yield task, few


def pairwise(tasks: Sequence[DryTask]) -> list[DryTask]:
    """Few of them in which each two things that come together in any of them come together."""
    pairs = {task: set(combinations(sorted(_features(task)), 2)) for task in tasks}
    wanted, chosen = set().union(*pairs.values()), []
    while wanted:
        best = max(pairs, key=lambda task: len(pairs[task] & wanted))
        chosen.append(best)
        wanted -= pairs[best]
    return chosen


def _features(task: DryTask) -> set[str]:
    """What of a step decides which code it goes through."""
    layout, shape = task.job.layout, task.job.shape
    used = {axis for axis in AXES if layout.uses(axis)}
    riders = {rider for rider, has in (("sp", layout.sp), ("ep", layout.ep > 1)) if has}
    active = active_in(layout, task.every)
    options = {
        f"{name}={getattr(parallelism, name)}"
        for parallelism in active
        for name in options_of(type(parallelism))
        if parallelism.concerned(layout, shape)
    }
    place = layout.coordinates(task.rank, task.rank_order)["pp"]
    kinds = {f"zero{layout.zero}", f"stage{place}of{layout.pp}", f"tied={shape.tied_embeddings}", task.job.dtype}
    return used | riders | options | kinds | {f"experts={shape.has_experts}", task.rank_order}


def _fewest(task: DryTask, smallest: bool) -> DryTask:
    layout = task.job.layout
    pp_rank = layout.coordinates(task.rank, task.rank_order)["pp"]
    for smaller in _smaller(task.job, smallest):
        if objection(job := _shortest(task, smaller), task.every) is None:
            pp = smaller.pp
            at = 0 if pp_rank == 0 else pp - 1 if pp_rank == layout.pp - 1 else min(MIDDLE, pp - 1)
            places = (smaller.coordinates(rank, task.rank_order)["pp"] for rank in range(smaller.world_size))
            return replace(task, job=job, rank=list(places).index(at))
    raise AssertionError(f"not even {layout} itself can be")


def _smaller(job: TrainingJob, smallest: bool) -> Iterator[ParallelLayout]:
    """Layouts with the same axes, the smallest first and the job's own last."""
    layout = job.layout
    tp = [2] if layout.tp > 1 and layout.tp <= job.shape.num_kv_heads else []
    cp, pp = [2] * (layout.cp > 1), [4] * (layout.pp > 4)
    for fewer_tp in (*(tp if smallest else []), layout.tp):
        for fewer_cp in (*(cp if smallest else []), layout.cp):
            for fewer_pp in (*(pp if smallest else []), layout.pp):
                for dp in (dp for dp in range(min(2, layout.dp), layout.dp + 1) if layout.dp % dp == 0):
                    if dp * fewer_cp % layout.ep == 0:
                        yield replace(layout, tp=fewer_tp, cp=fewer_cp, pp=fewer_pp, dp=dp)


def _shortest(task: DryTask, layout: ParallelLayout) -> TrainingJob:
    """The step in a layout with the fewest layers and micro-batches that go through all of its schedule."""
    job = replace(task.job, layout=layout)
    twins = [parallelism.twin(job) for parallelism in active_in(layout, task.every)]
    micro_batches = max(twin.micro_batches for twin in twins) if layout.uses("pp") else 2
    return replace(
        job,
        shape=replace(job.shape, num_layers=max(twin.num_layers for twin in twins)),
        micro_batch_size=1,
        global_batch_size=layout.dp * micro_batches,
    )
