"""What is expected of a training step, each figure with the sentence that justifies it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import lcm

from clusterbench.cluster import Accelerator, Cluster
from clusterbench.expected.flops import expected_flops
from clusterbench.expected.memory import ACTIVATIONS, expected_memory_metrics
from clusterbench.expected.tolerances import allowed_after_timing, allowed_of
from clusterbench.formulas.schedules import bubble_formula
from clusterbench.formulas.transformer import CONVENTIONS
from clusterbench.job import TrainingJob
from clusterbench.job.flops import step_flops
from clusterbench.parallel import (
    Parallelism,
    active_in,
    expected_states,
    expected_traffic,
    part_of,
    peak_activations,
    peak_memory,
)
from clusterbench.parallel.context import ContextParallel, attention_imbalance
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.types import Expected, metric_key
from clusterbench.units import format_bytes


def expected_step(
    job: TrainingJob,
    parallelisms: Sequence[Parallelism],
    cluster: Cluster,
    parity: bool = True,
    runs_in_float64: bool = True,
) -> Mapping[str, Expected]:
    """Metric key -> what is expected of a step of ``job``.

    Parameters
    ----------
    parallelisms
        All parallelisms with their options; those active in the job's layout count.
    cluster
        Gives the peak FLOP/s and the memory of a rank's device, where they are on record.
    parity
        Whether the step is compared with one rank: the tolerances are then among the expectations.
    runs_in_float64
        Whether that can be done in float64.
    """
    active = active_in(job.layout, parallelisms)
    # the ranks of a pipeline have different parts; of each figure the largest is expected
    parts = [part_of(job, active, pp_rank) for pp_rank in range(job.layout.pp)]
    states = [expected_states(active, part) for part in parts]
    held = [peak_memory(active, part, of) for part, of in zip(parts, states, strict=True)]
    expected = dict(_expected_traffic(parts, active)) | dict(expected_memory_metrics(parts, states, held, active))
    expected |= dict(expected_flops(active, job))
    expected |= dict(_expected_bubble(job, parallelisms))
    expected |= {
        name: what
        for parallelism in parallelisms
        if isinstance(parallelism, ContextParallel)
        for name, what in _balance(parallelism, job)
    }
    if (card := cluster.accelerator) is not None and card.memory_bytes and job.layout.uses("cp"):
        expected["longest_seq_len"] = _longest_sequence(parts, held, active, card)
    if (peak := cluster.peak_flops_per_s(job.dtype)) is not None:
        bound = Expected(peak[0], "FLOP/s", peak_basis(peak[1]), is_upper_bound=True)
        expected |= {flops_key(convention): bound for convention in CONVENTIONS}
        expected |= _bounds(job, *peak)
    if parity:
        expected |= allowed_of(job, active, runs_in_float64)
    return expected | allowed_after_timing(job)


def _bounds(job: TrainingJob, peak_flops_per_s: float, source: str) -> dict[str, Expected]:
    """What no step can be faster than: the fewest FLOPs by any convention, at the dense peak of every rank."""
    step_s = step_flops(job, "none", "causal") / (job.layout.world_size * peak_flops_per_s)
    tokens_per_s = job.tokens_per_step / step_s
    basis = f"model FLOPs, attention counted causal, at the dense peak: {source}"
    at_most = Expected(tokens_per_s, "tokens/s", f"at most; {basis}", is_upper_bound=True)
    return {
        "step_time": Expected(step_s, "s", f"at least; {basis}"),
        "tokens_per_s": at_most,
        "tokens_per_s_per_rank": replace(at_most, value=tokens_per_s / job.layout.world_size),
    }


def _expected_traffic(parts: Sequence[TrainingJob], active: Sequence[Parallelism]) -> Iterator[tuple[str, Expected]]:
    sent_by = [expected_traffic(active, part) for part in parts]
    job = parts[0]
    unsure = {axis: why for parallelism in active for axis, why in parallelism.traffic_basis(job).items()}
    for axis in dict.fromkeys(sent.axis for along in sent_by for sent in along):
        of_rank = [[sent for sent in along if sent.axis == axis] for along in sent_by]
        most = max(of_rank, key=lambda along: sum(sent.bytes_on_link(job.layout) for sent in along))
        words = " + ".join(f"{sent.count} {sent.op} of {format_bytes(sent.size_bytes)} in all" for sent in most)
        basis = f"{words}; {job.equation}"
        link = sum(sent.bytes_on_link(job.layout) for sent in most)
        count = max(sum(sent.count for sent in along) for along in of_rank)
        about = f"about; {unsure[axis]}; " if axis in unsure else ""
        yield metric_key("traffic_bytes", axis=axis), Expected(link, "B", f"{about}{basis}; x bus factor")
        yield metric_key("collectives", axis=axis), Expected(count, "1", basis)


def _balance(context: ContextParallel, job: TrainingJob) -> Iterator[tuple[str, Expected]]:
    if job.layout.uses("cp") and context.context != "ulysses":
        value = attention_imbalance(context.context, job.layout.cp)
        yield (
            "attention_imbalance",
            Expected(value, "1", f"squares of the causal mask, {context.context} on cp{job.layout.cp}"),
        )


def _longest_sequence(
    parts: Sequence[TrainingJob], held: Sequence[dict[str, float]], active: Sequence[Parallelism], card: Accelerator
) -> Expected:
    """The longest sequence, in steps of what the layout cuts it into, with which the fullest rank's memory suffices."""
    assert card.memory_bytes is not None
    job = parts[0]
    unit = lcm(*(parallelism.twin(job).seq_unit for parallelism in active))
    units: int | None = None
    # most are through with the fullest rank: what fits there fits on the others
    for part, own in sorted(zip(parts, held, strict=True), key=lambda each: -sum(each[1].values())):

        def bytes_of(units: int, part: TrainingJob = part, own: dict[str, float] = own) -> float:
            longer = own[ACTIVATIONS]
            if units * unit != part.seq_len:
                longer = peak_activations(active, replace(part, seq_len=units * unit)) if units else 0.0
            return sum((own | {ACTIVATIONS: longer}).values())

        if units is None or bytes_of(units) > card.memory_bytes:
            units = most_that_fit(bytes_of, card.memory_bytes, units or job.seq_len // unit)
    basis = (
        f"parameters, gradients, optimizer state and activations within the {card.memory_bytes / 1e9:g} GB of "
        f"{card.name}, with micro_batch_size {job.micro_batch_size}; to 2 %, without NCCL's and the allocator's share"
    )
    return Expected(float((units or 0) * unit), "tokens", basis)


def most_that_fit(held: Callable[[int], float], memory_bytes: float, start: int) -> int:
    """The most units whose bytes fit into a memory, rounded down to seven binary digits.

    Parameters
    ----------
    held
        Bytes of so many units: more for each further one, and nearly as many more, so that the line through two
        numbers of units leads close to the one that is looked for.
    start
        Where the search begins.

    >>> most_that_fit(lambda units: 1000.0 + 3.0 * units, 4000.0, start=1)
    1000
    """
    other, other_bytes, fits, misses = 0, held(0), 0, None
    units = max(1, _rounded(start))
    for look in count():
        units_bytes = held(units)
        if units_bytes <= memory_bytes:
            fits = units
        else:
            misses = units
        if misses == _after(fits):
            break
        bytes_of_one = (units_bytes - other_bytes) / (units - other)
        other, other_bytes = units, units_bytes
        units = max(_after(fits), _rounded(units + int((memory_bytes - units_bytes) / bytes_of_one)))
        if misses is not None:
            units = min(units, _rounded(misses - 1)) if look < 4 else _rounded((fits + misses) // 2)
    return fits


def _rounded(units: int) -> int:
    """The seven leading binary digits: at most 2 % less."""
    return units >> (dropped := max(0, units.bit_length() - 7)) << dropped


def _after(units: int) -> int:
    """The next number of seven binary digits."""
    return units + (1 << max(0, units.bit_length() - 7))


def _expected_bubble(job: TrainingJob, parallelisms: Sequence[Parallelism]) -> Iterator[tuple[str, Expected]]:
    pipeline = next(parallelism for parallelism in parallelisms if isinstance(parallelism, Pipeline))
    if pipeline.active(job.layout):
        formula = bubble_formula(pipeline.schedule, job.layout.pp, job.gradient_accumulation_steps, pipeline.chunks)
        if formula is not None:
            expected = Expected(formula.value, "fraction", formula.basis)
            yield metric_key("bubble", source="measured"), expected
            yield metric_key("bubble", source="simulated"), expected


def flops_key(convention: str) -> str:
    """The key of the model FLOP/s of a rank by this convention."""
    return metric_key("model_flops_per_s_per_rank", flops_convention=convention)


def peak_basis(source: str) -> str:
    """What a rate at the dense peak of a datasheet rests on."""
    return f"dense peak, an upper bound: {source}"
