from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.steadiness import TOO_FEW
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.panel import Column, Entry, Panel
from clusterbench.drawing.style import GRID, INK, LETTERS, MUTED, PALETTE, WORDS, canvas
from clusterbench.formulas.statistics import UNSTABLE_CV, median, percentile
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import UNSTABLE_MAX_OVER_MEDIAN, History, host_of
from clusterbench.units import digits, format_value, scale
from clusterbench.words import legible, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from clusterbench.units import Scale

MOST = 6
MOST_MAIN = 3
MOST_POINTS, MOST_OUTLIERS, MOST_NAMED = 300, 60, 3
"""Of more iterations a point is several that follow each other, of more outliers the slowest are drawn."""

FEWEST_FOR_DRIFT = 20
"""Of fewer iterations a fifth has no four, and four lie above four others by chance once in 35 times."""

AGREEING = 0.95
"""Share of pairs, of the first fifth and of the last, that differ in the same direction where there is drift."""

HIGHEST = 3.0
"""Times the 95th percentile: what is slower is an arrow at the upper edge, or it would flatten all else."""

_STANDS_OUT = PALETTE[1]
_LETTER = 0.016
"""Width of a letter beside an outlier, as a share of the axes' width."""


@dataclass(frozen=True)
class Iteration:
    """One iteration: it takes as long as its slowest rank. Repeats count from 1, and iterations within each."""

    repeat: int
    number: int
    time_s: float
    rank: int
    host: str


@dataclass(frozen=True)
class Steadiness:
    """How far the iterations of a case differ, all repeats together.

    ``is_unsteady`` is the reading's word, which is the verdict's. ``drift`` is how much longer the last fifth of them
    takes than the first, as a fraction; None where that may be chance.
    """

    case: str
    count: int
    median_s: float
    cv: float
    max_over_median: float
    drift: float | None
    is_unsteady: bool

    @property
    def stands_out(self) -> bool:
        return self.is_unsteady or self.drift is not None


@dataclass(frozen=True)
class Course:
    """The iterations of one case in order of time, repeat after repeat."""

    steadiness: Steadiness
    iterations: tuple[Iteration, ...]
    world_size: int

    @property
    def outliers(self) -> list[Iteration]:
        """Iterations above 1.5 times the median, nccl-tests' limit, the slowest first."""
        limit_s = UNSTABLE_MAX_OVER_MEDIAN * self.steadiness.median_s
        above = [iteration for iteration in self.iterations if iteration.time_s > limit_s]
        return sorted(above, key=lambda iteration: -iteration.time_s)

    @property
    def levels_s(self) -> list[float]:
        """The median of each repeat, where they differ by more than a steady case's iterations may."""
        groups = groupby(self.iterations, lambda iteration: iteration.repeat)
        medians_s = [median([iteration.time_s for iteration in group]) for _, group in groups]
        return medians_s if max(medians_s) > (1 + UNSTABLE_CV) * min(medians_s) else []


@dataclass(frozen=True)
class Courses:
    """What is drawn, the most unsteady first, and of how many cases it is.

    Attributes
    ----------
    num_drifting
        Cases that drift and are not unsteady.
    num_too_few
        Cases whose iterations are too few to tell.
    """

    drawn: tuple[Course, ...]
    num_unsteady: int
    num_drifting: int
    num_too_few: int
    num_cases: int


