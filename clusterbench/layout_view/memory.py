"""What a rank of the first and of the last stage holds at most, by formula, and whether that fits a card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterbench.cluster import Accelerator
from clusterbench.expected.fits import CARDS_GB, NOT_SEEN, fit_words
from clusterbench.expected.memory import TOTAL, held_memory, not_predicted
from clusterbench.expected.total import fullest_moment
from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism, active_in, part_of
from clusterbench.units import digits
from clusterbench.words import aligned, comment


@dataclass(frozen=True)
class StageMemory:
    """A rank of one stage.

    Attributes
    ----------
    held
        Bytes by category, each at its own peak, and their ``total`` at one moment; None where nothing is predicted.
    when
        That moment.
    """

    name: str
    held: Mapping[str, float | None]
    when: str


def memory_of_stages(job: TrainingJob, every: Sequence[Parallelism]) -> list[StageMemory]:
    """The first and the last stage; one where there is no pipeline."""
    active = active_in(job.layout, every)
    unknown = not_predicted(job, active)
    ends = {0: "first stage", job.layout.pp - 1: "last stage"} if job.layout.uses("pp") else {0: "any rank"}
    stages = []
    for pp_rank, name in ends.items():
        part = part_of(job, active, pp_rank)
        held = {what: None if what in unknown else size for what, size in held_memory(active, part).items()}
        stages.append(StageMemory(name, held, "" if TOTAL in unknown else fullest_moment(active, part).when))
    return stages


def memory_text(job: TrainingJob, every: Sequence[Parallelism], card: Accelerator | None) -> Iterator[str]:
    """For a terminal: a line a stage, and whether the fullest fits; of no card, those of the sizes that most have."""
    stages = memory_of_stages(job, every)
    categories = list(stages[0].held)
    rows = [[stage.name, *map(_gigabytes, stage.held.values()), stage.when or "-"] for stage in stages]
    header = ["memory by formula", *(name.replace("_", " ").replace(TOTAL, "at most") for name in categories), "when"]
    yield from aligned(header, rows, ["", *["(GB)"] * len(categories), ""])
    totals = [total for stage in stages if (total := stage.held[TOTAL]) is not None]
    if not totals:
        why = not_predicted(job, active_in(job.layout, every))[TOTAL]
        yield from comment(f"Whether it fits is not predicted: {why}. 'clusterbench dry-run' runs the step itself.")
        return
    sizes = {f"{gb} GB": gb * 1e9 for gb in CARDS_GB}
    if card is not None and card.memory_bytes:
        sizes = {f"the {card.memory_bytes / 1e9:g} GB of {card.name}": card.memory_bytes}
    for name, size in sizes.items():
        yield f"# {name}: {fit_words(max(totals), size)}"
    yield from comment(NOT_SEEN)


def _gigabytes(size_bytes: float | None) -> str:
    return "-" if size_bytes is None else digits(size_bytes / 1e9, 3)
