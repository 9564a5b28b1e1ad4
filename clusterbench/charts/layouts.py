from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names, sharing, titles
from clusterbench.cases.ranking import doubt, percent, used_of_peak
from clusterbench.cases.trained import Trained, groups_of, said
from clusterbench.charts import Chart, Section, bars_note, curves_note
from clusterbench.drawing.bars import Bars
from clusterbench.run_folder.attempts import NOT_RUN, History
from clusterbench.units import format_value
from clusterbench.words import few, plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, MOST_BARS = 8, 12
FEWEST = 3  # layouts that make a ranking
_MOST_TIED = 3


@dataclass(frozen=True)
class Ranked:
    """Cases that do the same work on the same number of ranks, group by group; samples by case; which lack a proof."""

    groups: list[list[Trained]]
    histories: Mapping[str, History]
    unproven: Collection[str] = ()

    @cached_property
    def mixed(self) -> list[list[Trained]]:
        """The groups worth a panel; every case counts among those that were compared with one rank."""
        return [group for group in self.groups if _is_mixed(group)]


class Layouts(Chart[Ranked]):
    """All layouts of one model on the same ranks, ranked by tokens per second and rank.

    How to read it
    --------------
    Bars of one panel do the same work on the same number of ranks, so the longest is the best choice there. The answer
    says how many were compared with one rank before they were timed; one that computes something else has no bar and
    says so. Of many the best twelve are drawn, and the table behind the bars has all. On CPU ranks that talk over Gloo
    the order shows what each layout computes and sends, not how it would rank on GPUs.
    """

    title: ClassVar[str] = "Layouts ranked by throughput per rank"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "expert_scaling"

    def select(self, reading: Reading) -> Ranked | None:
        trained = reading.trained_with("tokens_per_s_per_rank", "parity_loss")
        cases = [case for case in trained if case.row.status != "refused"]
        groups = groups_of(cases, lambda case: (case.layout.world_size,), {*sharing(), "micro_batch_size"})
        ranked = Ranked(groups, reading.history_of, reading.unproven)
        return ranked if ranked.mixed else None

    def draw(self, data: Ranked) -> list[Panel]:
        mixed = data.mixed
        unders = titles(mixed, [group[0].layout.world_size for group in mixed])
        return [_bars(group, under) for group, under in zip(mixed[:MOST], unders, strict=False)]

    def answer(self, data: Ranked) -> str:
        cases = [case for group in data.groups for case in group]
        place, fullest = max(enumerate(data.mixed), key=lambda numbered: len(numbered[1]))
        fastest = _sentence(fullest, titles(data.mixed)[place].strip(), data.histories)
        text = "; ".join(filter(None, [_proven(cases, data.unproven), fastest]))
        return f"{text[0].upper()}{text[1:]}"

    def left_out(self, data: Ranked) -> str:
        mixed = data.mixed
        cut = bars_note([len(group) for group in mixed[:MOST]], MOST_BARS, "best", "a workload")
        notes = curves_note(len(mixed), MOST, "workloads"), cut, _alone(_timed(data.groups) - _timed(mixed))
        return " ".join(filter(None, notes))


def _proven(cases: Sequence[Trained], unproven: Collection[str]) -> str:
    """How many compute what one rank computes, and what is known of the others; nothing where none does."""
    wrong = sum(case.row.status == "wrong" for case in cases)
    untold = sum(case.row.case in unproven for case in cases)
    proven = sum(
        case.value("parity_loss") is not None and case.row.status != "wrong" and case.row.case not in unproven
        for case in cases
    )
    if not proven:
        return ""
    number = f"all {proven:,}" if proven == len(cases) else f"{proven:,} of {len(cases):,}"
    waiting = sum(case.row.status == NOT_RUN for case in cases)
    others = {"did not": wrong, "ran without that proof": untold}
    others["ended before that was known"] = len(cases) - proven - wrong - untold - waiting
    others["has not run yet" if waiting == 1 else "have not run yet"] = waiting
    return ", ".join([f"{number} cases compute what one rank computes", *_counted(others)])


def _counted(numbers: Mapping[str, int]) -> list[str]:
    return [f"{number:,} {what}" for what, number in numbers.items() if number]


def _timed(groups: Sequence[Sequence[Trained]]) -> int:
    return sum(bool(_speed(case)) for group in groups for case in group)


def _alone(alone: int) -> str:
    """How many layouts have a figure and no bar, and why."""
    if not alone:
        return ""
    their = "its" if alone == 1 else "their"
    return f"Not drawn: {plural(alone, 'layout')}, too few of {their} workload and number of ranks to rank."


def _is_mixed(group: Sequence[Trained]) -> bool:
    """More than the degrees of one parallelism: at least two axes, and three layouts with a figure."""
    if len(group) < FEWEST:
        return False  # as are most groups of a large sweep
    axes = {axis for case in group for axis in case.layout.axes}
    return len(axes) > 1 and len({case.layout for case in group if _speed(case)}) >= FEWEST


def _speed(case: Trained) -> float:
    return case.value("tokens_per_s_per_rank") or 0.0


def _bars(group: Sequence[Trained], under: str) -> Panel:
    """The best as bars; the others are in the table behind them."""
    name = names((case.row for case in group), quiet=sharing())
    ranked = sorted(group, key=lambda case: -_speed(case))
    best = f"\n{MOST_BARS} of {len(group):,}, the best first" if len(group) > MOST_BARS else ""
    return Bars(
        f"Throughput per rank on {group[0].layout.world_size} ranks{under}{best}",
        [name(case.row) for case in ranked],
        {"throughput": [case.value("tokens_per_s_per_rank") for case in ranked]},
        "tokens/s",
        missing={number: said(case.row.status) for number, case in enumerate(ranked) if not _speed(case)},
        cases=[case.row.case for case in ranked],
        most=MOST_BARS,
    ).panel()


def _sentence(group: Sequence[Trained], name_of_group: str, histories: Mapping[str, History]) -> str:
    timed = sorted((case for case in group if _speed(case)), key=_speed, reverse=True)
    best, name = timed[0], names((case.row for case in group), quiet=sharing())
    fastest = [name(case.row) for case in timed if _speed(case) == _speed(best)]
    shape = str(best.point.get("shape") or "")
    work = ", ".join(filter(None, ["" if shape in name_of_group.split(", ") else shape, name_of_group]))
    where = f"{f'{work} on ' if work else ''}{best.layout.world_size} ranks"
    are = "is" if len(fastest) == 1 else "are"
    speed = f"{format_value(_speed(best), 'tokens/s')} per rank{used_of_peak(best)}"
    said = f"the fastest of {len(timed):,} for {where} {are} {few(fastest, _MOST_TIED)}, with {speed}"
    if len(fastest) == len(timed):
        return f"{said}."
    runner_up = timed[len(fastest)]
    longer = percent(_speed(best) / _speed(runner_up) - 1)
    noise = doubt(best, runner_up, histories)
    return f"{said}; the runner-up, {name(runner_up.row)}, takes {longer} longer for a step.{noise and f' {noise}'}"
