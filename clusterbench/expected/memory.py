"""The bytes a rank should hold by category, and how far what is measured may be from them; no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

from clusterbench.expected.flops import HELD_AGAINST, UNVERIFIED
from clusterbench.expected.total import fullest_moment
from clusterbench.formulas.memory import megatron_activation_bytes
from clusterbench.job import TrainingJob, has_copy, kept_bytes, one_of_each, weight_shapes
from clusterbench.job.backward import Moment
from clusterbench.job.passes import STATES
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import (
    Parallelism,
    expected_memory,
    held_activations,
    of_kind,
    part_of,
    peak_memory,
    stores_scores,
    summed_elements,
)
from clusterbench.parallel.data import DataParallel
from clusterbench.parallel.zero import states_in_the_paper
from clusterbench.shape import ModelShape
from clusterbench.types import ABOUT, Case, Expected, metric_key
from clusterbench.units import format_bytes

ACTIVATIONS, TOTAL = "activations", "total"
DEVIATION = "memory_deviation"
OF_STATES, OF_ACTIVATIONS, OF_TOTAL = 0.02, 0.05, 0.03
"""How far a formula may be off, as a fraction of it: the first two are exact but for what is small."""

SCALARS_BYTES = 4096
"""Losses, step counts and the like, of which no formula speaks."""


def expected_memory_metrics(
    parts: Sequence[TrainingJob],
    states: Sequence[dict[str, float]],
    fullest: Sequence[Moment],
    active: Sequence[Parallelism],
) -> Iterator[tuple[str, Expected]]:
    """Metric key -> bytes on the fullest rank, and by category how far a rank may be from what its stage should hold.

    Parameters
    ----------
    parts, states, fullest
        The job of each stage's ranks, the states they should hold between steps, and when they should hold most; the
        last is empty where that is not predicted.
    """
    held = [peak_memory(active, part, of) for part, of in zip(parts, states, strict=True)]
    if fullest:
        held = [{**of, TOTAL: moment.held} for of, moment in zip(held, fullest, strict=True)]
    for category, basis in _bases(parts, fullest, active).items():
        yield metric_key("peak_memory", category=category), Expected(max(of[category] for of in held), "B", basis)
        if category in ("parameters", "optimizer_state"):
            size_bytes = max(of[category] for of in states)
            yield metric_key("memory_at_rest", category=category), Expected(size_bytes, "B", basis)
        limit, why = (
            (OF_STATES, "exact but for a step count per tensor")
            if category in STATES
            else max(_band(part, active, category, of) for part, of in zip(parts, held, strict=True))
        )
        if parts[0].device == "cuda":
            why = f"{why}; {UNVERIFIED}, {HELD_AGAINST}"
        yield metric_key(DEVIATION, category=category), Expected(limit, "1", f"at most; {why}")


def held_memory(active: Sequence[Parallelism], job: TrainingJob) -> dict[str, float]:
    """Bytes on one rank by category, each at its own peak, and ``total`` at the moment at which all together are most.

    Parameters
    ----------
    job
        Of the rank, with the layers it has: see :func:`clusterbench.parallel.part_of`.
    """
    return {**expected_memory(active, job), TOTAL: fullest_moment(active, job).held}


def not_predicted(job: TrainingJob, active: Sequence[Parallelism]) -> dict[str, str]:
    """Categories of which nothing is predicted, each with the reason."""
    reasons = {}
    if why := next((why for parallelism in active if (why := parallelism.hides_activations(job))), ""):
        reasons[ACTIVATIONS] = why
    elif stores_scores(active, job):
        reasons[ACTIVATIONS] = "math attention keeps scores and copies of queries, keys and values as torch makes them"
    elif words := job.fills_heads:
        reasons[ACTIVATIONS] = words
    if any(parallelism.keeps_on_host(job) for parallelism in active):
        reasons |= dict.fromkeys(STATES, "offload keeps it in host memory, of which a GPU has what is in use")
    is_rounded = job.compute_bytes != job.master_bytes
    if job.layout.shards_gradients and is_rounded and job.layout.uses("pp"):
        first = part_of(job, active, 0)
        if first.order is None:  # naive: measured is 5 to 8 % less than the formula
            reasons["gradients"] = "FSDP reduces after each micro-batch, and adds in another precision"
        elif job.layout.spreads_experts and len(first.held) > 1:  # up to 2.9 % more than the formula
            reasons["gradients"] = "FSDP reduces one stage of a rank while experts of another add up, in two precisions"
    if why := reasons.get(ACTIVATIONS) or next(filter(None, (each.hides_total(job) for each in active)), ""):
        reasons[TOTAL] = why
    return reasons


def is_unverified(case: Case) -> bool:
    """Whether the formulas were never held against a device of this kind."""
    return any(key.startswith(DEVIATION) and UNVERIFIED in what.basis for key, what in case.expected.items())


def _bases(parts: Sequence[TrainingJob], fullest: Sequence[Moment], active: Sequence[Parallelism]) -> dict[str, str]:
    job = parts[0]
    bases = {
        "parameters": f"{job.shape.num_parameters:,} of {_kept(job)} at rest, {_sharing(job)}",
        "gradients": _gradients_basis(job),
        "optimizer_state": f"two moments of {job.moment_bytes} B a parameter, and a step count per tensor",
        ACTIVATIONS: _activations_basis(job),
    }
    if fullest:
        bases[TOTAL] = _total_basis(fullest)
    if _is_routed(active, job):
        even = f"{ABOUT}of an even load, which the router decides"
        bases |= {category: f"{even}; {bases[category]}" for category in (ACTIVATIONS, TOTAL) if category in bases}
    if paper := states_in_the_paper(job):
        bases |= {name: f"{bases[name]}; {words}" for name, words in paper.items()}
    unknown = not_predicted(job, active)
    return {category: basis for category, basis in bases.items() if category not in unknown}


def _is_routed(active: Sequence[Parallelism], job: TrainingJob) -> bool:
    return any("ep" in parallelism.traffic_basis(job) for parallelism in active)


def _total_basis(fullest: Sequence[Moment]) -> str:
    when = max(fullest, key=lambda moment: moment.held).when
    return f"all that is alive at one moment, when most is: {when}; not the sum of each at its own peak"


def _band(
    job: TrainingJob, active: Sequence[Parallelism], category: str, held: Mapping[str, float]
) -> tuple[float, str]:
    """How far what a stage holds of a category may be from what it should, as a fraction of it, and why."""
    limit, why = {
        ACTIVATIONS: (OF_ACTIVATIONS, "exact but for small buffers"),
        TOTAL: (OF_TOTAL, "exact but for small temporaries"),
    }[category]
    reasons = [why]
    for parallelism in active:
        for slack in parallelism.slack(job):
            size_bytes = slack.size_bytes + slack.beside * (category == TOTAL)
            limit += size_bytes / held[category]
            reasons.append(f"{slack.why}, {format_bytes(size_bytes)}")
    if category == TOTAL and (late := _summed_before(active, job)):
        limit += late / held[category]
        reasons.append(f"gradients that were summed first, of which Gloo may let go late, {format_bytes(late)}")
    replicated = of_kind(DataParallel, active)
    if category == TOTAL and replicated is not None and (late := _all_but_the_largest(replicated.copies(job))):
        limit += late / held[category]
        reasons.append(f"copies of buckets in bfloat16, of which DDP lets go at no fixed time, {format_bytes(late)}")
    if _is_routed(active, job):
        most = max(held_activations(active, job, load=job.layout.ep))
        limit += (most - held[ACTIVATIONS]) / held[category]
        reasons.append(f"the router may send all rows of {job.layout.ep} ranks to one of them")
    return limit, "; ".join(reasons)


def _summed_before(active: Sequence[Parallelism], job: TrainingJob) -> float:
    """Bytes of all flat buffers of gradients but the largest: a busy host may still hold them with the last."""
    if job.device != "cpu":
        return 0.0
    return _all_but_the_largest(summed_elements(active, job).values()) * kept_bytes("norm.weight", job)


def _all_but_the_largest(sizes: Iterable[float]) -> float:
    return float(sum(sorted(sizes)[:-1]))


def _kept(job: TrainingJob) -> str:
    """Bytes of one parameter, and of its copy where there is one."""
    if not any(has_copy(name, job) for name in _kinds(job.shape)):
        return f"{job.master_bytes} B"
    of_what = "" if has_copy("norm.weight", job) else ", of experts that FSDP does not gather,"
    return f"{job.master_bytes} B, with a copy of {job.compute_bytes} B{of_what} that is rounded once a step,"


@cache  # a plan asks for every case
def _kinds(shape: ModelShape) -> Collection[str]:
    """The name of one weight of each kind."""
    return tuple(weight_shapes(one_of_each(shape, ParallelLayout())))


def _gradients_basis(job: TrainingJob) -> str:
    if job.gradient_bytes == job.master_bytes:
        return "as parameters"
    if job.layout.shards_gradients:
        return (
            f"as parameters, of {job.master_bytes} B: each is reduced in {job.gradient_bytes} B, and shares add up wide"
        )
    return f"where parameters are, of {job.gradient_bytes} B: those of the copies"


def _sharing(job: TrainingJob) -> str:
    """Where the weights are, in words."""
    layout = job.layout
    words = [f"layers over pp{layout.pp}"] if layout.pp > 1 else []
    words += [f"matrices over tp{layout.tp}, norms on every rank"] if layout.tp > 1 else []
    words += [f"experts over ep{layout.ep}"] if layout.spreads_experts else []
    if layout.shards_gradients:
        words.append("all of it sharded by FSDP, and at its peak what is gathered beside it")
    return ", ".join(words) or "whole on every rank"


def _activations_basis(job: TrainingJob) -> str:
    shape, layout = job.shape, job.layout
    megatron = shape.num_layers * megatron_activation_bytes(
        job.seq_len, job.micro_batch_size, shape.hidden_size, shape.num_heads, layout.tp, layout.sp, "selective"
    )
    kept = (
        f"norm and residual activations 1/{layout.tp}, gathered inputs of column-parallel layers whole"
        if layout.sp
        else "norm and residual activations and inputs of column-parallel layers whole on every rank"
    )
    return (
        f"what PyTorch's operators keep for backward, and the logits; {kept}. Megatron's form, for a GPT in 16 bit "
        f"without logits: {format_bytes(megatron)} (Korthikanti et al. 2022, equation 6 with sp, 2 without)"
    )