class Stability(Chart[Courses]):
    """Time of every iteration in the order in which they ran, of cases that are unsteady or drift and of the main ones.

    How to read it
    --------------
    A point is an iteration, as high as its slowest rank; the line is the median, and the band holds what lies between
    the 5th and the 95th percentile. Repeats stand side by side; in the gap between them other cases ran. A steady case
    is a level row of points. Crosses are iterations above 1.5 times the median: something interrupted them, another
    program, the network, a host that swaps; where it is the same rank each time, look at that rank. An arrow at the
    upper edge is such an iteration too, and took longer than the axis shows; its time stands beside it where there is
    room. A slope is heat, falling clocks or memory that fills up: two bars are the medians of the first and the last
    fifth, where these differ by more than chance. A step between repeats is something that changed on the machine. The
    variation above each panel is the standard deviation over the mean; a case is unsteady where it is above 5 %, or
    where there is a cross or an arrow, as in the verdict. Two iterations say nothing. A drift alone makes no case
    unsteady.
    """

    title: ClassVar[str] = "How steady the times are: iteration after iteration"
    section: ClassVar[Section] = "steadiness"
    is_aside: ClassVar[bool] = True

    def select(self, reading: Reading) -> Courses | None:
        if reading.shares_gpus:
            return None
        histories = {history.case.id: history for history in reading.histories if history.pooled is not None}
        judged = (_steadiness(history, reading.unsteady) for history in histories.values())
        known = {steadiness.case: steadiness for steadiness in judged if steadiness}
        if not known:
            return None
        standing_out = [steadiness for steadiness in known.values() if steadiness.stands_out]
        standing_out.sort(key=lambda steadiness: (not steadiness.is_unsteady, -steadiness.cv))
        main = [known[case] for case in _main(reading) if case in known][:MOST_MAIN]
        kept = max(MOST - sum(not steadiness.stands_out for steadiness in main), 0)
        drawn = list(dict.fromkeys([*standing_out[:kept], *main]))[:MOST] or list(known.values())[:1]
        courses = tuple(_course(histories[steadiness.case], steadiness) for steadiness in drawn)
        unsteady = sum(steadiness.is_unsteady for steadiness in known.values())
        return Courses(courses, unsteady, len(standing_out) - unsteady, len(histories) - len(known), len(histories))

    def draw(self, data: Courses) -> list[Panel]:
        return [_panel(course) for course in data.drawn]

    def answer(self, data: Courses) -> str:
        first, unsteady, drifting = data.drawn[0], data.num_unsteady, data.num_drifting
        of = f"of {plural(data.num_cases, 'case')}"
        if unsteady:
            more = f", and {drifting:,} more {_verb(drifting, 'drifts', 'drift')}" if drifting else ""
            return f"{unsteady:,} {of} {_verb(unsteady, 'is', 'are')} unsteady{more}. {_sentence(first)}"
        if drifting:
            return f"No case is unsteady; {drifting:,} {of} {_verb(drifting, 'drifts', 'drift')}. {_sentence(first)}"
        which = "All cases are" if data.num_cases > 1 else f"{legible(first.steadiness.case)} is"
        if data.num_too_few:
            which = f"All cases of {TOO_FEW + 1} iterations or more are"
        return f"{which} steady: no coefficient of variation is above {_percent(UNSTABLE_CV)}, and no case drifts."

    def left_out(self, data: Courses) -> str:
        drawn = sum(course.steadiness.stands_out for course in data.drawn)
        what = "cases that are unsteady or drift" if data.num_drifting else "unsteady cases"
        return curves_note(data.num_unsteady + data.num_drifting, drawn, what)


def _verb(count: int, of_one: str, of_more: str) -> str:
    return of_one if count == 1 else of_more


def drift(times_s: Sequence[float]) -> float | None:
    """The median of the last fifth over that of the first, less one; None where it is small or may be chance.

    >>> drift([1.0, 1.1] * 10)
    >>> round(drift([1.0, 1.01] * 5 + [1.2, 1.21] * 5), 3)
    0.199
    """
    if len(times_s) < FEWEST_FOR_DRIFT:
        return None
    fifth = len(times_s) // 5
    first, last = sorted(times_s[:fifth]), times_s[-fifth:]
    change = median(last) / median(first) - 1
    if abs(change) <= UNSTABLE_CV:
        return None
    longer = sum(bisect_left(first, time_s) for time_s in last)
    shorter = sum(fifth - bisect_right(first, time_s) for time_s in last)
    return change if max(longer, shorter) >= AGREEING * fifth**2 else None


def _steadiness(history: History, unsteady: Set[str]) -> Steadiness | None:
    """None where there are too few iterations to say anything of."""
    spread, case = history.spread, history.case.id
    if spread is None or spread.num_iterations <= TOO_FEW:
        return None
    drifts = drift(history.times_s) if spread.num_iterations >= FEWEST_FOR_DRIFT else None
    return Steadiness(case, *spread, drifts, case in unsteady)


def _main(reading: Reading) -> list[str]:
    """The case of each benchmark that a reader looks for: the fastest training, the largest message, or the first."""
    best: dict[str, tuple[float, float, str]] = {}
    rates = [row for row in reading.rows_of("tokens_per_s") if row.value is not None]
    choices = [*((row, _size(row)) for row in reading.measured), *((row, (2.0, row.value or 0.0)) for row in rates)]
    for row, choice in choices:
        if row.benchmark not in best or choice > best[row.benchmark][:2]:
            best[row.benchmark] = (*choice, row.case)
    return [case for *_, case in sorted(best.values(), key=lambda choice: -choice[0])]


def _size(row: Row) -> tuple[float, float]:
    size_bytes = row.point.get("size_bytes")
    return (1.0, float(size_bytes)) if isinstance(size_bytes, (int, float)) else (0.0, 0.0)


