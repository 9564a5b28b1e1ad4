from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._collective import sweeps_of
from clusterbench.cases import Reading
from clusterbench.cases.links import NEIGHBOURS, Links, links, worded
from clusterbench.cases.steadiness import TOO_FEW
from clusterbench.cases.sweeps import sweep_name
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.lines import Lines, Mark, Series, mark
from clusterbench.formulas.latency_bandwidth import Segment, fit
from clusterbench.rows import Row
from clusterbench.units import format_bytes, format_value
from clusterbench.words import few

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 8
MOST_SPREAD = 0.40
MOST_TIMES_OFF, MOST_OFF = 1.5, 0.25
"""A line is drawn where no more than a quarter of its points are off by more than half, and neither its first nor its
last, on which latency and bandwidth stand."""
_FURTHEST = 100  # where a call takes so many times what its bytes alone would, their line says nothing


@dataclass(frozen=True)
class Fitted:
    """One sweep: its measured times, the fit and the textbooks' algorithms beside them."""

    name: str
    segments: tuple[Segment, ...]
    series: list[Series]
    doubt: str = ""
    """Why no line is drawn through the times; nothing where they lie along it."""


class CollectiveFits(Chart[list[Fitted]]):
    """Time of a call against message size, with the line fitted to it and what textbooks' algorithms would take.

    How to read it
    --------------
    The fit is alpha + size / beta, in as many pieces as the algorithm seems to switch; none is drawn where iterations
    differ by more than 40 % or points are off the line by half. Ring and tree are textbooks'
    algorithms over links with the latency and bandwidth that send_recv showed in this run: a collective above both
    leaves something to be gained, one below both has better links or better algorithms than messages between two ranks
    tell of, such as reduction in a switch. Where the rate of a link is known, by the GPU's data sheet or by a link
    matrix of this run, one more line is the time that the bytes of the busiest link take at that rate. Both axes are
    logarithmic.
    """

    title: ClassVar[str] = "Time of a call: measured, fitted, and of ring and tree algorithms"
    section: ClassVar[Section] = "links"
    after: ClassVar[str] = "busbw_by_size"

    def select(self, reading: Reading) -> list[Fitted] | None:
        rows, cluster = reading.rows, reading.plan.cluster
        benchmarks = dict.fromkeys(row.benchmark for row in reading.rows_of("fit_error"))
        if not benchmarks:
            return None
        name, known = sweep_name(rows), links(rows, cluster)
        models: dict[str, dict[str, float]] = defaultdict(dict)
        busbw: dict[str, float] = {}
        for row in reading.rows_of("model_latency", "busbw"):
            if row.metric == "model_latency" and row.value is not None:
                models[row.case][row.detail["part"]] = row.value
            elif row.metric == "busbw" and row.value is not None:
                busbw[row.case] = row.value
        spread = {row.case: row.value for row in reading.rows_of("time_cv") if row.iterations > TOO_FEW}
        fits: dict[str, list[Fitted]] = defaultdict(list)
        are_hops_sound = True
        for benchmark in sorted(benchmarks, key=lambda name: name != "send_recv"):  # the models stand on its fits
            for sweep in sweeps_of(rows, benchmark):
                marks = tuple(mark(float(row.point["size_bytes"]), row) for row in sweep)
                if segments := fit(tuple((mark.x, mark.value) for mark in marks if mark.value)):
                    doubt = _doubt(marks, segments, [cv for row in sweep if (cv := spread.get(row.case)) is not None])
                    are_hops_sound &= benchmark != "send_recv" or not doubt
                    series = [Series("measured", marks), *([] if doubt else [_fit(marks, segments)])]
                    series += _models(sweep, models) if are_hops_sound else []
                    series += _at_link_rates(sweep, busbw, known)
                    fits[benchmark].append(Fitted(name(sweep[0]), segments, series, doubt))
        # one of each operation before a second of any
        in_turn = [fitted for of_all in zip_longest(*fits.values()) for fitted in of_all if fitted is not None]
        return sorted(in_turn, key=lambda fitted: bool(fitted.doubt)) or None

    def draw(self, data: list[Fitted]) -> list[Panel]:
        return [
            Lines(
                fitted.name,
                fitted.series,
                "s",
                {mark.x: format_bytes(mark.x) for mark in fitted.series[0].marks},
                x_label="message size",
                logarithmic=True,
            ).panel()
            for fitted in data[:MOST]
        ]

    def answer(self, data: list[Fitted]) -> str:
        sound = [fitted for fitted in data if not fitted.doubt]
        if not sound:
            return f"No line is fitted to the times of a call: {data[0].doubt}."
        first, last = sound[0].segments[0], sound[0].segments[-1]
        beta = f", and large ones pass at {format_value(last.bytes_per_s, 'B/s')}" if last.bytes_per_s else ""
        said = [f"{sound[0].name}: a call without bytes takes {format_value(first.alpha_s, 's')}{beta}."]
        if len(sound) > 1:
            said.append(_slowest_start(sound))
        return " ".join([*said, _switches(sound)])

    def left_out(self, data: list[Fitted]) -> str:
        doubted = [fitted.name for fitted in data if fitted.doubt]
        why = next((fitted.doubt for fitted in data if fitted.doubt), "")
        note = f"No line is drawn for {few(doubted)}: {why}." if doubted else ""
        return " ".join(filter(None, [curves_note(len(data), MOST, "sweeps"), note]))


