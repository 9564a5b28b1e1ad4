from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.sweeps import sweep_name
from clusterbench.charts import Chart, Section, curves_note, said_of_each
from clusterbench.drawing.lines import Lines, Mark, Series
from clusterbench.formulas.statistics import median
from clusterbench.formulas.student_t import quantile
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History, iteration_times
from clusterbench.units import format_bytes
from clusterbench.words import few, plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, MOST_CURVES, MOST_NAMED = 4, 6, 3
FASTER = 1.05
"""How many times as fast a setting has to be, to be worth a name."""
LEVEL = 0.003
"""Chance at which repeats of one size would seem to show it; two sizes in a row have to."""
FEWEST_REPEATS = 3
FEWEST_SIZES = 2
"""In a row: of many sizes and settings there is always one that is lucky at one size."""

Settings = tuple[tuple[str, str], ...]
_FOLLOWS_SIZE = frozenset({"size_bytes", "busiest_elements", "traffic"})


@dataclass(frozen=True)
class Timed:
    """One case: seconds of a call as its row has them, and of each repeat; none where it ended otherwise."""

    row: Row
    repeats_s: Sequence[float] = ()

    def times_as_fast(self, default: Timed) -> float | None:
        return default.row.value / self.row.value if self.row.value and default.row.value else None

    @property
    def logarithms(self) -> Sequence[float]:
        return [math.log(seconds) for seconds in self.repeats_s]

    def is_faster(self, default: Timed, noise: float) -> bool | None:
        """Whether repeats show it, each of which is off by ``noise`` times a root; None where they are too few."""
        if min(len(self.repeats_s), len(default.repeats_s)) < FEWEST_REPEATS:
            return None
        ahead = fmean(default.logarithms) - fmean(self.logarithms)
        of_means = math.sqrt(1 / len(self.repeats_s) + 1 / len(default.repeats_s))
        return ahead > max(math.log(FASTER), noise * of_means)


@dataclass(frozen=True)
class Call:
    """One operation on the same ranks, by size: with no setting of its own, where that was timed, and with each."""

    name: str
    default: Mapping[float, Timed]
    settings: Mapping[str, Mapping[float, Timed]] = field(default_factory=dict)

    @cached_property
    def series(self) -> list[Series]:
        """Times as fast as the default, the setting that is furthest ahead at any size first."""
        curves = [
            Series(
                name,
                tuple(
                    Mark(size, timed.times_as_fast(self.default[size]), status=timed.row.status, case=timed.row.case)
                    for size, timed in sorted(by_size.items())
                    if size in self.default
                ),
            )
            for name, by_size in self.settings.items()
        ]
        return sorted(curves, key=lambda curve: -max((mark.value or 0.0 for mark in curve.marks), default=0.0))

    @cached_property
    def is_judged(self) -> bool:
        """Whether any setting has repeats enough to be told from the default."""
        return any(faster is not None for name in self.settings for _, faster in self._faster(name))

    def ahead(self, name: str) -> tuple[float, float, float] | None:
        """From which size to which one a setting is faster, in the longest row of sizes, and how many times at most."""
        rows: list[list[float]] = [[]]
        for size, is_faster in self._faster(name):
            if is_faster:
                rows[-1].append(size)
            elif rows[-1]:
                rows.append([])
        longest = max(rows, key=len)
        if len(longest) < FEWEST_SIZES:
            return None
        of = self.settings[name]
        return longest[0], longest[-1], max(of[size].times_as_fast(self.default[size]) or 0.0 for size in longest)

    def _faster(self, name: str) -> Iterator[tuple[float, bool | None]]:
        for size, timed in sorted(self.settings[name].items()):
            if size in self.default:
                yield size, timed.is_faster(self.default[size], self._noise[size])

    @cached_property
    def _noise(self) -> dict[float, float]:
        """By size how far one repeat may be off by chance, by Student's t: repeats of all settings differ alike."""
        noise = {}
        for size, default in self.default.items():
            timed = [default, *(of[size] for of in self.settings.values() if size in of)]
            repeated = [each.logarithms for each in timed if len(each.repeats_s) >= FEWEST_REPEATS]
            degrees = sum(len(each) - 1 for each in repeated)
            squares = sum((value - fmean(each)) ** 2 for each in repeated for value in each)
            noise[size] = quantile(LEVEL, degrees) * math.sqrt(squares / degrees) if degrees else math.inf
        return noise


