"""Training cases with their figures, and which of them belong together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import cache

from clusterbench.errors import LayoutError
from clusterbench.job.passes import CATEGORIES
from clusterbench.layout import FOLLOWS_LAYOUT, ParallelLayout
from clusterbench.options import options_of
from clusterbench.parallel import parallelisms
from clusterbench.rows import Row
from clusterbench.types import Point
from clusterbench.units import scale

TOTAL_MEMORY = ("", "total", "allocated")
"""Categories of ``peak_memory`` that are the whole and not a part of it."""

OTHER_VIEWS = ("reserved", "nvml")
"""Categories that measure the same memory another way."""

_ABSENT = object()


@dataclass(frozen=True)
class Trained:
    """One training case: its layout, and its figures by metric and what tells figures of that metric apart."""

    row: Row
    layout: ParallelLayout
    figures: dict[tuple[str, ...], Row] = field(default_factory=dict)

    @property
    def point(self) -> Point:
        return self.row.point

    @property
    def is_measured(self) -> bool:
        return bool(self.figures)

    def value(self, metric: str, *detail: str) -> float | None:
        row = self.figures.get((metric, *detail))
        return None if row is None else row.value

    def expected(self, metric: str, *detail: str) -> float | None:
        row = self.figures.get((metric, *detail))
        return None if row is None else row.expected

    def details(self, metric: str) -> list[str]:
        """What figures of this metric there are."""
        return [key[1] for key in self.figures if key[0] == metric and len(key) > 1]

    def values(self, metric: str, wanted: Iterable[str]) -> list[float | None]:
        return [self.value(metric, detail) for detail in wanted]

    def whole_memory(self) -> float | None:
        """The most of everything at one moment: of tensors, or on a GPU what its allocator counted."""
        keys = ((), *((name,) for name in TOTAL_MEMORY))  # an imported figure has no category
        return next((size for key in keys if (size := self.value("peak_memory", *key)) is not None), None)

    def sent_bytes(self) -> float | None:
        """Bytes times bus factor of a rank in a step, along all axes; None where those of one are not known."""
        sizes = self.values("traffic_bytes", self.details("traffic_bytes"))
        return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None


def trained(rows: Iterable[Row]) -> list[Trained]:
    """Training cases with all their figures; those without a figure too, and refusals."""
    by_case: dict[str, Trained] = {}
    keys: dict[tuple[str, ...], tuple[str, ...]] = {}  # all cases share them: a large run has a million figures
    for row in rows:
        case = by_case.get(row.case)
        if case is None:
            layout = layout_of(str(row.point["layout"])) if row.point.get("layout") else None
            if layout is None:
                continue
            case = by_case[row.case] = Trained(row, layout)
        if row.metric:
            key = row.metric, *row.detail.values()
            case.figures[keys.setdefault(key, key)] = row
    return list(by_case.values())


def groups_of(
    cases: Iterable[Trained], key: Callable[[Trained], tuple[object, ...]], without: Collection[str] = ()
) -> list[list[Trained]]:
    """Cases that share ``key``, and every option but ``without`` and what follows from a layout.

    An option of a parallelism that a layout does not use is as good as at its default.
    """
    cases, default = list(cases), _defaults()
    names = unlike([case.point for case in cases], FOLLOWS_LAYOUT.union(without))
    groups: dict[tuple[object, ...], list[Trained]] = defaultdict(list)
    for case in cases:
        groups[*key(case), *[case.point.get(name, default.get(name, _ABSENT)) for name in names]].append(case)
    return list(groups.values())


def groups_that_differ(
    cases: Sequence[Trained],
    apart: Callable[[Trained], object],
    key: Callable[[Trained], tuple[object, ...]],
    without: Collection[str] = (),
    fewest: int = 2,
) -> list[list[Trained]]:
    """Those groups of :func:`groups_of` that have at least ``fewest`` values of ``apart``, of which None is none.

    Most runs do not have so many in all, and then no group is looked for.
    """

    def differ(some: Iterable[Trained]) -> bool:
        return len({value for case in some if (value := apart(case)) is not None}) >= fewest

    return list(filter(differ, groups_of(cases, key, without))) if differ(cases) else []


@cache
def _defaults() -> dict[str, object]:
    """Of every option of a parallelism."""
    return {name: option.default for kind in parallelisms().values() for name, option in options_of(kind).items()}


def unlike(points: Sequence[Point], without: Collection[str]) -> list[str]:
    """Options but ``without`` in which points differ, or that only some have: the others tell no two of them apart."""
    options = set[str]().union(*points).difference(without)
    values = {name: points[0].get(name, _ABSENT) for name in options}
    return sorted(name for name, value in values.items() if any(point.get(name, _ABSENT) != value for point in points))


def are_most(groups: Iterable[Sequence[Trained]], cases: Sequence[Trained]) -> bool:
    """Whether a run is about these groups: more than half of its training cases with a figure are in them.

    Those without one do not count: where they are in groups of their own, what was measured has its chart all the same.
    """
    measured = sum(case.is_measured for case in cases)
    return 2 * sum(case.is_measured for group in groups for case in group) > measured


def memory_parts(cases: Iterable[Trained]) -> list[str]:
    """Categories of peak memory that are parts of the whole, in order."""
    categories = {name for case in cases for name in case.details("peak_memory")}
    return in_order(categories.difference(TOTAL_MEMORY, OTHER_VIEWS))


def in_order(categories: Set[str]) -> list[str]:
    """Categories of memory as all figures stack them; those that this package does not know stand last."""
    return [*filter(categories.__contains__, CATEGORIES), *sorted(categories - {*CATEGORIES})]


def change(before: float, after: float, unit: str) -> str:
    """``by 25 %, from 40 to 30 MiB``."""
    of = scale(unit, [before, after])
    return f"by {100 * abs(after / before - 1):.0f} %, from {of.text(before, 3)} to {of.text(after, 3)} {of.unit}"


def changes(what: str, before: float, after: float, unit: str) -> str:
    """``lowers peak memory by 25 %, from 40 to 30 MiB``, ``leaves peak memory at 40 MiB``."""
    of = scale(unit, [before, after])
    if of.text(before, 3) == of.text(after, 3):
        return f"leaves {what} at {of.text(after, 3)} {of.unit}"
    return f"{'lowers' if after < before else 'raises'} {what} {change(before, after, unit)}"


def workloads(rows: Iterable[Row], without: Collection[str] = ()) -> Callable[[Row], tuple[object, ...]]:
    """Tells what a row of ``rows`` computes, whatever ranks share it; equal workloads may be compared across layouts.

    An option that only some of the layouts have (one of tensor parallelism, say) does not tell two workloads apart, and
    neither do options in ``without``.
    """
    by_benchmark: dict[str, list[Point]] = defaultdict(list)
    points = {id(row.point): row for row in rows}
    for row in points.values():
        by_benchmark[row.benchmark].append(row.point)
    names = {
        benchmark: [name for name in unlike(own, FOLLOWS_LAYOUT.union(without)) if all(name in point for point in own)]
        for benchmark, own in by_benchmark.items()
    }
    # Rows of a case share one point object; what is known of it is looked up by what it is, not by what it holds.
    known = {
        number: (row.benchmark, *(row.point[name] for name in names[row.benchmark])) for number, row in points.items()
    }
    return lambda row: known[id(row.point)]


@cache
def layout_of(text: str) -> ParallelLayout | None:
    try:
        return ParallelLayout.parse(text)
    except LayoutError:
        return None


def said(status: str) -> str:
    return status.replace("_", " ")