def _slowest_start(sound: Sequence[Fitted]) -> str:
    most = max(sound, key=lambda fitted: fitted.segments[0].alpha_s)
    return f"Of {len(sound)} the most is {format_value(most.segments[0].alpha_s, 's')}, of {most.name}."


def _switches(sound: Sequence[Fitted]) -> str:
    """Where the algorithm seems to change, as the pieces of a line have it."""
    at = [
        f"{fitted.name} at {' and '.join(format_bytes(segment.smallest) for segment in fitted.segments[1:])}"
        for fitted in sound
        if len(fitted.segments) > 1
    ]
    if not at:
        return "No change of algorithm is seen."
    others = len(sound) - len(at)
    return f"The algorithm seems to change: {few(at)}{f'; in {others:,} others it does not' if others else ''}."


def _doubt(marks: Sequence[Mark], segments: Sequence[Segment], spread: Sequence[float]) -> str:
    """What speaks against a line through these times: their own spread, or points that are far off it."""
    if spread and (usual := median(spread)) > MOST_SPREAD:
        return f"iterations of one size differ by {100 * usual:.0f} % (coefficient of variation, median over sizes)"
    measured = [(mark.x, mark.value) for mark in marks if mark.value]
    off = [_is_off(size, time_s, segments) for size, time_s in measured]
    if off[0] or off[-1] or sum(off) > MOST_OFF * len(off):
        return f"{sum(off)} of {len(off)} sizes are off the line by more than half"
    return ""


def _is_off(size_bytes: float, time_s: float, segments: Sequence[Segment]) -> bool:
    of = next(segment for segment in segments if segment.smallest <= size_bytes <= segment.largest)
    return not 1 / MOST_TIMES_OFF <= of.time_s(size_bytes) / time_s <= MOST_TIMES_OFF


def _fit(marks: Sequence[Mark], segments: Sequence[Segment]) -> Series:
    fitted = [
        Mark(mark.x, segment.time_s(mark.x))
        for segment in segments
        for mark in marks
        if segment.smallest <= mark.x <= segment.largest
    ]
    return Series("fit", tuple(fitted))


def _models(sweep: Sequence[Row], models: dict[str, dict[str, float]]) -> list[Series]:
    of_name: dict[str, list[Mark]] = defaultdict(list)
    for row in sweep:
        for name, time_s in models[row.case].items():
            of_name[name].append(Mark(float(row.point["size_bytes"]), time_s))
    return [Series(name, tuple(marks)) for name, marks in of_name.items()]


def _at_link_rates(sweep: Sequence[Row], busbw: dict[str, float], known: Links) -> list[Series]:
    """The time of the bytes alone: a call that takes t at a bus bandwidth of b would take t b / rate at that rate."""
    curves = []
    for name, rate in known.of(sweep[0]).items():
        if name == NEIGHBOURS:
            continue  # ring and tree are made of it, with its latency
        marks = [
            Mark(float(row.point["size_bytes"]), row.value * busbw[row.case] / rate)
            for row in sweep
            if row.value and busbw.get(row.case, 0.0) > rate / _FURTHEST
        ]
        if len(marks) > 1:
            curves.append(Series(worded(name, sweep[0]), tuple(marks)))
    return curves
