"""A dry run in words: first whether it fits, then what holds the memory, what is sent, and what is launched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from clusterbench.cluster import Accelerator
from clusterbench.dry.advice import Changed, changes, pairs_of_changes
from clusterbench.dry.work_text import work_text
from clusterbench.expected.fits import CARDS_GB, CLOSE, NOT_SEEN, fit_words
from clusterbench.expected.total import fullest_moment
from clusterbench.job import TrainingJob
from clusterbench.job.dry import DryRank
from clusterbench.job.flops import CAUSAL_ATTENTION
from clusterbench.job.passes import STATES
from clusterbench.job.turns import lines_in_order
from clusterbench.parallel import Parallelism, active_in, expected_states, part_of
from clusterbench.units import digits, format_bytes
from clusterbench.words import aligned

HOST_WORDS = (
    "host memory: the states are those of real ranks; copies of gradients on their way to it were held against fake "
    "CUDA tensors alone, and that torch rounds pinned memory up is not seen"
)

LARGEST = 8
"""Things at the peak that are told apart."""

MOST_LINES = 40
"""Of what is sent in order."""

MOST_PAIRS = 5
"""Of changes that make it fit together, where no single one does."""


def dry_text(
    ranks: Sequence[DryRank],
    job: TrainingJob,
    every: Sequence[Parallelism],
    places: Mapping[int, str],
    memory_gb: float,
    card: Accelerator | None = None,
    rank_order: str = "megatron",
) -> str:
    """All that a person reads.

    Parameters
    ----------
    places
        What each rank is called.
    memory_gb
        Of the card; 0 where none is named.
    card
        Whose roofline bounds the time.
    """
    fullest = max(ranks, key=lambda each: each.memory["total"])
    unit = "GB" if fullest.memory["total"] >= 1e9 else "MB"
    lines = [*_verdict(fullest, places, memory_gb)]
    if memory_gb and fullest.memory["total"] > CLOSE * memory_gb * 1e9:
        lines += [*_what_would_fit(job, every, _fullest_of_stages(ranks, job, rank_order), memory_gb)]
    lines += [f"{what}." for what in dict.fromkeys(what for each in ranks for what in each.left_out)]
    for each in ranks:
        lines += ["", *_of_rank(each, places[each.rank], unit)]
        lines += [*work_text(each.work, card, job.dtype), _took(each)]
    return "\n".join([*lines, "", NOT_SEEN])


def _verdict(fullest: DryRank, places: Mapping[int, str], memory_gb: float) -> Iterator[str]:
    needed = fullest.memory["total"] / 1e9
    which = f"rank {fullest.rank} ({places[fullest.rank]}) needs {digits(needed, 3)} GB"
    if not memory_gb:
        fits = [f"{card} GB: {fit_words(needed * 1e9, card * 1e9)}" for card in CARDS_GB]
        yield f"{which}. {'; '.join(fits)}."
        return
    yield f"{which} of {memory_gb:g} GB: {fit_words(needed * 1e9, memory_gb * 1e9)}."


def _fullest_of_stages(ranks: Sequence[DryRank], job: TrainingJob, rank_order: str) -> Mapping[int, int]:
    """Bytes of the fullest of these ranks of each stage of the pipeline."""
    most = dict[int, int]()
    for each in ranks:
        stage = job.layout.coordinates(each.rank, rank_order)["pp"]
        most[stage] = max(each.memory["total"], most.get(stage, 0))
    return most


def _what_would_fit(
    job: TrainingJob, every: Sequence[Parallelism], of_stages: Mapping[int, int], memory_gb: float
) -> Iterator[str]:
    now = {stage: _formula(job, every, stage) for stage in of_stages}

    def fitting(tried: Iterable[Changed]) -> Mapping[object, str]:
        """Of each option, or each two, the first that fits."""
        found = dict[object, str]()
        for change, changed_job, changed in tried:
            options = frozenset(words.partition(" ")[0] for words in change.split(" and "))
            if options in found:
                continue
            needed = max(
                measured - now[stage] + _formula(changed_job, changed, stage) for stage, measured in of_stages.items()
            )
            if needed <= CLOSE * memory_gb * 1e9:
                found[options] = f"  {change}: about {needed / 1e9:.1f} GB"
        return found

    single = fitting(changes(job, every))
    found = single or fitting(pairs_of_changes(job, every))
    if not found:
        yield (
            "No two changes make it fit, of recomputation, ZeRO, offload, sequence parallelism, micro_batch_size, "
            "loss_chunks, gradient_dtype and precision. 'clusterbench advise' looks for layouts that fit."
        )
        return
    yield ("" if single else "No single change makes it fit. ") + "By formula, to be dry-run, it fits with:"
    yield from islice(found.values(), len(single) or MOST_PAIRS)


def _formula(job: TrainingJob, every: Sequence[Parallelism], stage: int) -> float:
    """Bytes on the card of a rank of a stage, by the formulas."""
    active = active_in(job.layout, every)
    part = part_of(job, active, stage)
    return fullest_moment(active, part).held - _on_host(active, part)


def _on_host(active: Sequence[Parallelism], job: TrainingJob) -> float:
    """Bytes of states that are not on the card when most is: gradients are there from the second micro-batch on."""
    if not any(each.keeps_on_host(job) for each in active):
        return 0.0
    states = expected_states(active, job)
    gradients = states["gradients"] * (job.gradient_accumulation_steps > 1)
    return states["parameters"] + states["optimizer_state"] + gradients


def _of_rank(each: DryRank, place: str, unit: str) -> Iterator[str]:
    def size(size_bytes: float) -> str:
        return f"{size_bytes / (1e9 if unit == 'GB' else 1e6):.3f}"

    yield f"rank {each.rank}, {place}: {size(each.memory['total'])} {unit} at most, in {each.peak_at or 'the step'}"
    at_peak = Counter[str]()
    for held in each.held:
        at_peak[held.category] += held.size_bytes
    rows = [
        [category.replace("_", " "), size(each.memory[category]), size(at_peak[category])]
        for category in each.memory
        if category != "total"
    ]
    yield from aligned(["memory", "its own peak", "at the peak"], rows, ["", f"({unit})", f"({unit})"])
    if each.host:
        rows = [[category.replace("_", " "), size(size_bytes)] for category, size_bytes in each.host.items()]
        yield from aligned(["in host memory, not on the card", "its own peak"], rows, ["", f"({unit})"])
        yield HOST_WORDS
    largest = [held for held in each.held if held.category not in STATES][:LARGEST]
    if largest:
        rows = [[held.category, held.made_in or "before the step", size(held.size_bytes)] for held in largest]
        yield from aligned(["largest at the peak", "made in", "size"], rows, ["", "", f"({unit})"])
    totals: dict[tuple[str, str], list[int]] = {}
    for sent in each.sent:
        total = totals.setdefault((sent.axis, sent.op), [0, 0])
        total[0] += sent.count
        total[1] += sent.count * sent.size_bytes
    if totals:
        rows = [[axis, op, str(count), size(of_all)] for (axis, op), (count, of_all) in totals.items()]
        yield from aligned(["axis", "sent in a step", "calls", "size"], rows, ["", "", "", f"({unit})"])
        chain = " + ".join(f"{count} on {axis}" for axis, count in each.chain.items())
        yield from _in_order(each)
        yield f"longest chain of collectives that wait for one another: {sum(each.chain.values())} ({chain})"
    flops = sum(executed.flops for executed in each.executed)
    hidden = sum(executed.flops for executed in each.executed if executed.kind == CAUSAL_ATTENTION) / 2
    masked = f", {hidden / 1e12:.2f} of it for scores that the causal mask hides" if hidden else ""
    launched = f"{each.operators:,} operators launched a micro-batch"
    yield f"{flops / 1e12:.2f} TFLOP of products and attention{masked}; {launched}"


def _in_order(each: DryRank) -> Iterator[str]:
    lines = lines_in_order(each.sent)
    rows = [[line.words(), format_bytes(line.sent.size_bytes) if line.sent else ""] for line in lines[:MOST_LINES]]
    yield from aligned(["sent, in order", "each"], rows)
    if len(lines) > MOST_LINES:
        yield f"and {len(lines) - MOST_LINES} more lines, which the page of --out has"


def _took(each: DryRank) -> str:
    return f"dry-run in {each.spent_s:.1f} CPU seconds and {each.process_bytes / 1e6:.0f} MB"
