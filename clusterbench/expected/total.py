"""What a rank holds when it holds most: all categories at one moment, not each at a moment of its own; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import NamedTuple

from clusterbench.formulas.schedules import Full, Kind
from clusterbench.job import CAST_AT_ONCE, Chunk, Dtypes, TrainingJob, has_copy, is_spread_expert, kept_bytes
from clusterbench.job.backward import OF_FORWARD, Group, Moment, Sharding, Weight, moments_of_backward
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import (
    SUM_ORDER,
    Parallelism,
    expected_states,
    held_all_step,
    held_sizes,
    held_weights,
    moments_by_chunk,
    split_over,
    with_own,
)
from clusterbench.parallel.data import DataParallel
from clusterbench.parallel.expert import ExpertParallel
from clusterbench.parallel.fsdp import FullySharded
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.shape import ModelShape


def fullest_moment(active: Sequence[Parallelism], job: TrainingJob) -> Moment:
    """When a rank holds most, and how many bytes of all categories that is.

    Parameters
    ----------
    job
        Of the rank: see :func:`clusterbench.parallel.part_of`.
    """
    found = _of_step(active, job, _Way.fullest)
    beside, (when, held) = max(found, key=lambda each: each[0] + each[1].held)
    return Moment(when, beside + held + _between_steps(active, job))


def moments(active: Sequence[Parallelism], job: TrainingJob) -> list[Moment]:
    """Every moment at which most may be held, with the bytes of all categories.

    Each grows along a line with the sequence: whatever the length, they are as many, in the same order.
    """
    there = _between_steps(active, job)
    return [Moment(when, beside + held + there) for beside, (when, held) in _of_step(active, job, _Way.every)]


class _Way(NamedTuple):
    """The moments of one micro-batch on its way through some layers: of its forward, and of its backward."""

    forward: Sequence[Moment]
    backward: Sequence[Moment]
    most_in_forward: Moment
    most_in_backward: Moment

    def every(self, kind: Kind) -> Sequence[Moment]:
        """Those of an action."""
        return self.forward if kind == "F" else self.backward

    def fullest(self, kind: Kind) -> Sequence[Moment]:
        """Of those of an action the one at which most is held, whatever else there is."""
        return [self.most_in_forward if kind == "F" else self.most_in_backward]


Chosen = Callable[[_Way, Kind], Sequence[Moment]]


def _between_steps(active: Sequence[Parallelism], job: TrainingJob) -> float:
    states = expected_states(active, job)
    return states["parameters"] + states["optimizer_state"] + held_all_step(job)


def _of_step(active: Sequence[Parallelism], job: TrainingJob, chosen: Chosen) -> Iterator[tuple[float, Moment]]:
    """Moments, each with the bytes that are there beside what it says."""
    pipeline = next((each for each in active if isinstance(each, Pipeline)), None)
    if pipeline is not None:
        yield from _of_schedule(active, job, pipeline, chosen)
        return
    gradients = _gradients(active, job)
    yield gradients, Moment("the sum of gradients over ranks", _largest_sum(active, job))
    yield gradients, Moment("the update", _largest_cast(active, job))
    # DDP never lets go of gradients; else the second micro-batch is the first that finds some
    replicated = next((each for each in active if isinstance(each, DataParallel)), None)
    if replicated is not None:
        yield gradients, Moment("the last bucket of gradients", replicated.largest_buffer(job))
    adds_up = job.gradient_accumulation_steps > 1 or replicated is not None
    way = _of_micro_batch(active, job, job.held[0], adds_up)
    for moment in (*chosen(way, "F"), *chosen(way, "B")):
        yield gradients * adds_up, moment


def _gradients(active: Sequence[Parallelism], job: TrainingJob) -> float:
    return expected_states(active, job)["gradients"]


def _of_schedule(
    active: Sequence[Parallelism], job: TrainingJob, pipeline: Pipeline, chosen: Chosen
) -> Iterator[tuple[float, Moment]]:
    """Moments of a rank of a pipeline: what waits, what the stages have beside it, and one micro-batch on its way."""
    stages = {chunk.stage: _stage(active, of_chunk) for chunk, of_chunk in zip(job.held, job.of_chunks, strict=True)}
    of_stage = {chunk.stage: chunk for chunk in job.held}
    moments_of = moments_by_chunk(active, job, messages=True)
    held, actions = pipeline.beside(job, moments_of), pipeline.actions(job)
    unread = pipeline.buffers(job) - pipeline.kept_inputs(job, moments_of)

    @cache
    def way(stage: int, adds_up: bool) -> _Way:
        return _of_micro_batch(active, job, of_stage[stage], adds_up)

    def beside(at: Full) -> float:
        of_stages = sum([of.beside(at, at.stage == stage) for stage, of in stages.items()])
        return unread + held(at) + pipeline.sent_back(job, at) + of_stages

    for at in actions.full:
        adds_up = at.stage in at.graded and not stages[at.stage].unreduced
        there = beside(at)
        for moment in chosen(way(at.stage, adds_up), at.kind):
            yield there, moment
    for at in actions.ends:
        if (sharding := stages[at.stage].sharding) is not None:
            unsummed = _of_reduction(sharding, len(of_stage[at.stage].layers))
            yield beside(at), Moment("the reduction of a stage", stages[at.stage].unreduced + unsummed)
    gradients = sum(of.reduced for of in stages.values()) + pipeline.buffers(job)
    yield gradients, Moment("the sum of gradients over ranks", _largest_sum(active, job))
    yield gradients, Moment("the update", _largest_cast(active, job))


@dataclass(frozen=True)
class _Stage:
    """Bytes of one stage beside what micro-batches hold of it.

    Attributes
    ----------
    stage
        Its place among all.
    gathered
        Weights, where they are gathered for it.
    gradients, reduced
        While they add up, and when all are there.
    unreduced
        Gradients of one micro-batch, where each is reduced alone.
    """

    stage: int
    sharding: Sharding | None
    gathered: float
    gradients: float
    reduced: float
    unreduced: float

    def beside(self, at: Full, is_own: bool) -> float:
        """At a moment at which it is under way itself, or another."""
        gradients = self.reduced if self.stage in at.over else self.gradients * (self.stage in at.graded)
        if self.sharding is None or self.stage in at.over:
            return gradients
        if is_own:  # a micro-batch on its way has what is gathered for it
            return gradients
        if self.sharding.frees:  # by a forward, and what is around the layers stays
            return gradients + (self.gathered if self.stage in at.behind else self.sharding.root.gathered)
        return gradients + self.gathered * (at.begun.get(self.stage, 0) > 0)


def _of_reduction(sharding: Sharding, num_layers: int) -> float:
    """Bytes beside the gradients of a stage, while its groups are reduced one after the other.

    Of each the weights go first; then there is the buffer, before the gradients go, and then the share and Gloo's copy.
    """
    groups = [sharding.root, *(group for _ in range(num_layers) for group in sharding.layer)]
    alive, most = sum(group.gathered for group in groups), 0.0
    for group in groups:
        alive -= group.gathered
        reduced = alive + group.packed * (1 + sharding.copies) + group.share
        most = max(most, alive + group.packed, reduced - (group.gradients - group.last) * sharding.growth)
        alive += group.share - group.gradients * sharding.growth
    return most


def _stage(active: Sequence[Parallelism], job: TrainingJob) -> _Stage:
    (chunk,) = job.held
    reduced = _gradients(active, job)
    sharding = next((each.sharding(job, chunk) for each in active if isinstance(each, FullySharded)), None)
    if sharding is None:
        return _Stage(chunk.stage, None, 0.0, reduced, reduced, 0.0)

    def total(size: Callable[[Group], float]) -> float:
        return job.num_layers * sum(map(size, sharding.layer)) + size(sharding.root)

    gathered, whole = total(lambda group: group.gathered), total(lambda group: group.gradients) * sharding.growth
    if not job.actions:
        return _Stage(chunk.stage, sharding, gathered, reduced, reduced, whole)
    never_sharded = reduced - total(lambda group: group.share)
    return _Stage(chunk.stage, sharding, gathered, whole + never_sharded, reduced, 0.0)


def _of_micro_batch(active: Sequence[Parallelism], job: TrainingJob, chunk: Chunk, adds_up: bool) -> _Way:
    is_sharded = any(isinstance(each, FullySharded) for each in active)
    layout = job.layout if is_sharded else job.layout.of_micro_batch
    like = Chunk(0, range(len(chunk.layers)), chunk.first, chunk.last)
    acting = with_own(active, "activations", "moments", "weight")
    batch = job.seq_len, job.micro_batch_size
    return _walked(acting, job.shape, layout, *batch, job.dtypes, job.device, like, adds_up)


@lru_cache(maxsize=4096)  # layouts that differ in dp have the same, and so do the stages between the first and the last
def _walked(
    active: tuple[Parallelism, ...],
    shape: ModelShape,
    layout: ParallelLayout,
    seq_len: int,
    micro_batch_size: int,
    dtypes: Dtypes,
    device: str,
    chunk: Chunk,
    adds_up: bool,
) -> _Way:
    job = TrainingJob.of_chunk(shape, layout, chunk, dtypes, seq_len, micro_batch_size, device)
    forward, *again = moments_by_chunk(active, job, messages=True)(chunk)
    sharding = next((each.sharding(job, chunk) for each in active if isinstance(each, FullySharded)), None)
    repeated = again[0] if again else {}
    weights = _weights(active, shape, layout, dtypes, chunk)
    parts = next((each.parts(job) for each in active if isinstance(each, ExpertParallel)), 1)
    found = moments_of_backward(job, forward, repeated, weights, sharding, adds_up, parts)
    of_forward, backward = found[:OF_FORWARD], found[OF_FORWARD:]
    return _Way(of_forward, backward, max(of_forward, key=_held), max(backward, key=_held))


def _held(moment: Moment) -> float:
    return moment.held


def _largest_sum(active: Sequence[Parallelism], job: TrainingJob) -> float:
    """The largest of the flat buffers in which gradients are summed when backward is over."""
    sizes = dict.fromkeys(SUM_ORDER, 0)
    for weight, number in held_weights(active, job):
        for axis in weight.summed_over:
            sizes[axis] += number * prod(weight.size)
    return float(max(sizes.values()) * kept_bytes("norm.weight", job))


def _largest_cast(active: Sequence[Parallelism], job: TrainingJob) -> float:
    """Bytes of gradients that the optimizer has at once in the dtype of the weights as well: none where all are in it.

    Of :class:`~clusterbench.model.narrow_gradients.NarrowGradientsAdamW`; one with narrower moments is not followed.
    """
    if job.moment_bytes != job.master_bytes:
        return 0.0
    dense, experts = 0, 0  # which have optimizers of their own
    for weight, number in held_weights(active, job):
        if kept_bytes(weight.name, job) != job.master_bytes:
            numel = number * prod(weight.size)
            dense, experts = (dense, experts + numel) if "ep" in weight.split_over else (dense + numel, experts)
    stepped = expected_states(active, job)["optimizer_state"] / (2 * job.moment_bytes)  # with ZeRO 1 a share
    return job.master_bytes * min(max(dense, experts), stepped, CAST_AT_ONCE)


@lru_cache(maxsize=4096)  # they do not grow with the sequence
def _weights(
    active: tuple[Parallelism, ...],
    shape: ModelShape,
    layout: ParallelLayout,
    dtypes: Dtypes,
    chunk: Chunk,
) -> Mapping[str, Weight]:
    """One weight of each kind as a rank multiplies with it."""
    job = TrainingJob.of_chunk(shape, layout, chunk, dtypes)
    cutting = [each for each in active if not isinstance(each, FullySharded)]
    is_sharded, weights = len(cutting) < len(active), {}
    for name, size, _ in held_sizes(cutting, job):
        alone = is_spread_expert(name, job) and job.layout.degree("edp") == 1
        gradient, kept_as = float(prod(size) * job.compute_bytes), float(prod(size) * kept_bytes(name, job))
        # A view as a DTensor that is made once comes last in backward, as autograd goes by age.
        waits = not is_sharded and "tp" in split_over(cutting, name, job) and not has_copy(name, job)
        weights[name] = Weight(gradient, kept_as, is_sharded and not alone, waits)
    return weights
