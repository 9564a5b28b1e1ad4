"""What is expected of a training step, each figure with the sentence that justifies it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import lcm

from clusterbench.cluster import Accelerator, Cluster
from clusterbench.expected.bubble import expected_bubble
from clusterbench.expected.flops import expected_flops
from clusterbench.expected.memory import TOTAL, expected_memory_metrics, not_predicted
from clusterbench.expected.tolerances import allowed_after_timing, allowed_of
from clusterbench.expected.total import FullTime, full_times, fullest_of, held_at
from clusterbench.formulas.transformer import CONVENTIONS
from clusterbench.job import TrainingJob
from clusterbench.job.backward import Moment
from clusterbench.job.flops import step_flops
from clusterbench.parallel import (
    Parallelism,
    active_in,
    expected_states,
    expected_traffic,
    part_of,
)
from clusterbench.parallel.context import ContextParallel, attention_imbalance
from clusterbench.types import ABOUT, Expected, metric_key
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
    card = cluster.accelerator if job.layout.uses("cp") else None
    says_longest = card is not None and bool(card.memory_bytes)
    says_total = TOTAL not in not_predicted(parts[0], active)
    # a third of a plan's time, so not where nothing is said of it
    of_parts = [full_times(active, part) for part in parts] if says_longest or says_total else []
    fullest = [fullest_of(of_part) for of_part in of_parts] if says_total else []
    expected = expected_parts(parts, fullest, active) | dict(expected_flops(active, job))
    expected |= dict(_expected_bubble(job, active))
    expected |= {
        name: what
        for parallelism in parallelisms
        if isinstance(parallelism, ContextParallel)
        for name, what in _balance(parallelism, job)
    }
    if card is not None and says_longest:
        expected["longest_seq_len"] = _longest_sequence(parts, of_parts, active, card)
    if (peak := cluster.peak_flops_per_s(fastest_dtype(job, active))) is not None:
        bound = Expected(peak[0], "FLOP/s", peak_basis(peak[1]), is_upper_bound=True)
        expected |= {flops_key(convention): bound for convention in CONVENTIONS}
        expected |= _bounds(job, *peak)
    if parity:
        expected |= allowed_of(job, active, runs_in_float64)
    return expected | allowed_after_timing(job, active)


def expected_parts(
    parts: Sequence[TrainingJob], fullest: Sequence[Moment], active: Sequence[Parallelism]
) -> dict[str, Expected]:
    """Metric key -> the traffic and memory of the rank that has most of it, of those with one of these ``parts``.

    Parameters
    ----------
    fullest
        When each holds most; empty where nothing is said of that.
    """
    states = [expected_states(active, part) for part in parts]
    return dict(_expected_traffic(parts, active)) | dict(expected_memory_metrics(parts, states, fullest, active))


def fastest_dtype(job: TrainingJob, active: Sequence[Parallelism]) -> str:
    """Of those in which a step multiplies the one with the highest peak, which bounds all of it."""
    return "float8" if any(parallelism.product_rounding for parallelism in active) else job.dtype


def lacks_units(card: Accelerator | None, job: TrainingJob, active: Sequence[Parallelism]) -> str | None:
    """Why a card does not multiply in the dtypes of a step; None where it does, or nothing is known of it."""
    of_step = [dtype for dtype in (job.dtype, fastest_dtype(job, active)) if card is not None and dtype in card.lacks]
    if card is None or not of_step:
        return None
    if "bfloat16" in of_step:
        return (
            f"dtype bfloat16: {card.name} has no units for it. torch emulates it slowly, and with other kernels of "
            "attention than those whose memory is told. It has units for float32"
        )
    return f"float8: {card.name} has no units for e4m3fn, the float8 that operands are rounded to"


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
    # the stages between the first and the last send alike
    sent_by = dict.fromkeys(tuple(expected_traffic(active, part)) for part in parts)
    job = parts[0]
    unsure = {axis: why for parallelism in active for axis, why in parallelism.traffic_basis(job).items()}
    for axis in dict.fromkeys(sent.axis for along in sent_by for sent in along):
        of_rank = [[sent for sent in along if sent.axis == axis] for along in sent_by]
        links = [sum(sent.bytes_on_link(job.layout) for sent in along) for along in of_rank]
        link = max(links)
        most = of_rank[links.index(link)]
        words = " + ".join(f"{sent.count} {sent.op} of {format_bytes(sent.size_bytes)} in all" for sent in most)
        basis = f"{words}; {job.equation}"
        count = max(sum(sent.count for sent in along) for along in of_rank)
        about = f"{ABOUT}{unsure[axis]}; " if axis in unsure else ""
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
    parts: Sequence[TrainingJob],
    of_parts: Sequence[Sequence[FullTime]],
    active: Sequence[Parallelism],
    card: Accelerator,
) -> Expected:
    """The longest sequence, in steps of what the layout cuts it into, with which the fullest rank's memory suffices."""
    assert card.memory_bytes is not None
    job = parts[0]
    unit = lcm(*(parallelism.twin(job).seq_unit for parallelism in active))
    units = min(
        _units_that_fit(active, part, held_at(of_part), unit, card.memory_bytes)
        for part, of_part in zip(parts, of_parts, strict=True)
    )
    basis = (
        f"all that is held at one moment within the {card.memory_bytes / 1e9:g} GB of "
        f"{card.name}, with micro_batch_size {job.micro_batch_size}; to 2 %, without NCCL's and the allocator's share"
    )
    return Expected(float(_rounded(max(0, units)) * unit), "tokens", basis)


