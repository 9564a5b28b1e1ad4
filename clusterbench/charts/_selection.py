"""What charts ask of rows: which belong together, and what to call them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from clusterbench.benchmarks import benchmarks
from clusterbench.charts._drawing import layout_of
from clusterbench.layout import AXES, RIDERS, ParallelLayout
from clusterbench.options import Option, options_of, say
from clusterbench.parallel import PHASES, parallelisms
from clusterbench.rows import Row
from clusterbench.types import Point
from clusterbench.units import scale

NODES = "num_nodes"
"""Told beside options, as the same step may run on more nodes."""

TOTAL_MEMORY = ("", "total", "allocated")
"""Categories of ``peak_memory`` that are the whole and not a part of it."""

OTHER_VIEWS = ("reserved", "nvml")
"""Categories that measure the same memory another way."""

FOLLOWS_LAYOUT = frozenset(("layout", "gradient_accumulation_steps", "num_microbatches", *AXES, *RIDERS))
"""Options that follow from the layout, so they do not tell two workloads apart."""


@cache
def sharing() -> Mapping[str, Option]:
    """Options of parallelisms: how a step is shared or carried out; what is applied last is first."""
    kinds = sorted(parallelisms().values(), key=lambda kind: -PHASES.index(kind.phase))
    return {name: option for kind in kinds for name, option in options_of(kind).items()}


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


def trained(rows: Iterable[Row], *metrics: str) -> list[Trained]:
    """Training cases with these metrics of theirs; those without a figure too, and refusals."""
    wanted, found = {"", *metrics}, dict[str, Trained]()
    for row in rows:
        if row.metric not in wanted or not row.point.get("layout"):
            continue
        if row.case not in found:
            layout = layout_of(str(row.point["layout"]))
            if layout is None:
                continue
            found[row.case] = Trained(row, layout)
        if row.metric:
            found[row.case].figures[row.metric, *row.detail.values()] = row
    return list(found.values())


def groups_of(
    cases: Iterable[Trained], key: Callable[[Trained], tuple[object, ...]], without: Collection[str] = ()
) -> list[list[Trained]]:
    """Cases that share ``key``, and every option but ``without`` and what follows from a layout."""
    groups: dict[tuple[object, ...], list[Trained]] = defaultdict(list)
    for case in cases:
        options = frozenset(
            (name, value) for name, value in case.point.items() if name not in FOLLOWS_LAYOUT and name not in without
        )
        groups[*key(case), options].append(case)
    return list(groups.values())


def are_most(groups: Iterable[Sequence[Trained]], cases: Sequence[Trained]) -> bool:
    """Whether a run is about these groups: more than half of its training cases are in them."""
    return 2 * sum(len(group) for group in groups) > len(cases)


def memory_parts(cases: Iterable[Trained]) -> list[str]:
    """Categories of peak memory that are parts of the whole."""
    every = dict.fromkeys(name for case in cases for name in case.details("peak_memory"))
    return [name for name in every if name not in (*TOTAL_MEMORY, *OTHER_VIEWS)]


def change(before: float, after: float, unit: str) -> str:
    """``by 25 %, from 40 to 30 MiB``."""
    of = scale(unit, [before, after])
    return f"by {100 * abs(after / before - 1):.0f} %, from {of.text(before, 3)} to {of.text(after, 3)} {of.unit}"


def workloads(rows: Iterable[Row], without: Collection[str] = ()) -> Callable[[Row], tuple[object, ...]]:
    """Tells what a row of ``rows`` computes, whatever ranks share it; equal workloads may be compared across layouts.

    An option that only some of the layouts have (one of tensor parallelism, say) does not tell two workloads apart, and
    neither do options in ``without``.
    """
    common: dict[str, set[str]] = {}
    points = {id(row.point): row for row in rows}
    for row in points.values():
        common.setdefault(row.benchmark, set(row.point)).intersection_update(row.point)
    names = {benchmark: sorted(shared - FOLLOWS_LAYOUT - set(without)) for benchmark, shared in common.items()}
    # Rows of a case share one point object; what is known of it is looked up by what it is, not by what it holds.
    known = {
        number: (row.benchmark, *(row.point[name] for name in names[row.benchmark])) for number, row in points.items()
    }
    return lambda row: known[id(row.point)]


def said(status: str) -> str:
    return status.replace("_", " ")


def names(rows: Iterable[Row], quiet: Collection[str] = (), without: Collection[str] = ()) -> Callable[[Row], str]:
    """Tells cases of ``rows`` apart in few words: the layout, how the step is shared, and what else differs.

    ``pp2-dp2, zbv, mbs 2``. Of how a step is shared the ``quiet`` options are said only where they differ; options
    ``without`` which a case can be named, as the figure says them elsewhere, never.
    """
    rows = _one_a_case(rows)
    others = [option for option in _differing(rows) if option not in sharing() and option not in without]
    chosen = choices(rows, quiet, without)
    return lambda row: ", ".join([str(row.point.get("layout") or row.benchmark), *chosen(row), *_words(row, others)])


def choices(rows: Iterable[Row], quiet: Collection[str], without: Collection[str] = ()) -> Callable[[Row], list[str]]:
    """How the step of a row is shared beside its layout, in words; the ``quiet`` options only where they differ."""
    values: dict[str, set[object]] = {option: set() for option in quiet}
    for row in _one_a_case(rows):
        for option in values.keys() & row.point.keys():
            values[option].add(row.point[option])
    silent = {option for option, found in values.items() if len(found) < 2} | set(without)
    return lambda row: list(_choices(row.point, [option for option in sharing() if option not in silent]))


def apart(rows: Sequence[Row], without: Collection[str] = ()) -> list[str]:
    """What tells each row from the others, in words: nothing where all have the same options, or only one has them."""
    differing = [option for option in _differing(rows) if option not in without]
    shared = [option for option in differing if option in sharing()]
    others = [option for option in differing if option not in sharing()]
    return [", ".join([*_choices(row.point, shared), *_words(row, others)]) for row in rows]


def titles(groups: Sequence[Sequence[Trained]], heads: Sequence[object] = ()) -> list[str]:
    """A second line for the title of each group's panels, where there are several: what tells it from the others."""
    words = groups_apart([[case.row for case in group] for group in groups], heads)
    return [f"\n{said}" if said else "" for said in words]