class ForcedSettings(Chart[list[Call]]):
    """How many times as fast an operation is with one variable set as with none, against message size.

    How to read it
    --------------
    The dotted level is the library's own choice, with no variable set: what is above it is faster. A setting is forced
    for all sizes, so most are ahead at some and far behind at others; what counts is whether any is ahead where the job
    sends. It is named where its repeats, three or more, are faster than the default's by 5 % and by more than repeats
    of that size differ, at two sizes in a row. Each result was proven before it was timed: a protocol that a machine
    cannot do may send other bytes. On CPU ranks NCCL is not in use, and its variables change nothing.
    """

    title: ClassVar[str] = "Forced settings against the library's own choice"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "ways"

    def select(self, reading: Reading) -> list[Call] | None:
        groups: dict[tuple[object, ...], list[tuple[Settings, Row]]] = defaultdict(list)
        for row in reading.rows_of("latency", ""):
            if row.status != "refused" and isinstance(row.point.get("size_bytes"), (int, float)):
                variables, plain = _apart(row)
                groups[_work(plain)].append((variables, plain))
        compared = [group for group in groups.values() if _has_a_default(group)]
        name = sweep_name(row for group in compared for _, row in group)
        calls = [_call(name(group[0][1]), group, reading.history_of) for group in compared]
        return [call for call in calls if call.settings and len(call.default) >= FEWEST_SIZES] or None

    def draw(self, data: list[Call]) -> list[Panel]:
        return [_panel(call, f"\n{call.name}" if len(data) > 1 else "") for call in data[:MOST]]

    def answer(self, data: list[Call]) -> str:
        return said_of_each((call.name for call in data[:MOST]), map(_sentence, data))

    def left_out(self, data: list[Call]) -> str:
        most = max(len(call.settings) for call in data)
        of_each = curves_note(most, MOST_CURVES, "settings of an operation") if most > MOST_CURVES else ""
        return " ".join(filter(None, [curves_note(len(data), MOST, "operations"), of_each]))


def _apart(row: Row) -> tuple[Settings, Row]:
    """The variables of a case, and its row with the other options alone."""
    variables = tuple(sorted((name, str(value)) for name, value in row.point.items() if name.isupper()))
    point = {name: value for name, value in row.point.items() if not name.isupper()}
    return variables, row._replace(point=point)


def _work(row: Row) -> tuple[object, ...]:
    """What cases share that do the same with messages of other sizes."""
    options = ((name, str(value)) for name, value in row.point.items() if name not in _FOLLOWS_SIZE)
    return row.run, row.benchmark, row.device, row.num_nodes, row.world_size, *sorted(options)


def _has_a_default(group: Sequence[tuple[Settings, Row]]) -> bool:
    """Whether some cases have fewer variables than all others, and these have those, too."""
    kinds = {variables for variables, _ in group}
    fewest = min(kinds, key=len)
    return len(kinds) > 1 and all({*fewest} < {*others} for others in kinds - {fewest})


def _call(name: str, group: Sequence[tuple[Settings, Row]], histories: Mapping[str, History]) -> Call:
    fewest = min((variables for variables, _ in group), key=len)
    by_size: dict[Settings, dict[float, Timed]] = defaultdict(dict)
    for variables, row in group:
        history = histories.get(row.case)
        repeats_s = [median(iteration_times(seen)) for seen in history.observations] if history else []
        by_size[variables].setdefault(float(row.point["size_bytes"]), Timed(row, repeats_s))
    settings = {
        ", ".join(f"{variable}={value}" for variable, value in variables if (variable, value) not in fewest): of_sizes
        for variables, of_sizes in by_size.items()
        if variables != fewest
    }
    return Call(name, {size: timed for size, timed in by_size[fewest].items() if timed.row.value}, settings)


def _panel(call: Call, under: str) -> Panel:
    curves = call.series[:MOST_CURVES]
    ticks = {mark.x: format_bytes(mark.x) for curve in curves for mark in curve.marks}
    return Lines(
        f"Times as fast as without{under}", curves, "1", ticks, "message size", ideal=1.0, ideal_name="own choice"
    ).panel()


def _sentence(call: Call) -> str:
    if not call.is_judged:
        return f"Not judged: it takes {FEWEST_REPEATS} repeats to tell a setting from the library's own choice."
    ahead = {name: found for name in call.settings if (found := call.ahead(name)) is not None}
    others = len(call.settings) - len(ahead)
    if not ahead:
        which = "the one setting that was tried is not" if others == 1 else f"none of {plural(others, 'setting')} is"
        return f"{which[0].upper()}{which[1:]} {100 * (FASTER - 1):.0f} % faster at two sizes in a row."
    best_first = sorted(ahead, key=lambda name: -ahead[name][2])
    said = [_ahead(name, *ahead[name]) for name in best_first]
    rest = f"; {plural(others, 'other')} {'is' if others == 1 else 'are'} not" if others else ""
    return f"Faster is {few(said, MOST_NAMED)}{rest}."


def _ahead(name: str, first: float, last: float, times: float) -> str:
    return f"{name} from {format_bytes(first)} to {format_bytes(last)}, up to {times:.2f} times as fast"
