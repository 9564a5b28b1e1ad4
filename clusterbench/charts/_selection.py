"""What charts ask of rows: which belong together, and what to call them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from clusterbench.charts._drawing import layout_of
from clusterbench.layout import ParallelLayout
from clusterbench.rows import Row
from clusterbench.types import Point
from clusterbench.units import scale

TOTAL_MEMORY = ("", "total", "allocated")
"""Categories of ``peak_memory`` that are the whole and not a part of it."""

OTHER_VIEWS = ("reserved", "nvml")
"""Categories that measure the same memory another way."""

FOLLOWS_LAYOUT = frozenset(
    ("layout", "gradient_accumulation_steps", "num_microbatches", "pp", "dp", "cp", "tp", "sp", "ep", "zero")
)
"""Options that follow from the layout, so they do not tell two workloads apart."""


SHARING = frozenset(
    (
        "schedule",
        "chunks_per_rank",
        "context",
        "routing",
        "expert_overlap",
        "offload",
        "shard_group_size",
        "recompute",
        "loss_parallel",
        "compile",
        "compress",
        "powersgd_rank",
    )
)
"""Options that say how a step is shared or carried out, and not what it computes."""


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

    def name(self, *without: str) -> str:
        """``pp2-dp2, zbv``: the layout, and what options make of it."""
        return ", ".join([str(self.layout), *choices(self.point, without)])


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
    cases: Iterable[Trained], key: Callable[[Trained], tuple[object, ...]], without: frozenset[str] = frozenset()
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


def choices(point: Point, without: Iterable[str] = ()) -> list[str]:
    """Options of how a step is shared that are worth naming beside its layout."""
    said = {
        "schedule": point.get("schedule"),
        "chunks_per_rank": f"{point['chunks_per_rank']} chunks" if point.get("chunks_per_rank") else None,
        "context": point.get("context"),
        "routing": point.get("routing"),
        "expert_overlap": "overlap" if point.get("expert_overlap") else None,
        "shard_group_size": f"groups of {point['shard_group_size']}" if point.get("shard_group_size") else None,
        "offload": "offload" if point.get("offload") else None,
        "recompute": f"{point['recompute']} recompute" if point.get("recompute", "none") != "none" else None,
        "compile": "compiled" if point.get("compile") else None,
    }
    return [str(words) for name, words in said.items() if words and name not in without]


def change(before: float, after: float, unit: str) -> str:
    """``by 25 %, from 40 to 30 MiB``."""
    of = scale(unit, [before, after])
    return f"by {100 * abs(after / before - 1):.0f} %, from {of.text(before, 3)} to {of.text(after, 3)} {of.unit}"


def workloads(rows: Iterable[Row]) -> Callable[[Row], tuple[object, ...]]:
    """Tells what a row of ``rows`` computes, whatever ranks share it; equal workloads may be compared across layouts.

    An option that only some of the layouts have (one of tensor parallelism, say) does not tell two workloads apart.
    """
    common: dict[str, set[str]] = {}
    points = {id(row.point): row for row in rows}
    for row in points.values():
        common.setdefault(row.benchmark, set(row.point)).intersection_update(row.point)
    names = {benchmark: sorted(shared - FOLLOWS_LAYOUT) for benchmark, shared in common.items()}
    # Rows of a case share one point object; what is known of it is looked up by what it is, not by what it holds.
    known = {
        number: (row.benchmark, *(row.point[name] for name in names[row.benchmark])) for number, row in points.items()
    }
    return lambda row: known[id(row.point)]


def said(status: str) -> str:
    return status.replace("_", " ")


def variant(row: Row, without: tuple[str, ...] = ()) -> str:
    """A short name for what a row measured."""
    parts = [str(row.point[key]) for key in ("run", "shape", "layout") if row.point.get(key) and key not in without]
    for key, short in (("seq_len", "seq"), ("micro_batch_size", "mbs"), ("global_batch_size", "gbs")):
        if row.point.get(key) is not None:
            parts.append(f"{short} {row.point[key]}")
    if row.point.get("dtype"):
        parts.append(str(row.point["dtype"]))
    return ", ".join(parts) or row.benchmark


def names(rows: Iterable[Row]) -> Callable[[Row], str]:
    """Tells rows of ``rows`` apart in few words: the layout, options that share the work, and what else differs."""
    rest = apart(rows)
    return lambda row: ", ".join(
        filter(None, [str(row.point.get("layout") or row.benchmark), *choices(row.point), rest(row)])
    )


def apart(rows: Iterable[Row], without: Collection[str] = ()) -> Callable[[Row], str]:
    """What a row computes that others of ``rows`` do not: nothing where all compute the same."""
    points = {id(row.point): row.point for row in rows}
    words = {"run": "", "shape": "", "seq_len": "seq ", "micro_batch_size": "mbs ", "global_batch_size": "gbs "}
    words["dtype"] = ""
    differing = [name for name in words if len({point.get(name) for point in points.values()}) > 1]
    differing = [name for name in differing if name not in without]
    return lambda row: ", ".join(f"{words[key]}{row.point[key]}" for key in differing if row.point.get(key) is not None)


def titles(groups: Sequence[Sequence[Trained]], without: Collection[str] = ()) -> list[str]:
    """A second line for the title of each group's panels, where there are several: what tells it from the others.

    ``without`` are options in which cases of one group differ.
    """
    firsts = [group[0].row for group in groups]
    name = apart(firsts, without)
    return [f"\n{words}" if (words := name(row)) else "" for row in firsts]


def curves_note(found: int, drawn: int, what: str, others: str = "all are in the table") -> str:
    """Says what was too much to draw, and where the ``others`` are."""
    return f"Drawn are the first {drawn} of {found:,} {what}; {others}." if found > drawn else ""
