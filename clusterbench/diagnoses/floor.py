from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from clusterbench.benchmarks import same_work
from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.floors import is_meant
from clusterbench.measured.disturbed import DISTURBED, UNDISTURBED
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from clusterbench.types import Floor as Asked
from clusterbench.types import metric_key, split_key
from clusterbench.units import format_value
from clusterbench.words import few, plural

_NAMED = 3  # groups in a sentence
_MOST_PERCENT = 1000  # beyond that it is said in times
_HAS_IT = "a case that has it"
_TAKES: Mapping[str, str] = {
    "expected": "a GPU whose data sheet is in clusterbench/hardware",
    "typical": "a figure with its source in clusterbench/hardware/typical",
    "baseline": "a baseline run that measured it",
}


@dataclass(frozen=True)
class _Judged:
    """A figure held against its floor; ``margin`` is how far it is on the good side, as a share of the bound.

    Where the floor is asked of the best, it is the best of ``num_cases`` figures; ``rest`` says which cases may yet be
    better.
    """

    asked: Asked
    row: Row
    state: Literal["met", "missed", "unsteady", "open"]
    margin: float
    num_cases: int = 1
    rest: str = ""

    @property
    def rank(self) -> tuple[bool, bool, float]:
        return self.state == "met", self.state == "unsteady", self.margin


class Floor(Diagnosis):
    """Figures below what the suite asks for at least, or above what it asks for at most.

    What it looks for
    -----------------
    Every figure that the suite names under at_least or at_most. A floor is missed where the whole interval of the
    figure lies beyond the bound, and met where none of it does; otherwise noise decides, and it is not judged. A floor
    that is asked of the best is missed where every case that does the same work on as many nodes misses it, and not
    judged as long as one of them has yet to be measured. Bounds that are shares of an expectation, of a published
    figure or of a baseline run stand with their source.

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
    generation or width. For products of matrices: power limit, clocks, heat. For training steps: either of these, as
    the parts of the step show, or cores too slow or too busy to launch kernels in time. Where the machine is in order
    and the floor asks too much of it, the suite.
    """

    def answer(self, reading: Reading) -> Answer:
        rows: dict[str, list[Row]] = defaultdict(list)
        for metric in {split_key(asked.metric)[0] for history in reading.histories for asked in history.case.floors}:
            for row in reading.rows_of(metric):
                rows[row.case].append(row)
        groups: dict[tuple[object, ...], list[_Judged | NotJudged]] = defaultdict(list)
        contests: dict[tuple[tuple[object, ...], object], list[_Entry]] = defaultdict(list)
        for history in reading.histories:
            for asked in history.case.floors:
                run = reading.run_of(history) if reading.hosts_of_runs else ""
                entry = _Entry(history, asked, rows[history.case.id], run)
                if asked.best:
                    contests[entry.group, same_work(history.case)].append(entry)
                else:
                    groups[entry.group] += entry.held()
        for (group, _), entries in contests.items():
            groups[group] += _best(entries)
        judged = [held for group in groups.values() for held in group if isinstance(held, _Judged)]
        missed = sorted((figure for figure in judged if figure.state == "missed"), key=lambda figure: figure.margin)
        met = [figure for figure in judged if figure.state == "met"]
        return Answer(
            tuple(map(_finding, missed)),
            (_in_words(met),) if met else (),
            (
                *map(_undecided, (figure for figure in judged if figure.state in ("unsteady", "open"))),
                *_not_judged(groups.values()),
            ),
        )


@dataclass(frozen=True)
class _Entry:
    """What is asked of one case, with its rows of that metric; ``run`` where several stand side by side."""

    history: History
    asked: Asked
    rows: Sequence[Row]
    run: str

    @property
    def group(self) -> tuple[object, ...]:
        """The same for one line of the suite: of a sweep some may have nothing to be held against, and not all."""
        case, asked = self.history.case, self.asked
        of_line = case.benchmark, split_key(asked.metric)[0], asked.side, asked.best, asked.asked, case.num_nodes
        return *of_line, self.run

    def may_beat(self, best: History) -> bool:
        """Whether the case, which has no figure, may be better: not if it was skipped or ended as the suite expected.

        What was stopped at its limit is slower for certain only if the best needed much less than that.
        """
        case, status = self.history.case, self.history.status
        if status == "timeout" and status in case.expected_outcomes:
            return max(outcome.elapsed_s for outcome in best.deciding) > case.time_limit_s / 2
        return status not in ("skipped", *case.expected_outcomes)

    def held(self) -> Iterator[_Judged | NotJudged]:
        """The floor held against each figure that it means, or why that could not be."""
        asked, case, outcome = self.asked, self.history.case, self.history.outcome
        what = f"{case.benchmark} on {plural(case.num_nodes, 'node')}: {asked.words}"
        meant = [row for row in self.rows if is_meant(asked.metric, metric_key(row.metric, **row.detail))]
        figures = [row for row in meant if row.value is not None]
        if asked.bound is None:
            yield NotJudged(what, asked.basis, _TAKES.get(asked.asked.rpartition(" ")[2], "a bound"))
        elif self.history.pooled is None:
            why = outcome.reason if outcome and outcome.reason else "it was not measured"
            yield NotJudged(what, f"{case.id}: {why.splitlines()[0].rstrip('.')}", "a case that ends well")
        elif not figures:
            why = meant[0].basis if meant and meant[0].basis else "its record has no such figure"
            yield NotJudged(what, f"{case.id}: {why}", UNDISTURBED if why.startswith(DISTURBED) else _HAS_IT)
        else:
            yield from (_judge(asked, asked.bound, row) for row in figures)


