from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.floors import is_meant
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from clusterbench.types import Floor as Asked
from clusterbench.types import metric_key, split_key
from clusterbench.units import format_value
from clusterbench.words import few, plural

_NAMED = 3  # groups in a sentence
_MOST_PERCENT = 1000  # beyond that it is said in times
_TAKES: Mapping[str, str] = {
    "expected": "a GPU whose data sheet is in clusterbench/hardware",
    "typical": "a figure with its source in clusterbench/hardware/typical",
    "baseline": "a baseline run that measured it",
}


@dataclass(frozen=True)
class _Judged:
    """A figure held against its floor; ``margin`` is how far it is on the good side, as a share of the bound."""

    asked: Asked
    row: Row
    state: Literal["met", "missed", "unsteady"]
    margin: float


class Floor(Diagnosis):
    """Figures below what the suite asks for at least, or above what it asks for at most.

    What it looks for
    -----------------
    Every figure that the suite names under at_least or at_most. A floor is missed where the whole interval of the
    figure lies beyond the bound, and met where none of it does; otherwise noise decides, and it is not judged. Bounds
    that are shares of an expectation, of a published figure or of a baseline run stand with their source.

    Why it matters
    --------------
    Ranks and links are compared with their peers by other diagnoses, and all of a machine may be slow alike: a driver,
    a clock limit or a missing link in every host shows against a figure from elsewhere only.

    How to confirm
    --------------
    Run the case alone, with more iterations, and with the program that the source names where it names one. Look
    whether the same figure is low on every host.

    What usually fixes it
    ---------------------
    For a copy or a collective: links that are down, peer access or NVLink SHARP switched off, PCIe at a lower
    generation or width. For products of matrices: power limit, clocks, heat. Where the machine is in order and the
    floor asks too much of it, the suite.
    """

    def answer(self, reading: Reading) -> Answer:
        rows: dict[str, list[Row]] = defaultdict(list)
        for metric in {split_key(asked.metric)[0] for history in reading.histories for asked in history.case.floors}:
            for row in reading.rows_of(metric):
                rows[row.case].append(row)
        groups: dict[tuple[object, ...], list[_Judged | NotJudged]] = defaultdict(list)
        for history in reading.histories:
            for asked in history.case.floors:
                groups[_group(history, asked)] += _held(history, asked, rows[history.case.id])
        judged = [held for group in groups.values() for held in group if isinstance(held, _Judged)]
        missed = sorted((figure for figure in judged if figure.state == "missed"), key=lambda figure: figure.margin)
        met = [figure for figure in judged if figure.state == "met"]
        return Answer(
            tuple(map(_finding, missed)),
            (_in_words(met),) if met else (),
            (
                *map(_undecided, (figure for figure in judged if figure.state == "unsteady")),
                *_not_judged(groups.values()),
            ),
        )


def _group(history: History, asked: Asked) -> tuple[object, ...]:
    """Cases whose floor is the same line: of a sweep some may have nothing to be held against, and not all."""
    case = history.case
    return case.benchmark, split_key(asked.metric)[0], asked.side, asked.asked, case.num_nodes


def _held(history: History, asked: Asked, rows: Sequence[Row]) -> Iterator[_Judged | NotJudged]:
    """A floor held against each figure that it means, or why that could not be."""
    case = history.case
    what = f"{case.benchmark} on {plural(case.num_nodes, 'node')}: {asked.words}"
    meant = [row for row in rows if is_meant(asked.metric, metric_key(row.metric, **row.detail))]
    figures = [row for row in meant if row.value is not None]
    if asked.bound is None:
        yield NotJudged(what, asked.basis, _TAKES.get(asked.asked.rpartition(" ")[2], "a bound"))
    elif history.pooled is None:
        why = history.outcome.reason if history.outcome and history.outcome.reason else "it was not measured"
        yield NotJudged(what, f"{case.id}: {why.splitlines()[0].rstrip('.')}", "a case that ends well")
    elif not figures:
        why = meant[0].basis if meant and meant[0].basis else "its record has no such figure"
        yield NotJudged(what, f"{case.id}: {why}", "a case that has it")
    else:
        yield from (_judge(asked, asked.bound, row) for row in figures)


def _judge(asked: Asked, bound: float, row: Row) -> _Judged:
    low, high = row.interval
    value, sign = float(row.value or 0.0), 1.0
    if asked.side == "at_most":
        low, high, value, bound, sign = -high, -low, -value, -bound, -1.0
    margin = (value - bound) / abs(bound) if bound else sign * value
    if high < bound - asked.doubt:
        return _Judged(asked, row, "missed", margin)
    return _Judged(asked, row, "met" if low >= bound + asked.doubt else "unsteady", margin)


def _finding(judged: _Judged) -> Finding:
    asked, row = judged.asked, judged.row
    key = metric_key(row.metric, **row.detail)
    side = "below" if asked.side == "at_least" else "above"
    percent = 100 * abs(judged.margin)
    by = f"{percent:.0f} % {side}" if percent < _MOST_PERCENT else f"{percent / 100 + 1:,.0f} times"
    figure, bound = (format_value(value, row.unit) for value in (row.value or 0.0, asked.bound or 0.0))
    return Finding(
        f"{row.case}, {key}",
        f"{figure}, {by} the {bound} that the suite asks for",
        "warning",
        f"{asked.side}: {asked.asked}; {asked.basis}",
        brief=f"{figure}, {by} {bound}",
        among=tuple(row.hosts.split()),
    )


def _undecided(judged: _Judged) -> NotJudged:
    asked, row = judged.asked, judged.row
    low, high, bound = (format_value(value, row.unit) for value in (*row.interval, asked.bound or 0.0))
    why = f"its noise reaches from {low} to {high}, on both sides of {bound}"
    return NotJudged(f"{row.case}, {asked.words}", why, "more iterations or repeats")


def _not_judged(groups: Iterable[Sequence[_Judged | NotJudged]]) -> Iterator[NotJudged]:
    """One reason for each group of which no case could be judged: that of a case with a bound, where there is one."""
    for group in groups:
        reasons = [held for held in group if isinstance(held, NotJudged)]
        if len(reasons) == len(group):
            yield min(reasons, key=lambda reason: reason.takes in _TAKES.values())


def _in_words(met: Sequence[_Judged]) -> str:
    """``12 floors of all_reduce and matmul are met; nearest: matmul/1n8/..., flops_per_s_per_rank, 8 % better``."""
    names = dict.fromkeys(figure.row.benchmark for figure in met)
    nearest = min(met, key=lambda figure: figure.margin)
    of = f"{plural(len(met), 'floor')} of {few(list(names), _NAMED)}"
    verb = "is" if len(met) == 1 else "are"
    return (
        f"{of} {verb} met (the nearest is {nearest.row.metric} of {nearest.row.case}, by {100 * nearest.margin:.0f} %)"
    )