def _course(history: History, steadiness: Steadiness) -> Course:
    iterations = (
        Iteration(
            observation.repeat + 1,
            number,
            max(times_s),
            rank := times_s.index(max(times_s)),
            host_of(observation, rank),
        )
        for observation in history.observations
        for number, times_s in enumerate(zip(*observation.seconds, strict=True), 1)
    )
    return Course(steadiness, tuple(iterations), history.case.world_size)


# The words


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g} %" if fraction < 0.1 else f"{100 * fraction:,.0f} %"


def _sentence(course: Course) -> str:
    """``all_reduce/1n4/1MiB differs most: ...``."""
    steadiness, outliers = course.steadiness, course.outliers
    facts = [f"a coefficient of variation of {_percent(steadiness.cv)} over {steadiness.count:,} iterations"]
    if outliers:
        slowest = outliers[0]
        whose = f", when rank {slowest.rank} on {legible(slowest.host)} was last" if course.world_size > 1 else ""
        facts.append(f"the slowest takes {digits(steadiness.max_over_median, 3)} times the median{whose}")
        same = sum(other.rank == slowest.rank for other in outliers)
        if course.world_size > 1 and len(outliers) > 2 and same == len(outliers):
            facts.append(f"that rank is the last in all {same} above {UNSTABLE_MAX_OVER_MEDIAN} times the median")
    if levels := course.levels_s:
        of = scale("s", levels)
        facts.append(
            f"the medians of its repeats lie between {of.text(min(levels), 3)} and {of.text(max(levels), 3)} {of.unit}"
        )
    if steadiness.drift is not None:
        facts.append(
            f"the last fifth takes {_percent(abs(steadiness.drift))} {_longer(steadiness.drift)} than the first"
        )
    return f"{legible(steadiness.case)} differs most: {'; '.join(facts)}."


def _longer(change: float) -> str:
    return "longer" if change > 0 else "less"


def _subtitle(steadiness: Steadiness) -> str:
    of = scale("s", [steadiness.median_s])
    words = [f"median {of.text(steadiness.median_s, 3)} {of.unit}"]  # short: a line of a figure holds 72 letters
    if steadiness.max_over_median > UNSTABLE_MAX_OVER_MEDIAN:
        words.append(f"slowest {digits(steadiness.max_over_median, 3)} ×")
    words.append(f"variation {_percent(steadiness.cv)}")
    if (drift := steadiness.drift) is not None:
        words.append(f"last fifth {'+' if drift > 0 else '-'}{_percent(abs(drift))}")
    return ", ".join(words)


# The picture


@dataclass(frozen=True)
class _Placed:
    x: float
    iteration: Iteration

    def height(self, of: Scale, top_s: float) -> float:
        """Where it is drawn: no higher than the upper edge."""
        return of(min(self.iteration.time_s, top_s))


def _panel(course: Course) -> Panel:
    steadiness, times_s = course.steadiness, [iteration.time_s for iteration in course.iterations]
    low_s, high_s = percentile(times_s, 0.05), percentile(times_s, 0.95)
    top_s = 1.15 * min(max(times_s), HIGHEST * high_s)
    of = scale("s", [top_s])
    figure, axes = canvas(legible(steadiness.case, 60), height=2.7)
    axes.set_title(legible(steadiness.case, 60), loc="left", pad=24, fontsize=9.5, fontweight="bold")
    axes.annotate(
        _subtitle(steadiness),
        (0, 1),
        (0, 11),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=LETTERS,
        color=MUTED,
    )
    repeats = _repeats(course.iterations)
    end = repeats[-1][-1].x
    outliers = {id(iteration): None for iteration in course.outliers[:MOST_OUTLIERS]}
    axes.axhspan(of(low_s), of(high_s), color=PALETTE[0], alpha=0.14, linewidth=0)
    axes.axhline(of(steadiness.median_s), color=PALETTE[0], linewidth=1.2)
    shown = [
        point for placed in repeats for point in _thinned(placed, len(times_s)) if id(point.iteration) not in outliers
    ]
    axes.plot(
        [point.x for point in shown], [point.height(of, top_s) for point in shown], linestyle="", marker="o",
        color=PALETTE[0], markersize=4 if len(shown) <= 80 else 2.5, markeredgewidth=0,
    )  # fmt: skip
    above = [point for placed in repeats for point in placed if id(point.iteration) in outliers]
    _draw_outliers(axes, above, of, top_s)
    _name_outliers(axes, above, of, top_s, end, course.world_size > 1)
    if steadiness.drift is not None:
        _draw_drift(axes, [point for placed in repeats for point in placed], of)
    _label_iterations(axes, repeats)
    axes.set_xlim(-0.02 * end, 1.02 * end)
    axes.set_ylim(0, of(top_s))
    axes.set_ylabel(of.unit)
    entries = tuple(
        Entry(
            (
                f"repeat {point.iteration.repeat}, iteration {point.iteration.number}",
                point.iteration.time_s,
                f"rank {point.iteration.rank}",
                legible(point.iteration.host),
                note,
            ),
            steadiness.case,
            (point.x, y := point.height(of, top_s), point.x, y),
        )
        for points, note in ((above, "above 1.5 times the median"), (shown, ""))
        for point in points
    )
    columns = (Column("iteration"), Column("time", "s"), Column("slowest rank"), Column("host"), Column("note"))
    return Panel(figure, columns, entries)


