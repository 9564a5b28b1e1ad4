from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import groups_apart
from clusterbench.cases.trained import Trained, are_most, changes, groups_that_differ, said
from clusterbench.charts import Chart, Section, curves_note, said_of_each
from clusterbench.drawing.lines import Lines, Mark, Series, mark

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 4
SPEED, MEMORY = ("tokens_per_s_per_rank",), ("peak_memory", "activations")


@dataclass(frozen=True)
class Curve:
    """One workload at every degree of context parallelism, all else equal. Series by kind."""

    name: str
    throughput: Mapping[str, Series]
    activations: Mapping[str, Series]


class ContextScaling(Chart[list[Curve]]):
    """Throughput per rank and peak activations against the degree of context parallelism, by kind.

    How to read it
    --------------
    Left: tokens per second and rank; the dotted level is that of the smallest degree. Right: the most activations any
    rank held, and as a hollow diamond what was expected; half the tokens should need half, and what a kind keeps of
    other ranks' keys and values comes on top. All kinds start from the same case without cp. On CPU ranks the right
    panel counts: Gloo does not overlap, so the left one orders the kinds by their work, not as a GPU cluster would.
    Degrees stand on a logarithmic axis.
    """

    title: ClassVar[str] = "Throughput per rank and peak activations against context parallelism"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "recompute"

    def select(self, reading: Reading) -> list[Curve] | None:
        cases = reading.trained_with("tokens_per_s_per_rank", "peak_memory")
        ways = [_groups(cases, alike) for alike in (_same_replicas, _same_ranks)]
        ways = [groups for groups in ways if groups and are_most(groups, cases)]
        if not ways:
            return None
        groups = max(ways, key=lambda groups: max(map(_num_degrees, groups)))
        names = groups_apart([[case.row for case in group] for group in groups])
        return [_curve(name, group) for name, group in zip(names, groups, strict=True)]

    def draw(self, data: list[Curve]) -> list[Panel]:
        return [figure for curve in data[:MOST] for figure in _panels(curve, curve.name if len(data) > 1 else "")]

    def answer(self, data: list[Curve]) -> str:
        return said_of_each((curve.name for curve in data[:MOST]), map(_sentence, data))

    def left_out(self, data: list[Curve]) -> str:
        return curves_note(len(data), MOST, "workloads")


def _groups(cases: Sequence[Trained], alike: Callable[[Trained], tuple[object, ...]]) -> list[list[Trained]]:
    return groups_that_differ(cases, _measured_degree, alike, frozenset({"context"}))


def _measured_degree(case: Trained) -> int | None:
    return case.layout.cp if case.is_measured else None


def _num_degrees(group: Sequence[Trained]) -> int:
    """How many degrees have a figure."""
    return len({*map(_measured_degree, group)} - {None})


def _rest(layout_of: Trained) -> tuple[object, ...]:
    return layout_of.layout.apart_from("dp", "cp")


def _same_replicas(case: Trained) -> tuple[object, ...]:
    return *_rest(case), "dp", case.layout.dp


def _same_ranks(case: Trained) -> tuple[object, ...]:
    return *_rest(case), "ranks", case.layout.world_size, case.row.num_nodes


def _curve(name: str, group: Sequence[Trained]) -> Curve:
    kinds = list(dict.fromkeys(str(case.point.get("context", "cp")) for case in group if case.layout.cp > 1))
    series: list[dict[str, Series]] = [{}, {}]
    for kind in kinds:
        own = [case for case in group if case.layout.cp == 1 or str(case.point.get("context", "cp")) == kind]
        for of_kind, figure in zip(series, (SPEED, MEMORY), strict=True):
            marks = {case.layout.cp: _mark(case, figure) for case in reversed(own)}
            of_kind[kind] = Series(kind, tuple(marks[cp] for cp in sorted(marks)))
    return Curve(name, *series)


def _mark(case: Trained, figure: tuple[str, ...]) -> Mark:
    row = case.figures.get(figure)
    return mark(case.layout.cp, row or case.row)


def _panels(curve: Curve, name: str) -> Iterator[Panel]:
    both = (
        ("Throughput per rank", curve.throughput, "tokens/s"),
        ("Peak activations per rank", curve.activations, "B"),
    )
    for title, series, unit in both:
        measured = [mark for line in series.values() for mark in line.measured]
        if measured:
            yield Lines(
                f"{title}\n{name}" if name else title,
                list(series.values()),
                unit,
                {mark.x: f"cp{mark.x:.0f}" for line in series.values() for mark in line.marks},
                x_label="degree of context parallelism",
                ideal=min(measured, key=lambda mark: mark.x).value if unit == "tokens/s" else None,
            ).panel()


def _sentence(curve: Curve) -> str:
    """The kind that is fastest at the largest degree, what it keeps, and what it saves."""
    ends = {kind: line.measured[-1] for kind, line in curve.throughput.items() if len(line.measured) > 1}
    if not ends:
        return ""
    degree = max(mark.x for mark in ends.values())
    ends = {kind: mark for kind, mark in ends.items() if mark.x == degree}
    best = max(ends, key=lambda kind: ends[kind].value or 0.0)
    start = curve.throughput[best].measured[0]
    first, last = f"cp{start.x:.0f}", f"cp{degree:.0f}"
    of_kinds = f", the fastest of {len(ends)} kinds," if len(ends) > 1 else ""
    kept = 100 * (ends[best].value or 0.0) / (start.value or 1.0)
    sentence = f"From {first} to {last} {best}{of_kinds} keeps {kept:.0f} % of the throughput per rank"
    worst = min(ends, key=lambda kind: ends[kind].value or 0.0)
    if worst != best:
        sentence += f" ({worst}: {100 * (ends[worst].value or 0.0) / (start.value or 1.0):.0f} %)"
    gaps = [mark for mark in curve.throughput[best].marks if mark.value is None]
    lost = "".join(f"; cp{mark.x:.0f}: {said(mark.status)}" for mark in gaps)
    held = {mark.x: mark.value for mark in curve.activations[best].measured}
    before, after = held.get(start.x), held.get(degree)
    if not before or not after:
        return f"{sentence}{lost}."
    return f"{sentence} and {changes('peak activations', before, after, 'B')}{lost}."
