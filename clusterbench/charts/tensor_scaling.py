from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from clusterbench.cases import Reading
from clusterbench.cases.names import NODES, apart, groups_apart
from clusterbench.cases.ranking import percent
from clusterbench.cases.trained import TOTAL_MEMORY, Trained, workloads
from clusterbench.charts import Chart, Section, curves_note, said_of_each
from clusterbench.drawing.lines import Lines, Mark, Series, mark
from clusterbench.layout import ParallelLayout
from clusterbench.rows import Row
from clusterbench.units import format_value, scale
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 3
_WORTH_SAYING = 0.1  # of a figure: a narrower interval of iterations is left out of a sentence


class Step(NamedTuple):
    """A case, and its rows that are drawn."""

    case: Trained
    rows: Sequence[Row]

    @property
    def layout(self) -> ParallelLayout:
        return self.case.layout


@dataclass(frozen=True)
class Curve:
    """One workload at every degree of tensor parallelism, all else equal. Series by name: without and with SP."""

    name: str
    steps: Sequence[Step]

    @cached_property
    def throughput(self) -> Mapping[str, Series]:
        return self._series("tokens_per_s_per_rank")

    @cached_property
    def memory(self) -> Mapping[str, Series]:
        return self._series("peak_memory")

    def _series(self, metric: str) -> dict[str, Series]:
        # At tp1 there is nothing to split, so all curves start from the one case there.
        split = [step.case.row for step in self.steps if step.layout.tp > 1]
        words = dict(zip([row.case for row in split], apart(split, {NODES}), strict=True))
        own_of: dict[tuple[bool, str], list[Step]] = {
            (step.layout.sp, words[step.case.row.case]): [] for step in self.steps if step.layout.tp > 1
        }
        for step in self.steps:
            how = words.get(step.case.row.case)
            for own in own_of.values() if how is None else [own_of[step.layout.sp, how]]:
                own.append(step)
        series = {}
        for (sp, how), own in sorted(own_of.items(), key=lambda item: item[0]):
            curve = ", ".join(filter(None, ["TP + SP" if sp else "TP", how]))
            series[curve] = Series(curve, tuple(_marks(own, metric)))
        return series


class TensorScaling(Chart[list[Curve]]):
    """Throughput per rank and peak memory against the degree of tensor parallelism, with and without SP.

    How to read it
    --------------
    Left: tokens per second and rank; the dotted level is what perfect scaling from the smallest degree would give,
    and the distance below it is paid for communication and smaller matrices. Right: the highest memory any rank held.
    A pale bar behind a point runs from its low to its high: the 5th and 95th percentile over iterations, the least
    and the most over ranks. A cross is a case without a figure, and how it ended. Degrees stand on a logarithmic axis.
    """

    title: ClassVar[str] = "Throughput per rank and peak memory against tensor parallelism"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "layouts"

    def select(self, reading: Reading) -> list[Curve] | None:
        groups: dict[frozenset[str], tuple[str, list[Step]]] = {}
        cases, rows_of = reading.trained_with("tokens_per_s_per_rank", "peak_memory"), _drawn(reading)
        # A row without metric is a case that ended otherwise: a gap in both panels.
        drawn = ((case, rows_of.get(case.row.case, ()) if case.figures else [case.row]) for case in cases)
        steps = [Step(case, rows) for case, rows in drawn if rows]
        workload = workloads(step.case.row for step in steps)
        for alike in (_same_replicas, _same_ranks):
            steps_of: dict[tuple[object, ...], list[Step]] = defaultdict(list)
            for step in steps:
                steps_of[*workload(step.case.row), *alike(step.layout)].append(step)
            for group in steps_of.values():
                degrees = {step.layout.tp for step in group}
                if len(degrees) > 1 and any(row.value is not None for step in group for row in step.rows):
                    of_group = frozenset(step.case.row.case for step in group)
                    groups.setdefault(of_group, (_start(group, alike), group))
        starts, members = [start for start, _ in groups.values()], [group for _, group in groups.values()]
        words = groups_apart([[step.case.row for step in group] for group in members], starts)
        named = zip(words, starts, members, strict=True)
        # Of thousands of curves a few are drawn: each makes its series when it is asked for them.
        return [Curve(", ".join(filter(None, [name, start])), group) for name, start, group in named] or None

    def draw(self, data: list[Curve]) -> list[Panel]:
        return [figure for curve in data[:MOST] for figure in _panels(curve, curve.name if len(data) > 1 else "")]

    def answer(self, data: list[Curve]) -> str:
        names = (curve.name if len(data) > 1 else "" for curve in data[:MOST])
        return said_of_each(names, (" ".join(filter(None, (_fall(curve), _saving(curve)))) for curve in data))

    def left_out(self, data: list[Curve]) -> str:
        return curves_note(len(data), MOST, "workloads")


