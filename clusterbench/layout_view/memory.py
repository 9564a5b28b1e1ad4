"""What a rank of the first, the last and the fullest stage holds at most, by formula, and whether that fits a card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterbench.cluster import Accelerator
from clusterbench.expected.fits import CARDS_GB, NOT_SEEN, fit_words
from clusterbench.expected.memory import TOTAL, held_memory, not_predicted
from clusterbench.expected.total import fullest_moment
from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism, active_in, expected_at_rest, from_options, objection_to, part_of
from clusterbench.parallel.recompute import KINDS
from clusterbench.units import digits
from clusterbench.words import aligned, comment


@dataclass(frozen=True)
class StageMemory:
    """A rank of one stage.

    Attributes
    ----------
    held
        Bytes by category, each at its own peak, and their ``total`` at one moment; None where nothing is predicted.
    at_rest
        Bytes of parameters and of optimizer state between steps.
    when
        The moment of the total.
    """

    name: str
    held: Mapping[str, float | None]
    at_rest: Mapping[str, float]
    when: str

    @property
    def total(self) -> float | None:
        """Bytes of all at one moment; None where that is not predicted."""
        return self.held[TOTAL]


def memory_of_stages(job: TrainingJob, every: Sequence[Parallelism]) -> list[StageMemory]:
    """The first and the last stage, and one between them that holds more; one where there is no pipeline.

    Where layers do not come out even the stages between have one more.
    """
    active = active_in(job.layout, every)
    unknown = not_predicted(job, active)
    stages = []
    for pp_rank, name in _told(job, active).items():
        part = part_of(job, active, pp_rank)
        held = {what: None if what in unknown else size for what, size in held_memory(active, part).items()}
        when = "" if TOTAL in unknown else fullest_moment(active, part).when
        stages.append(StageMemory(name, held, expected_at_rest(active, part), when))
    return stages


def _told(job: TrainingJob, active: Sequence[Parallelism]) -> dict[int, str]:
    """The stages of which is told, and what they are called."""
    pp = job.layout.pp
    if pp == 1:
        return {0: "any rank"}
    totals = [fullest_moment(active, part_of(job, active, pp_rank)).held for pp_rank in range(pp)]
    fullest = totals.index(max(totals))
    between = {} if fullest in (0, pp - 1) else {fullest: f"fullest stage, pp {fullest}"}
    return {0: "first stage", **between, pp - 1: "last stage"}


def other_totals(job: TrainingJob) -> Iterator[tuple[int, list[float | None]]]:
    """Bytes of the fullest stage with sequences of half to four times the length, and each kind of recomputation.

    None where the formulas predict nothing, or where there is no such step.
    """
    for seq_len in (job.seq_len // 2, *(factor * job.seq_len for factor in (1, 2, 4))):
        yield seq_len, [_total(replace(job, seq_len=seq_len), way) for way in KINDS]


def _total(job: TrainingJob, recompute: str) -> float | None:
    every = from_options({"recompute": recompute})
    if objection_to(job, active_in(job.layout, every)):
        return None
    totals = [stage.total for stage in memory_of_stages(job, every)]
    return max((total for total in totals if total is not None), default=None)


def limits_of(card: Accelerator | None) -> dict[str, float]:
    """Bytes by name: of a card, or where none is named of the sizes that most have."""
    if card is not None and card.memory_bytes:
        return {f"the {card.memory_bytes / 1e9:g} GB of {card.name}": card.memory_bytes}
    return {f"{gb} GB": gb * 1e9 for gb in CARDS_GB}


def no_total_text(job: TrainingJob, every: Sequence[Parallelism]) -> str:
    """Why it is not said whether a step fits, and what would say it."""
    why = not_predicted(job, active_in(job.layout, every))[TOTAL]
    return f"Whether it fits is not predicted: {why}. 'clusterbench dry-run' runs the step itself."


def memory_text(job: TrainingJob, every: Sequence[Parallelism], card: Accelerator | None) -> Iterator[str]:
    """For a terminal: a line a stage, and whether the fullest fits; of no card, those of the sizes that most have."""
    stages = memory_of_stages(job, every)
    categories = list(stages[0].held)
    rows = [[stage.name, *map(gigabytes, stage.held.values()), stage.when or "-"] for stage in stages]
    header = ["memory by formula", *(name.replace("_", " ").replace(TOTAL, "at most") for name in categories), "when"]
    yield from aligned(header, rows, ["", *["(GB)"] * len(categories), ""])
    totals = [stage.total for stage in stages if stage.total is not None]
    if not totals:
        yield from comment(no_total_text(job, every))
        return
    for name, size in limits_of(card).items():
        yield f"# {name}: {fit_words(max(totals), size)}"
    yield from comment(NOT_SEEN)


def gigabytes(size_bytes: float | None) -> str:
    """``64.2``, and ``-`` where nothing is predicted."""
    return "-" if size_bytes is None else digits(size_bytes / 1e9, 3)
