from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import groups_apart, names, sharing
from clusterbench.cases.ranking import noise, percent
from clusterbench.cases.trained import Trained, are_most, groups_of
from clusterbench.charts import Chart, Section, curves_note, said_of_each
from clusterbench.drawing.lines import Lines, Series, mark
from clusterbench.run_folder.attempts import History

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, MOST_LAYOUTS = 4, 6
BATCH = "global_batch_size"
_SPEED = ("tokens_per_s_per_rank",)


@dataclass(frozen=True)
class Curve:
    """One model on the same ranks, by layout, each with the case of every batch."""

    name: str
    layouts: Mapping[str, Mapping[int, Trained]]
    histories: Mapping[str, History]

    @cached_property
    def batches(self) -> list[int]:
        return sorted({batch for by_batch in self.layouts.values() for batch in by_batch})

    def ranked(self, batch: int) -> list[tuple[str, Trained]]:
        """Those with a figure, the fastest first."""
        cases = [(name, of[batch]) for name, of in self.layouts.items() if batch in of and _speed(of[batch])]
        return sorted(cases, key=lambda named: -_speed(named[1]))


class BatchScaling(Chart[list[Curve]]):
    """Throughput per rank of a few layouts, with a pipeline and without, against the sequences of a step.

    How to read it
    --------------
    More sequences a step are more micro-batches: the bubble of a pipeline becomes a smaller share of it, and what is
    sent once a step, as sums of gradients, weighs less; what is sent in every micro-batch does not. So a layout that
    loses with few may win with many. The answer names at each batch the fastest layout and the best one of the other
    kind, with a pipeline or without. On CPU ranks the order shows method and not speed.
    """

    title: ClassVar[str] = "Throughput per rank against sequences a step, by layout"
    section: ClassVar[Section] = "comparison"

    def select(self, reading: Reading) -> list[Curve] | None:
        cases = [case for case in reading.trained_with(*_SPEED) if isinstance(case.point.get(BATCH), int)]
        if len({case.point[BATCH] for case in cases}) < 2:
            return None
        ignored = {*sharing(), "micro_batch_size", BATCH}
        groups = groups_of(cases, lambda case: (case.row.num_nodes, case.layout.world_size), ignored)
        groups = [group for group in groups if _is_a_comparison(group)]
        if not groups or not are_most(groups, cases):
            return None
        apart = groups_apart([[case.row for case in group] for group in groups])
        return [Curve(name, _by_layout(group), reading.history_of) for name, group in zip(apart, groups, strict=True)]

    def draw(self, data: list[Curve]) -> list[Panel]:
        return [_panel(curve, f"\n{curve.name}" if len(data) > 1 else "") for curve in data[:MOST]]

    def answer(self, data: list[Curve]) -> str:
        return said_of_each((curve.name if len(data) > 1 else "" for curve in data[:MOST]), map(_sentence, data))

    def left_out(self, data: list[Curve]) -> str:
        return curves_note(len(data), MOST, "workloads")


def _speed(case: Trained) -> float:
    return case.value(*_SPEED) or 0.0


def _is_a_comparison(group: Sequence[Trained]) -> bool:
    """A few layouts, with figures of two batches of both kinds: of very many the fastest is sought, by other charts."""
    layouts = {case.layout for case in group}
    if len(layouts) > MOST_LAYOUTS or len({layout.uses("pp") for layout in layouts}) < 2:
        return False  # as are most groups of a large sweep
    by_layout = _by_layout(group)
    timed = [of for of in by_layout.values() if sum(map(bool, map(_speed, of.values()))) > 1]
    kinds = {case.layout.uses("pp") for of in timed for case in of.values()}
    return len(kinds) > 1 and len(by_layout) <= MOST_LAYOUTS


def _by_layout(group: Sequence[Trained]) -> dict[str, dict[int, Trained]]:
    name = names((case.row for case in group), without=[BATCH])
    by_layout: dict[str, dict[int, Trained]] = {}
    for case in group:
        by_layout.setdefault(name(case.row), {}).setdefault(int(case.point[BATCH]), case)
    return by_layout


def _panel(curve: Curve, under: str) -> Panel:
    series = [
        Series(name, tuple(mark(batch, of[batch].figures.get(_SPEED) or of[batch].row) for batch in sorted(of)))
        for name, of in curve.layouts.items()
    ]
    ticks = {float(batch): f"{batch:,}" for batch in curve.batches}
    return Lines(f"Throughput per rank{under}", series, "tokens/s", ticks, "sequences a step").panel()


def _sentence(curve: Curve) -> str:
    """``At 32 sequences a step dp8+zero3 is the fastest, pp8 takes 12 % longer; at 128 ...``."""
    parts: list[str] = []
    for batch in curve.batches:
        ranked = curve.ranked(batch)
        rivals = [other for other in ranked if other[1].layout.uses("pp") != ranked[0][1].layout.uses("pp")]
        if rivals:
            what = "" if parts else " sequences a step"
            parts.append(f"at {batch:,}{what} {_ahead(ranked[0], rivals[0], curve.histories)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _ahead(first: tuple[str, Trained], rival: tuple[str, Trained], histories: Mapping[str, History]) -> str:
    told, _ = noise(first[1], rival[1], histories)
    doubt = ", which samples do not tell apart" if told is False else ""
    longer = percent(_speed(first[1]) / _speed(rival[1]) - 1)
    return f"{first[0]} is the fastest, {rival[0]} takes {longer} longer{doubt}"