def _drawn(reading: Reading) -> Mapping[str, Sequence[Row]]:
    """The rows that are drawn, by case."""
    by_case: dict[str, list[Row]] = defaultdict(list)
    for row in (*reading.rows_of("tokens_per_s_per_rank"), *filter(_is_total, reading.rows_of("peak_memory"))):
        by_case[row.case].append(row)
    return by_case


def _is_total(row: Row) -> bool:
    return row.detail.get("category", "") in TOTAL_MEMORY


@cache
def _same_replicas(layout: ParallelLayout) -> tuple[object, ...]:
    return *layout.apart_from("dp", "tp", "sp"), "dp", layout.dp


@cache
def _same_ranks(layout: ParallelLayout) -> tuple[object, ...]:
    return *layout.apart_from("dp", "tp", "sp"), "ranks", layout.world_size


def _start(group: Sequence[Step], alike: Callable[[ParallelLayout], tuple[object, ...]]) -> str:
    """What the degrees of a curve share beside the work: ``from dp4``, ``4 ranks, from dp4``; nothing of tp alone."""
    smallest = min(group, key=lambda step: step.layout.tp).layout
    if smallest.world_size == smallest.tp and alike is _same_replicas:
        return ""
    return f"{smallest.world_size} ranks, from {smallest}" if alike is _same_ranks else f"from {smallest}"


def _marks(steps: Sequence[Step], metric: str) -> Iterator[Mark]:
    """One of each degree: of several cases the first with a figure."""
    of_degree: dict[int, Row] = {}
    for step in steps:
        row = next((row for row in step.rows if row.metric in ("", metric)), None)
        if row is not None:
            first = of_degree.setdefault(step.layout.tp, row)
            if first.value is None and row.value is not None:
                of_degree[step.layout.tp] = row
    yield from (mark(degree, row) for degree, row in of_degree.items())


def _panels(curve: Curve, name: str) -> Iterator[Panel]:
    both = (("Throughput per rank", curve.throughput, "tokens/s"), ("Peak memory per rank", curve.memory, "B"))
    for title, series, unit in both:
        marks = [mark for line in series.values() for mark in line.marks]
        measured = [mark for mark in marks if mark.value is not None]
        if not measured:
            continue
        smallest = min(measured, key=lambda mark: mark.x)
        yield Lines(
            f"{title}\n{name}" if name else title,
            list(series.values()),
            unit,
            {mark.x: f"tp{mark.x:.0f}" for mark in marks},
            x_label="degree of tensor parallelism",
            ideal=smallest.value if unit == "tokens/s" else None,
        ).panel()


def _fall(curve: Curve) -> str:
    """How throughput per rank went from the smallest degree to the largest."""
    plain = curve.throughput.get("TP")
    marks = sorted(plain.measured, key=lambda mark: mark.x) if plain else []
    if plain is None or len(marks) < 2:
        return ""
    first, last = marks[0], marks[-1]
    assert first.value is not None
    assert last.value is not None
    went = "fell" if last.value < first.value else "rose"
    sentence = (
        f"From tp{first.x:.0f} to tp{last.x:.0f} throughput per rank {went} from {_with_interval(first)} to "
        f"{_with_interval(last)} tokens/s ({100 * last.value / first.value:.0f} % of tp{first.x:.0f}"
        f"{_together(curve, marks)}"
    )
    gaps = [mark for mark in plain.marks if mark.value is None]
    lost = "".join(f"; tp{mark.x:.0f}: {mark.status.replace('_', ' ')}" for mark in gaps)
    return f"{sentence}{lost}){';' if _saving(curve) else '.'}"


