from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.faster import speed_of
from clusterbench.cases.names import names
from clusterbench.cases.ranking import noise, percent
from clusterbench.cases.trained import Trained, are_most, groups_that_differ, said
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.bars import Bars
from clusterbench.run_folder.attempts import History
from clusterbench.words import few

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 4
OPTIONS = frozenset({"compress", "powersgd_rank", "topk_share"})


@dataclass(frozen=True)
class ByWay:
    """Cases that differ in how gradients are compressed alone, group by group; samples by case."""

    groups: list[list[Trained]]
    histories: Mapping[str, History]


class Compression(Chart[ByWay]):
    """What compressing gradients saves of their traffic, and what it costs in speed and memory.

    How to read it
    --------------
    Traffic is what a rank sends in a step, all axes together, by the bus factor of each collective. Less of it pays
    only where a step waits for it: what backward hides costs nothing, and packing, factors and choosing elements take
    time of their own. Top-k sends both value and place of an element to every rank, so its traffic grows with the
    number of ranks, which that of an all-reduce hardly does. A way counts as faster or slower where samples tell it
    from whole gradients. What is not sent is kept and added to the next gradient: that is memory. The steps compute
    other updates than uncompressed ones, and how well a model learns by them is not measured here.
    """

    title: ClassVar[str] = "Compressed gradients: traffic saved, speed and memory paid"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "zero_stages"

    def select(self, reading: Reading) -> ByWay | None:
        cases = reading.trained_with("tokens_per_s_per_rank", "traffic_bytes")
        groups = groups_that_differ(
            cases,
            lambda case: _way(case) if case.is_measured else None,
            lambda case: (case.layout, case.row.num_nodes),
            OPTIONS,
        )
        groups = [group for group in groups if any(case.is_measured and not _way(case) for case in group)]
        return ByWay(groups, reading.history_of) if groups and are_most(groups, cases) else None

    def draw(self, data: ByWay) -> list[Panel]:
        return [panel for group in data.groups[:MOST] for panel in _panels(group, _title(group, data))]

    def answer(self, data: ByWay) -> str:
        shown = data.groups[:MOST]
        return "\n".join(_sentence(group, _title(group, data), data.histories) for group in shown)

    def left_out(self, data: ByWay) -> str:
        return curves_note(len(data.groups), MOST, "layouts and workloads")


def _way(case: Trained) -> str:
    """How gradients are compressed, in words; empty where they are not."""
    kind = str(case.point.get("compress", "none"))
    if kind == "powersgd":
        return f"powersgd of rank {case.point.get('powersgd_rank', 1)}"
    if kind == "topk":
        return f"topk of {100 * float(case.point.get('topk_share', 0.01)):.3g} %"
    return "" if kind == "none" else kind


def _title(group: Sequence[Trained], data: ByWay) -> str:
    return names((case.row for case, *_ in data.groups), without=OPTIONS)(group[0].row)


def _panels(group: Sequence[Trained], title: str) -> Iterator[Panel]:
    labels = [_way(case) or "none" for case in group]
    missing = {number: said(case.row.status) for number, case in enumerate(group) if not case.is_measured}
    cases = [case.row.case for case in group]
    for what, values, unit in (
        ("Traffic of a rank in a step", [case.sent_bytes() for case in group], "B"),
        ("Throughput per rank", [case.value("tokens_per_s_per_rank") for case in group], "tokens/s"),
        ("Peak memory, fullest rank", [case.whole_memory() for case in group], "B"),
    ):
        yield Bars(f"{what}\n{title}", labels, {what: values}, unit, missing=missing, cases=cases).panel()


def _sentence(group: Sequence[Trained], name: str, histories: Mapping[str, History]) -> str:
    """What each way sends and how fast it is, against gradients that are sent whole."""
    whole = next(case for case in group if case.is_measured and not _way(case))
    ways = [case for case in group if case.is_measured and case is not whole]
    before, parts, alike = whole.sent_bytes(), list[str](), list[str]()
    for case in ways:
        sent, speed = case.sent_bytes(), _speed(case, whole, histories)
        sends = f"sends {percent(sent / before)} of the bytes" if before and sent is not None else ""
        if sends or speed:
            parts.append(f"{_way(case)} {' and '.join(filter(None, [sends, speed]))}")
        if not speed and speed_of(case):
            alike.append(_way(case))
    if alike:
        of = "any" if len(alike) == len(ways) > 1 else few(alike)
        parts.append(f"the samples show no difference in speed for {of}")
    return f"With {name}, against gradients that are sent whole: {'; '.join(parts)}."


def _speed(case: Trained, whole: Trained, histories: Mapping[str, History]) -> str:
    """Empty where samples do not tell the two apart."""
    before, after = speed_of(whole), speed_of(case)
    if not before or not after:
        return ""
    first, second = sorted((case, whole), key=speed_of, reverse=True)
    if noise(first, second, histories)[0] is not True:
        return ""
    return f"is {percent(abs(after / before - 1))} {'faster' if after > before else 'slower'}"
