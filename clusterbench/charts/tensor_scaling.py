from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.charts import Chart
from clusterbench.charts._drawing import Mark, Series, layout_of, lines, mark
from clusterbench.charts._selection import TOTAL_MEMORY, curves_note, variant, workloads
from clusterbench.layout import ParallelLayout
from clusterbench.rows import Row
from clusterbench.units import format_value, scale

if TYPE_CHECKING:
    from clusterbench.charts._panel import Panel

MOST = 3


@dataclass(frozen=True)
class Curve:
    """One workload at every degree of tensor parallelism, all else equal. Series by name: without and with SP."""

    name: str
    throughput: Mapping[str, Series]
    memory: Mapping[str, Series]


class TensorScaling(Chart[list[Curve]]):
    """Throughput per rank and peak memory against the degree of tensor parallelism, with and without SP.

    How to read it
    --------------
    Left: tokens per second and rank; the dotted level is what perfect scaling from the smallest degree would give,
    and the distance below it is paid for communication and smaller matrices. Right: the highest memory any rank held.
    A pale bar behind a point runs from its low to its high: the 5th and 95th percentile over iterations, the least
    and the most over ranks. A cross is a case without a figure, and how it ended.
    """

    title: ClassVar[str] = "Throughput per rank and peak memory against tensor parallelism"
    place: ClassVar[int] = 10

    def select(self, rows: Sequence[Row]) -> list[Curve] | None:
        curves: dict[frozenset[str], Curve] = {}
        steps = [row for row in rows if row.point.get("layout") and _is_wanted(row)]
        workload = workloads(steps)
        for alike in (_same_replicas, _same_ranks):
            groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
            for row in steps:
                layout = layout_of(str(row.point["layout"]))
                if layout is not None:
                    groups[*workload(row), *alike(layout)].append(row)
            for group in groups.values():
                degrees = {_layout(row).tp for row in group}
                cases = frozenset(row.case for row in group)
                if len(degrees) > 1 and cases not in curves and any(row.value is not None for row in group):
                    curves[cases] = _curve(group)
        return list(curves.values()) or None

    def draw(self, data: list[Curve]) -> list[Panel]:
        return [figure for curve in data[:MOST] for figure in _panels(curve, curve.name if len(data) > 1 else "")]

    def answer(self, data: list[Curve]) -> str:
        return " ".join(sentence for sentence in (_fall(data[0]), _saving(data[0])) if sentence)

    def left_out(self, data: list[Curve]) -> str:
        return curves_note(len(data), MOST, "workloads")


def _is_wanted(row: Row) -> bool:
    # A row without metric is a case that ended otherwise: a gap in both panels.
    return row.metric in ("", "tokens_per_s_per_rank") or (row.metric == "peak_memory" and _is_total(row))


def _is_total(row: Row) -> bool:
    return row.detail.get("category", "") in TOTAL_MEMORY


def _layout(row: Row) -> ParallelLayout:
    layout = layout_of(str(row.point["layout"]))
    assert layout is not None
    return layout


def _same_replicas(layout: ParallelLayout) -> tuple[object, ...]:
    return layout.pp, layout.cp, layout.ep, layout.zero, "dp", layout.dp


def _same_ranks(layout: ParallelLayout) -> tuple[object, ...]:
    return layout.pp, layout.cp, layout.ep, layout.zero, "ranks", layout.world_size


def _curve(group: Sequence[Row]) -> Curve:
    # At tp1 there is nothing to split, so both curves start from the one case there.
    with_sp = any(_layout(row).sp for row in group)
    names = {"TP": False, "TP + SP": True} if with_sp else {"TP": False}
    throughput, memory = {}, {}
    for name, sp in names.items():
        own = [row for row in group if _layout(row).sp == sp or (sp and _layout(row).tp == 1)]
        throughput[name] = Series(name, tuple(_marks(own, "tokens_per_s_per_rank")))
        memory[name] = Series(name, tuple(_marks(own, "peak_memory")))
    smallest = min(group, key=lambda row: _layout(row).tp)
    start = f", from {smallest.point['layout']}" if _layout(smallest).world_size > 1 else ""
    return Curve(f"{variant(smallest, without=('layout',))}{start}", throughput, memory)


def _marks(rows: Sequence[Row], metric: str) -> Iterator[Mark]:
    seen: set[int] = set()
    for row in rows:
        if row.metric in ("", metric) and _layout(row).tp not in seen:
            seen.add(_layout(row).tp)
            yield mark(_layout(row).tp, row)


def _panels(curve: Curve, name: str) -> Iterator[Panel]:
    both = (("Throughput per rank", curve.throughput, "tokens/s"), ("Peak memory per rank", curve.memory, "B"))
    for title, series, unit in both:
        marks = [mark for one in series.values() for mark in one.marks]
        measured = [mark for mark in marks if mark.value is not None]
        if not measured:
            continue
        smallest = min(measured, key=lambda mark: mark.x)
        yield lines(
            f"{title}\n{name}" if name else title,
            list(series.values()),
            unit,
            {mark.x: f"tp{mark.x:.0f}" for mark in marks},
            x_label="degree of tensor parallelism",
            ideal=smallest.value if unit == "tokens/s" else None,
        )


def _fall(curve: Curve) -> str:
    """How throughput per rank went from the smallest degree to the largest."""
    marks = sorted(curve.throughput["TP"].measured, key=lambda mark: mark.x)
    if len(marks) < 2:
        return ""
    first, last = marks[0], marks[-1]
    assert first.value is not None
    assert last.value is not None
    went = "fell" if last.value < first.value else "rose"
    sentence = (
        f"From tp{first.x:.0f} to tp{last.x:.0f} throughput per rank {went} from "
        f"{format_value(first.value, 'tokens/s').removesuffix(' tokens/s')} to {format_value(last.value, 'tokens/s')} "
        f"({100 * last.value / first.value:.0f} % of tp{first.x:.0f}"
    )
    gaps = [mark for mark in curve.throughput["TP"].marks if mark.value is None]
    lost = "".join(f"; tp{mark.x:.0f}: {mark.status.replace('_', ' ')}" for mark in gaps)
    return f"{sentence}{lost}){';' if _saving(curve) else '.'}"


def _saving(curve: Curve) -> str:
    """What sequence parallelism did to peak memory at the largest degree where both were measured."""
    if "TP + SP" not in curve.memory:
        return ""
    plain = {mark.x: mark.value for mark in curve.memory["TP"].measured if mark.x > 1}
    split = {mark.x: mark.value for mark in curve.memory["TP + SP"].measured}
    common = sorted(plain.keys() & split.keys())
    if not common:
        return ""
    degree = common[-1]
    before, after = plain[degree] or 0.0, split[degree] or 0.0
    if not before:
        return ""
    change = after / before - 1
    verb = "lowered" if change < 0 else "raised"
    of = scale("B", [before, after])
    sizes = f"from {of.text(before, 3)} to {of.text(after, 3)} {of.unit}"
    if abs(change) < 0.005:
        return f"sequence parallelism left peak memory at tp{degree:.0f} as it was, at {of.text(before, 3)} {of.unit}."
    return f"sequence parallelism {verb} peak memory at tp{degree:.0f} by {100 * abs(change):.0f} %, {sizes}."