def _with_interval(at: Mark) -> str:
    """``9,027 (8,296 to 9,933)``; the figure alone where iterations hardly differ."""
    assert at.value is not None
    figures = [at.value] if at.low is None or at.high is None else [at.value, at.low, at.high]
    value, *ends = (format_value(figure, "tokens/s").removesuffix(" tokens/s") for figure in figures)
    return f"{value} ({' to '.join(ends)})" if max(figures) - min(figures) > _WORTH_SAYING * at.value else value


def _together(curve: Curve, marks: Sequence[Mark]) -> str:
    """How fast all ranks of the largest degree train, where each has less to do than at the smallest, and those of a
    degree between that train faster than both, by more than iterations differ."""
    first, last = marks[0], marks[-1]
    ranks = {step.layout.tp: step.layout.world_size for step in curve.steps}
    few, many = (ranks[int(at.x)] for at in (first, last))
    if few == many or not first.value or last.value is None:
        return ""
    ratio = f"{last.value * many / (first.value * few):.2f}"
    said = f", so {plural(many, 'rank')} train {'' if ratio == '1.00' else f'{ratio} times '}as fast as {few}"
    fastest = max(marks, key=lambda at: (at.value or 0.0) * ranks[int(at.x)])
    own = ranks[int(fastest.x)]
    if fastest is first or _ends(fastest)[0] * own <= _ends(last)[1] * many:
        return said
    return f"{said}, and {own}, the fastest, {(fastest.value or 0.0) * own / (first.value * few):.2f} times"


def _saving(curve: Curve) -> str:
    """What sequence parallelism did to peak memory at the largest degree where both were measured."""
    if not {"TP", "TP + SP"} <= curve.memory.keys():
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
    sizes = f"from {of.text(before, 3)} to {of.text(after, 3)} {of.unit}{_cost(curve, degree, verb)}"
    who = f"sequence parallelism {_activations(curve)}"
    if abs(change) < 0.005:
        return f"{who}left peak memory at tp{degree:.0f} as it was, at {of.text(before, 3)} {of.unit}."
    return f"{who}{verb} peak memory at tp{degree:.0f} by {100 * abs(change):.0f} %, {sizes}."


def _activations(curve: Curve) -> str:
    """What sequence parallelism saved of activations at each degree where both were measured, the least degree first;
    nothing where it saved none somewhere."""
    held: dict[bool, dict[int, float]] = {False: {}, True: {}}
    for case, _ in curve.steps:
        if size := case.value("peak_memory", "activations"):
            held[case.layout.sp].setdefault(case.layout.tp, size)
    saved = {degree: 1 - held[True][degree] / held[False][degree] for degree in sorted(held[True].keys() & held[False])}
    if not saved or min(saved.values()) <= 0:
        return ""
    said = ", ".join(f"{percent(share)} at tp{degree}" for degree, share in saved.items())
    return f"lowered peak activations by {said}, and "


def _cost(curve: Curve, degree: float, verb: str) -> str:
    """What sequence parallelism did to throughput at that degree, where it is more than iterations differ."""
    both = (curve.throughput[name].measured for name in ("TP", "TP + SP"))
    plain, split = (next((mark for mark in marks if mark.x == degree), None) for marks in both)
    if plain is None or split is None or not plain.value or split.value is None:
        return ""
    (low, high), (own_low, own_high) = _ends(plain), _ends(split)
    if own_low <= high and low <= own_high:
        return ""
    change = split.value / plain.value - 1
    other = "lowered" if change < 0 else "raised"
    return f", and {'' if other == verb else f'{other} '}throughput by {percent(abs(change))}"


def _ends(at: Mark) -> tuple[float, float]:
    ends = [end for end in (at.value, at.low, at.high) if end is not None]
    return min(ends), max(ends)