def _units_that_fit(
    active: Sequence[Parallelism], part: TrainingJob, held: Sequence[float], unit: int, room_bytes: float
) -> int:
    """The most units of a sequence that have room; negative where not even what never grows has."""
    fits = _along_lines(active, part, held, unit, room_bytes)
    if any(parallelism.fuses_loss for parallelism in active):
        # what a chunk of the loss holds begins to grow only with long chunks: lines there are steeper, and none is less
        # steep further on
        while fits > 0:
            longer = replace(part, seq_len=fits * unit)
            fewer = _along_lines(active, longer, held_at(full_times(active, longer)), unit, room_bytes)
            if fewer >= fits:
                break
            fits = fewer
    return fits


def _along_lines(
    active: Sequence[Parallelism], part: TrainingJob, held: Sequence[float], unit: int, room_bytes: float
) -> int:
    """How many fit if what is held at each moment grows as it does between this sequence and one unit more."""
    units = part.seq_len // unit
    longer = held_at(full_times(active, replace(part, seq_len=part.seq_len + unit)))
    lines = [(less, more - less) for less, more in zip(held, longer, strict=True)]
    fits = (units + int((room_bytes - less) // of_one) for less, of_one in lines if of_one)
    return min(fits) if all(less <= room_bytes for less, of_one in lines if not of_one) else -1


def _rounded(units: int) -> int:
    """The seven leading binary digits: at most 2 % less."""
    return units >> (dropped := max(0, units.bit_length() - 7)) << dropped


def _expected_bubble(job: TrainingJob, active: Sequence[Parallelism]) -> Iterator[tuple[str, Expected]]:
    bubble = expected_bubble(active, job)
    if bubble is not None:
        expected = Expected(bubble.value, "fraction", bubble.basis)
        yield metric_key("bubble", source="measured"), expected
        yield metric_key("bubble", source="simulated"), expected


def flops_key(convention: str) -> str:
    """The key of the model FLOP/s of a rank by this convention."""
    return metric_key("model_flops_per_s_per_rank", flops_convention=convention)


def peak_basis(source: str) -> str:
    """What a rate at the dense peak of a datasheet rests on."""
    return f"dense peak, an upper bound: {source}"
