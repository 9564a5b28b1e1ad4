from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names, sharing, titles
from clusterbench.cases.ranking import percent
from clusterbench.cases.trained import Trained, groups_of, said
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.bars import Bars
from clusterbench.layout import AXES
from clusterbench.units import format_value
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, MOST_BARS = 8, 48


class Layouts(Chart[list[list[Trained]]]):
    """All layouts of one model on the same ranks, ranked by tokens per second and rank.

    How to read it
    --------------
    Bars of one panel do the same work on the same number of ranks, so the longest is the best choice there. The answer
    says how many were compared with one rank before they were timed; one that computes something else has no bar and
    says so. On CPU ranks that talk over Gloo the order shows what each layout computes and sends, not how it would rank
    on GPUs.
    """

    title: ClassVar[str] = "Layouts ranked by throughput per rank"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "expert_scaling"

    def select(self, reading: Reading) -> list[list[Trained]] | None:
        trained = reading.trained_with("tokens_per_s_per_rank", "parity_loss")
        cases = [case for case in trained if case.row.status != "refused"]
        groups = groups_of(cases, lambda case: (case.layout.world_size,), {*sharing(), "micro_batch_size"})
        return groups if any(map(_is_mixed, groups)) else None

    def draw(self, data: list[list[Trained]]) -> list[Panel]:
        mixed = _mixed(data)
        unders = titles(mixed, [group[0].layout.world_size for group in mixed])
        return [_bars(group, under) for group, under in zip(mixed[:MOST], unders, strict=False)]

    def answer(self, data: list[list[Trained]]) -> str:
        cases = [case for group in data for case in group]
        compared = [case for case in cases if case.value("parity_loss") is not None]
        wrong = sum(case.row.status == "wrong" for case in cases)
        sentences = []
        if compared:
            number = f"All {len(cases)}" if len(compared) == len(cases) else f"{len(compared)} of {len(cases)}"
            fault = f", {wrong} did not" if wrong else ""
            untold = len(cases) - len(compared) - wrong
            silent = f", {untold} ended before that was known" if untold else ""
            sentences.append(f"{number} layouts compute what one rank computes{fault}{silent}")
        text = "; ".join([*sentences, _sentence(max(_mixed(data), key=len))])
        return f"{text[0].upper()}{text[1:]}."

    def left_out(self, data: list[list[Trained]]) -> str:
        mixed = _mixed(data)
        fullest = max(len(group) for group in mixed)
        too_much = curves_note(len(mixed), MOST, "workloads") or curves_note(
            fullest, MOST_BARS, "layouts of a workload"
        )
        return " ".join(filter(None, [too_much, _alone(data)]))


def _alone(groups: Sequence[list[Trained]]) -> str:
    """How many layouts have a figure and no bar, and why."""
    alone = sum(bool(_speed(case)) for group in groups if not _is_mixed(group) for case in group)
    if not alone:
        return ""
    their = "its" if alone == 1 else "their"
    return f"Not drawn: {plural(alone, 'layout')}, too few of {their} workload and number of ranks to rank."


def _mixed(groups: Sequence[list[Trained]]) -> list[list[Trained]]:
    """The groups worth a panel; every case counts among those that were compared with one rank."""
    return [group for group in groups if _is_mixed(group)]


def _is_mixed(group: Sequence[Trained]) -> bool:
    """More than the degrees of one parallelism: at least two axes, and three layouts with a figure."""
    layouts = {case.layout for case in group}
    axes = {axis for axis in AXES if any(layout.uses(axis) for layout in layouts)}
    return len(axes) > 1 and len({case.layout for case in group if _speed(case)}) > 2


def _speed(case: Trained) -> float:
    return case.value("tokens_per_s_per_rank") or 0.0


def _bars(group: Sequence[Trained], under: str) -> Panel:
    name = names(case.row for case in group)
    shown = sorted(group, key=lambda case: -_speed(case))[:MOST_BARS]
    return Bars(
        f"Throughput per rank on {group[0].layout.world_size} ranks{under}",
        [name(case.row) for case in shown],
        {"throughput": [case.value("tokens_per_s_per_rank") for case in shown]},
        "tokens/s",
        missing={number: said(case.row.status) for number, case in enumerate(shown) if not _speed(case)},
        cases=[case.row.case for case in shown],
    ).panel()


def _sentence(group: Sequence[Trained]) -> str:
    timed = sorted((case for case in group if _speed(case)), key=_speed)
    best, runner_up = timed[-1], timed[-2]
    name = names(case.row for case in group)
    shape = f"{best.point['shape']} on " if best.point.get("shape") else ""
    return (
        f"of {len(timed)} for {shape}{best.layout.world_size} ranks {name(best.row)} is the fastest with "
        f"{format_value(_speed(best), 'tokens/s')} per rank; the runner-up, {name(runner_up.row)}, takes "
        f"{percent(_speed(best) / _speed(runner_up) - 1)} longer for a step"
    )