def _repeats(iterations: Sequence[Iteration]) -> list[list[_Placed]]:
    """Each iteration with its place on the axis: one after the other, and a gap before each further repeat."""
    groups = [list(group) for _, group in groupby(iterations, lambda iteration: iteration.repeat)]
    gap, start, repeats = max(1, len(iterations) // 25), 1, []
    for group in groups:
        repeats.append([_Placed(x, iteration) for x, iteration in enumerate(group, start)])
        start += len(group) + gap
    return repeats


def _thinned(placed: Sequence[_Placed], count: int) -> Iterator[_Placed]:
    """All, or of each few that follow each other the middle one by time."""
    each = -(-count // MOST_POINTS)
    for first in range(0, len(placed), each):
        some = sorted(placed[first : first + each], key=lambda point: point.iteration.time_s)
        yield some[len(some) // 2]


def _draw_outliers(axes: Axes, above: Sequence[_Placed], of: Scale, top_s: float) -> None:
    """Crosses, and arrows at the upper edge for what is beyond it."""
    beyond = [point for point in above if point.iteration.time_s > top_s]
    for points, marker in (([point for point in above if point not in beyond], "x"), (beyond, "^")):
        if points:  # an empty line would be laid out as one at 0
            axes.plot(
                [point.x for point in points], [point.height(of, top_s) for point in points], linestyle="",
                marker=marker, color=_STANDS_OUT, markersize=6, markeredgewidth=1.6, clip_on=False,
            )  # fmt: skip


def _name_outliers(axes: Axes, above: Sequence[_Placed], of: Scale, top_s: float, end: float, has_ranks: bool) -> None:
    """The slowest of them that have room: the rank, and the time where it is beyond the axis."""
    # Left, right and height of what is drawn, as shares of the axes.
    taken = [(point.x / end, point.x / end, point.height(of, top_s) / of(top_s)) for point in above]
    for point in sorted(above, key=lambda point: -point.iteration.time_s):
        whose = f"rank {point.iteration.rank}" if has_ranks else ""
        time = format_value(point.iteration.time_s, "s") if point.iteration.time_s > top_s else ""
        words = ", ".join(filter(None, (whose, time)))
        x, height = point.x / end, point.height(of, top_s)
        at_right = x > 0.8
        left, right = (x - _LETTER * len(words), x) if at_right else (x, x + _LETTER * len(words))
        beside = [at for *span, at in taken if left < span[1] and span[0] < right]
        if not words or any(abs(height / of(top_s) - at) < 0.08 for at in beside):
            continue
        taken.append((left, right, height / of(top_s)))
        axes.annotate(
            words, (point.x, height), (-6 if at_right else 6, 0), textcoords="offset points",
            ha="right" if at_right else "left", va="center", fontsize=LETTERS, color=WORDS[1],
        )  # fmt: skip
        if len(taken) == len(above) + MOST_NAMED:
            break


def _draw_drift(axes: Axes, placed: Sequence[_Placed], of: Scale) -> None:
    """The medians of the first and the last fifth, as two levels."""
    fifth = len(placed) // 5
    for some in (placed[:fifth], placed[-fifth:]):
        level = of(median([point.iteration.time_s for point in some]))
        axes.plot([some[0].x, some[-1].x], [level, level], color=INK, linewidth=2.2, solid_capstyle="butt")


def _label_iterations(axes: Axes, repeats: Sequence[Sequence[_Placed]]) -> None:
    if len(repeats) == 1:
        axes.locator_params(axis="x", integer=True, nbins=8)
        axes.set_xlabel("iteration")
        return
    step = -(-len(repeats) // 8)
    named = repeats[::step]
    axes.set_xticks(
        [(placed[0].x + placed[-1].x) / 2 for placed in named],
        [f"repeat {placed[0].iteration.repeat}" for placed in named],
    )
    most = max(map(len, repeats))
    axes.set_xlabel(f"{most:,} iterations in each repeat")
    for before, after in pairwise(repeats):
        axes.axvspan(before[-1].x + 0.5, after[0].x - 0.5, color=GRID, alpha=0.35, linewidth=0)