def _best(entries: Sequence[_Entry]) -> Iterator[_Judged | NotJudged]:
    """The best of cases that do the same work, held against the strictest of their bounds, or why that could not be."""
    sign = 1 if entries[0].asked.side == "at_least" else -1
    bounds = [(sign * entry.asked.bound, entry.asked) for entry in entries if entry.asked.bound is not None]
    strictest = {asked.metric: asked for _, asked in sorted(bounds, key=lambda pair: pair[0])}
    for asked in strictest.values() or [entries[0].asked]:
        yield from _best_of([replace(entry, asked=asked) for entry in entries])


def _best_of(entries: Sequence[_Entry]) -> Iterator[_Judged | NotJudged]:
    judged: dict[str, list[_Judged]] = defaultdict(list)
    without: list[tuple[_Entry, NotJudged]] = []
    for entry in entries:
        for held in entry.held():
            if isinstance(held, _Judged):
                judged[metric_key(held.row.metric, **held.row.detail)].append(held)
            else:
                without.append((entry, held))
    if not judged:
        yield without[0][1]
    histories = {entry.history.case.id: entry.history for entry in entries}
    for figures in judged.values():
        best = replace(max(figures, key=lambda figure: figure.rank), num_cases=len(figures))
        better = [reason for entry, reason in without if entry.may_beat(histories[best.row.case])]
        if best.state == "missed" and better:
            rest = f"{plural(len(better), 'other case')} may be better ({better[0].why})"
            best = replace(best, state="open", rest=rest)
        yield best


def _judge(asked: Asked, bound: float, row: Row) -> _Judged:
    low, high = row.interval
    value = float(row.value or 0.0)
    if asked.side == "at_most":
        low, high, value, bound = -high, -low, -value, -bound
    margin = (value - bound) / abs(bound) if bound else value
    if high < bound - asked.doubt:
        return _Judged(asked, row, "missed", margin)
    return _Judged(asked, row, "met" if low >= bound + asked.doubt else "unsteady", margin)


def _finding(judged: _Judged) -> Finding:
    asked, row = judged.asked, judged.row
    key = metric_key(row.metric, **row.detail)
    figure, by, bound = _in_figures(judged)
    of = f"the best of {plural(judged.num_cases, 'case')}" if asked.best else ""
    return Finding(
        f"{row.case}, {key}",
        f"{figure}, {by} the {bound} that the suite asks {f'of {of}' if of else 'for'}",
        "warning",
        f"{asked.side}: {'best ' if asked.best else ''}{asked.asked}; {asked.basis}",
        brief=f"{figure}, {by} {bound}" + (f", and {of}" if of else ""),
        among=tuple(row.hosts.split()),
    )


def _in_figures(judged: _Judged) -> tuple[str, str, str]:
    """``180.0 GB/s``, ``40 % below``, ``300.0 GB/s``."""
    row, percent = judged.row, 100 * abs(judged.margin)
    side = "below" if judged.asked.side == "at_least" else "above"
    by = f"{percent:.0f} % {side}" if percent < _MOST_PERCENT else f"{percent / 100 + 1:,.0f} times"
    if not judged.asked.bound:
        by = side
    return format_value(row.value or 0.0, row.unit), by, format_value(judged.asked.bound or 0.0, row.unit)


def _undecided(judged: _Judged) -> NotJudged:
    asked, row = judged.asked, judged.row
    if judged.rest:
        figure, by, bound = _in_figures(judged)
        return NotJudged(f"{row.case}, {asked.words}", f"{figure}, {by} {bound}, but {judged.rest}", "the other cases")
    least, most = row.interval  # a time that is as long as its noise is not below 0
    ends = max(least, 0.0) if (row.value or 0.0) > 0 else least, most, asked.bound or 0.0
    low, high, bound = (format_value(value, row.unit) for value in ends)
    why = f"its noise reaches from {low} to {high}, on both sides of {bound}"
    return NotJudged(f"{row.case}, {asked.words}", why, "more iterations or repeats")


def _not_judged(groups: Iterable[Sequence[_Judged | NotJudged]]) -> Iterator[NotJudged]:
    """One reason for each group of which no case could be judged: that of a case with a bound, where there is one.

    Of a group of which others were judged that of a case that was measured and lacks the figure.
    """
    for group in groups:
        reasons = [held for held in group if isinstance(held, NotJudged)]
        if len(reasons) == len(group):
            yield min(reasons, key=lambda reason: reason.takes in _TAKES.values())
        else:
            yield from [reason for reason in reasons if reason.takes in (_HAS_IT, UNDISTURBED)][:1]


def _in_words(met: Sequence[_Judged]) -> str:
    """``12 floors of all_reduce and matmul are met; nearest: matmul/1n8/..., flops_per_s_per_rank, 8 % better``."""
    names = dict.fromkeys(figure.row.benchmark for figure in met)
    nearest = min(met, key=lambda figure: figure.margin)
    of = f"{plural(len(met), 'floor')} of {few(list(names), _NAMED)}"
    verb = "is" if len(met) == 1 else "are"
    return (
        f"{of} {verb} met (the nearest is {nearest.row.metric} of {nearest.row.case}, by {100 * nearest.margin:.0f} %)"
    )