def groups_apart(groups: Sequence[Sequence[Row]], heads: Sequence[object] = ()) -> list[str]:
    """What tells each group from the others, in words; nothing of one group alone.

    The layout of a group's first row tells where options do not. ``heads`` are what is said of each anyway.
    """
    firsts = [group[0] for group in groups]
    words = apart(firsts, {option for group in groups for option in _differing(_one_a_case(group))})
    if len(set(zip(words, heads or words, strict=True))) == len(words):
        return words
    return [
        ", ".join(filter(None, [str(row.point.get("layout", "")), said]))
        for row, said in zip(firsts, words, strict=True)
    ]


def _one_a_case(rows: Iterable[Row]) -> list[Row]:
    # Rows of a case share one point object.
    return list({id(row.point): row for row in rows}.values())


def _differing(rows: Sequence[Row]) -> list[str]:
    """Options, variables and numbers of nodes in which rows differ, but for what a layout says; the most telling first.

    What comes with a run (its name, the options of an import) stands before options of benchmarks, variables come last.
    """
    if len(rows) < 2:
        return []
    points = [row.point for row in rows]
    first = points[0]
    every = {option for point in points for option in point} - FOLLOWS_LAYOUT - {"num_ranks"}
    differing = {option for option in every if any(point.get(option) != first.get(option) for point in points)}
    known = list(_options(rows[0].benchmark))
    found = sorted(
        differing, key=lambda option: (option.isupper(), known.index(option) if option in known else -1, option)
    )
    return [*found, *([NODES] if len({row.num_nodes for row in rows}) > 1 else [])]


def _choices(point: Point, shared: Iterable[str]) -> Iterator[str]:
    """Words of options of parallelisms, but for values that ask for nothing."""
    every = sharing()
    for option in shared:
        if option in point and (every[option].is_choice_of_kinds or point[option] != every[option].default):
            yield every[option].words(point[option])


def _words(row: Row, options: Iterable[str]) -> Iterator[str]:
    known = _options(row.benchmark)
    for option in options:
        if option == NODES:
            yield f"{row.num_nodes} node{'s' * (row.num_nodes != 1)}"
        elif option in row.point:
            value = row.point[option]
            if option in known:
                yield known[option].words(value)
            elif option.isupper():
                yield f"{option}={value}"
            else:
                yield str(value) if option == "run" else say(option.replace("_", " "), value)


@cache
def _options(benchmark: str) -> Mapping[str, Option]:
    kind = benchmarks().get(benchmark)
    return kind.options() if kind else {}


def curves_note(found: int, drawn: int, what: str, others: str = "all are in the table") -> str:
    """Says what was too much to draw, and where the ``others`` are."""
    return f"Drawn are the first {drawn} of {found:,} {what}; {others}." if found > drawn else ""
