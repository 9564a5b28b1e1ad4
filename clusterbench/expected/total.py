"""What a rank holds when it holds most: all categories at one moment, not each at a moment of its own; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import NamedTuple

from clusterbench.formulas.schedules.memory import Full
from clusterbench.formulas.schedules.orders import Kind
from clusterbench.job import CAST_AT_ONCE, Chunk, Dtypes, TrainingJob, has_copy, is_spread_expert, kept_bytes
from clusterbench.job.backward import OF_FORWARD, Group, Moment, Sharding, Weight, moments_of_backward
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import (
    Parallelism,
    expected_states,
    expert_parts,
    held_all_step,
    held_sizes,
    held_weights,
    moments_by_chunk,
    of_kind,
    split_over,
    summed_elements,
    with_own,
)
from clusterbench.parallel.context import ContextParallel
from clusterbench.parallel.data import DataParallel
from clusterbench.parallel.fsdp import FullySharded
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.shape import ModelShape
from clusterbench.torch_release import adds_up_in_parameters


def fullest_moment(active: Sequence[Parallelism], job: TrainingJob) -> Moment:
    """When a rank holds most, and how many bytes of all categories that is.

    Parameters
    ----------
    job
        Of the rank: see :func:`clusterbench.parallel.part_of`.
    """
    return fullest_of(full_times(active, job))


class FullTime(NamedTuple):
    """Some time of a step at which most may be held.

    Attributes
    ----------
    beside
        Bytes that are there all the while.
    held
        Bytes of what comes and goes beside them, at each of its moments.
    fullest
        Of these moments the one with most.
    """

    beside: float
    held: Sequence[float]
    fullest: Moment


def full_times(active: Sequence[Parallelism], job: TrainingJob) -> list[FullTime]:
    """Every time at which most may be held.

    What is held at each of their moments grows along a line with the sequence: whatever the length, they are as many,
    in the same order.
    """
    pipeline = of_kind(Pipeline, active)
    states = expected_states(active, job)
    between_steps = states["parameters"] + states["optimizer_state"] + held_all_step(job)
    return list(
        _of_layers(active, job, states, between_steps)
        if pipeline is None
        else _of_schedule(active, job, pipeline, states, between_steps)
    )


def fullest_of(times: Iterable[FullTime]) -> Moment:
    """The moment of all these at which most is held, with what is there beside it."""
    fullest = max(times, key=lambda time: time.beside + time.fullest.held)
    return Moment(fullest.fullest.when, fullest.beside + fullest.fullest.held)


def held_at(times: Iterable[FullTime]) -> list[float]:
    """Bytes at every moment, in order."""
    return [beside + of_moment for beside, held, _ in times for of_moment in held]


def _alone(beside: float, moment: Moment) -> FullTime:
    return FullTime(beside, (moment.held,), moment)


class _Way(NamedTuple):
    """What is held at the moments of one micro-batch on its way through some layers: of forward, and of backward."""

    forward: Sequence[float]
    backward: Sequence[float]
    most_in_forward: Moment
    most_in_backward: Moment

    def time(self, kind: Kind, beside: float) -> FullTime:
        """That of an action."""
        if kind == "F":
            return FullTime(beside, self.forward, self.most_in_forward)
        return FullTime(beside, self.backward, self.most_in_backward)


def _of_layers(
    active: Sequence[Parallelism], job: TrainingJob, states: Mapping[str, float], there: float
) -> Iterator[FullTime]:
    """Times of a rank that has all layers, with what is ``there`` between steps."""
    gradients = states["gradients"]
    yield _alone(there + gradients, Moment("the sum of gradients over ranks", _largest_sum(active, job)))
    yield _alone(there + gradients, Moment("the update", _largest_cast(active, job, states)))
    # DDP never lets go of gradients; else the second micro-batch is the first that finds some
    replicated = of_kind(DataParallel, active)
    adds_up = job.gradient_accumulation_steps > 1 or replicated is not None
    way = _of_micro_batch(active, job, job.held[0], adds_up)
    if replicated is not None and (buffer := max(replicated.copies(job), default=0.0)):
        # a bucket is full while backward runs: that there is at any time
        bucket = Moment("the largest bucket of gradients", buffer + min(way.backward))
        yield _alone(there + gradients, bucket)
    yield way.time("F", there + gradients * adds_up)
    yield way.time("B", there + gradients * adds_up)
    if job.shape.tied_embeddings and adds_up and replicated is None:
        # the two gradients of the table are widened and added up once, where later ones go into what is there
        yield _of_micro_batch(active, job, job.held[0], adds_up=False).time("B", there)


def _of_schedule(
    active: Sequence[Parallelism], job: TrainingJob, pipeline: Pipeline, states: Mapping[str, float], there: float
) -> Iterator[FullTime]:
    """Times of a rank of a pipeline: what waits, what the stages have beside it, and one micro-batch on its way."""
    stages = {chunk.stage: _stage(active, of_chunk) for chunk, of_chunk in zip(job.held, job.of_chunks, strict=True)}
    of_stage = {chunk.stage: chunk for chunk in job.held}
    moments_of = moments_by_chunk(active, job, messages=True)
    held, order = pipeline.beside(job, moments_of, expert_parts(active, job), messages=True), pipeline.order(job)
    buffers = pipeline.buffers(job)

    @cache
    def way(stage: int, adds_up: bool) -> _Way:
        return _of_micro_batch(active, job, of_stage[stage], adds_up)

    def beside(at: Full) -> float:
        of_stages = sum([of.beside(at, at.stage == stage) for stage, of in stages.items()])
        return there + buffers + held(at) + pipeline.sent_back(job, at) + pipeline.came_back(job, at) + of_stages

    for at in pipeline.fullest(job):
        adds_up = at.stage in at.graded and not stages[at.stage].unreduced
        yield way(at.stage, adds_up).time(at.kind, beside(at))
    for at in order.ends:
        if (sharding := stages[at.stage].sharding) is not None:
            unsummed = _of_reduction(sharding, len(of_stage[at.stage].layers))
            reduction = Moment("the reduction of a stage", stages[at.stage].unreduced + unsummed)
            yield _alone(beside(at), reduction)
    gradients = there + sum(of.reduced for of in stages.values()) + buffers
    yield _alone(gradients, Moment("the sum of gradients over ranks", _largest_sum(active, job)))
    yield _alone(gradients, Moment("the update", _largest_cast(active, job, states)))


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
    if sharding.in_parameters:  # then torch begins with the last one
        groups.reverse()
    alive, most = sum(group.gathered for group in groups), 0.0
    for group in groups:
        alive -= group.gathered
        reduced = alive + group.packed * (1 + sharding.copies) + group.share
        most = max(most, alive + group.packed, reduced - (group.gradients - group.last) * sharding.growth)
        alive += group.share - group.gradients * sharding.growth
    return most


def _stage(active: Sequence[Parallelism], job: TrainingJob) -> _Stage:
    (chunk,) = job.held
    reduced = expected_states(active, job)["gradients"]
    sharding = _sharding(active, job, chunk)
    if sharding is None:
        return _Stage(chunk.stage, None, 0.0, reduced, reduced, 0.0)

    def total(size: Callable[[Group], float]) -> float:
        return job.num_layers * sum(map(size, sharding.layer)) + size(sharding.root)

    gathered, whole = total(lambda group: group.gathered), total(lambda group: group.gradients) * sharding.growth
    if job.order is None:
        return _Stage(chunk.stage, sharding, gathered, reduced, reduced, whole)
    never_sharded = reduced - total(lambda group: group.share)
    return _Stage(chunk.stage, sharding, gathered, whole + never_sharded, reduced, 0.0)


def _sharding(active: Sequence[Parallelism], job: TrainingJob, chunk: Chunk) -> Sharding | None:
    fsdp = of_kind(FullySharded, active)
    return None if fsdp is None else fsdp.sharding(job, chunk)


def _of_micro_batch(active: Sequence[Parallelism], job: TrainingJob, chunk: Chunk, adds_up: bool) -> _Way:
    is_sharded = of_kind(FullySharded, active) is not None
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
    sharding = _sharding(active, job, chunk)
    repeated = again[0] if again else {}
    weights = _weights(active, shape, layout, dtypes, chunk)
    parts = expert_parts(active, job)
    context = of_kind(ContextParallel, active)
    buffers = context.backward_buffers(job) if context else 0.0
    when, held = moments_of_backward(job, forward, repeated, weights, sharding, adds_up, parts, buffers)
    of_forward, backward = tuple(held[:OF_FORWARD]), tuple(held[OF_FORWARD:])
    most, most_behind = max(of_forward), max(backward)
    return _Way(
        of_forward,
        backward,
        Moment(when[of_forward.index(most)], most),
        Moment(when[OF_FORWARD + backward.index(most_behind)], most_behind),
    )


def _largest_sum(active: Sequence[Parallelism], job: TrainingJob) -> float:
    """The largest of the flat buffers in which gradients are summed when backward is over."""
    return float(max(summed_elements(active, job).values(), default=0) * kept_bytes("norm.weight", job))


def _largest_cast(active: Sequence[Parallelism], job: TrainingJob, states: Mapping[str, float]) -> float:
    """Bytes that the optimizer has at once beside the states.

    Of :class:`~clusterbench.model.narrow_gradients.NarrowGradientsAdamW` gradients in the dtype of the weights as well:
    none where all are in it. Of :class:`~clusterbench.model.half_moments.HalfMomentsAdamW` what it makes of a weight.
    """
    if job.moment_bytes != job.master_bytes:
        return _largest_update(active, job, states)
    if job.gradient_bytes == job.master_bytes:
        return 0.0
    dense, experts = 0, 0  # which have optimizers of their own
    for weight, number in held_weights(active, job):
        if kept_bytes(weight.name, job) != job.master_bytes:
            numel = number * prod(weight.size)
            dense, experts = (dense, experts + numel) if "ep" in weight.split_over else (dense + numel, experts)
    stepped = states["optimizer_state"] / (2 * job.moment_bytes)  # with ZeRO 1 a share
    return job.master_bytes * min(max(dense, experts), stepped, CAST_AT_ONCE)


def _largest_update(active: Sequence[Parallelism], job: TrainingJob, states: Mapping[str, float]) -> float:
    """Three tensors as wide as the weight, and its gradient where that is narrower; of large weights piece by piece."""
    stepped = states["optimizer_state"] / (2 * job.moment_bytes)  # with ZeRO 1 a share
    return max(
        min(prod(weight.size), stepped, CAST_AT_ONCE)
        * job.master_bytes
        * (3 + (kept_bytes(weight.name, job) != job.master_bytes))
        for weight, _ in held_weights(active, job)
    )


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
    fsdp, weights = of_kind(FullySharded, active), {}
    is_sharded, cutting = fsdp is not None, [each for each in active if each is not fsdp]
    of_group = is_sharded and not (layout.uses("pp") and adds_up_in_parameters())
    for name, size, _ in held_sizes(cutting, job):
        alone = is_spread_expert(name, job) and job.layout.degree("edp") == 1
        gradient, kept_as = float(prod(size) * job.compute_bytes), float(prod(size) * kept_bytes(name, job))
        # A view as a DTensor that is made once comes last in backward, as autograd goes by age.
        rounded = has_copy(name, job)
        waits = not is_sharded and "tp" in split_over(cutting, name, job) and not rounded
        weights[name] = Weight(gradient, kept_as, of_group and not alone, waits, rounded)
    return weights
