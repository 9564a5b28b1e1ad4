"""Runs of the same work on more and more ranks, as the charts of scaling draw them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterbench.cases.names import choices, groups_apart, sharing
from clusterbench.cases.trained import workloads
from clusterbench.formulas.scaling import WEAK
from clusterbench.measured.scaling import held_against
from clusterbench.rows import Row


@dataclass(frozen=True)
class Sweep:
    """One workload on several numbers of ranks.

    Attributes
    ----------
    name
        What tells it from the other sweeps of the run; empty where there is one.
    smallest
        The efficiencies of the runs that the others are held against; the smallest first.
    kinds
        Kind of layout, as ``pp-tp+sp`` -> its best run at each size, smallest first. A kind without a run as small as
        the one that it is held against begins at that.
    by_nodes
        Whether a size is a number of nodes; otherwise of ranks.
    """

    name: str
    is_weak: bool
    smallest: tuple[Row, ...]
    kinds: Mapping[str, tuple[Row, ...]]
    by_nodes: bool

    def size(self, row: Row) -> int:
        return row.num_nodes if self.by_nodes else row.world_size

    @property
    def title(self) -> str:
        return ("Weak" if self.is_weak else "Strong") + " scaling"

    @property
    def sizes(self) -> str:
        """What is counted."""
        return "nodes" if self.by_nodes else "ranks"

    @property
    def runs(self) -> list[Row]:
        """Every run once, smallest first."""
        by_case = {row.case: row for kind in self.kinds.values() for row in kind}
        return sorted(by_case.values(), key=lambda row: (row.world_size, row.case))


def sweeps(efficiencies: Iterable[Row], rates: Iterable[Row]) -> list[Sweep]:
    """All sweeps of a run, by its efficiencies and what they follow from; strong scaling first."""
    measured = {row.case: row for row in efficiencies if row.value is not None}
    by_nodes = len({row.num_nodes for row in measured.values()}) > 1
    if not by_nodes and len({row.world_size for row in measured.values()}) < 2:
        return []
    held = {each.row.case: each for each in held_against([row for row in rates if row.value and row.case in measured])}
    found = []
    for is_weak in (False, True):
        runs = [row for case, row in measured.items() if case in held and (held[case].kind == WEAK) == is_weak]
        alike = [_of_a_rank(row) for row in runs] if is_weak else runs
        for group in _by_work(runs, alike):
            smallest_of = {row.case: measured[held[row.case].smallest.case] for row in group}
            if len({row.num_nodes if by_nodes else row.world_size for row in (*group, *smallest_of.values())}) < 2:
                continue
            starts = {case: _as_one(row) for case, row in smallest_of.items()}
            kinds = _kinds(group, starts, by_nodes)
            smallest = {row.case: row for row in sorted(starts.values(), key=lambda row: row.world_size)}
            sweep = Sweep("", is_weak, tuple(smallest.values()), kinds, by_nodes)
            if len({sweep.size(row) for row in sweep.runs}) > 1:
                found.append((sweep, group))
    names = groups_apart([group for _, group in found], [sweep.is_weak for sweep, _ in found])
    return [replace(sweep, name=name) for (sweep, _), name in zip(found, names, strict=True)]


def _by_work(rows: Sequence[Row], computed: Sequence[Row]) -> list[list[Row]]:
    """Rows that compute the same, as ``computed`` has it of each."""
    work, groups = workloads(computed, sharing()), defaultdict[tuple[object, ...], list[Row]](list)
    for row, as_computed in zip(rows, computed, strict=True):
        groups[work(as_computed)].append(row)
    return list(groups.values())


def _of_a_rank(row: Row) -> Row:
    """With the batch of one rank in place of that of all."""
    batch = row.point.get("global_batch_size")
    of_one = batch / row.world_size if isinstance(batch, (int, float)) and row.world_size else None
    return row._replace(point={**row.point, "global_batch_size": of_one})


def _as_one(row: Row) -> Row:
    """As what others are held against, though it may be held against a smaller one itself."""
    if not row.value:
        return row
    low, high = (None if end is None else end / row.value for end in (row.low, row.high))
    return row._replace(value=1.0, low=low, high=high)


def _kinds(rows: Sequence[Row], starts: Mapping[str, Row], by_nodes: bool) -> dict[str, tuple[Row, ...]]:
    kinds: dict[str, list[Row]] = defaultdict(list)
    shared = choices(rows, quiet=sharing())
    for row in rows:
        if kind := _kind(row):
            kinds[", ".join([kind, *shared(row)])].append(row)
    runs_of = {}
    for kind, own in sorted(kinds.items()):
        start = starts[own[0].case]
        is_started = any(row.world_size <= start.world_size for row in own)
        runs_of[kind] = _best(own if is_started else [start, *own], by_nodes)
    return {kind: best for kind, best in runs_of.items() if len(best) > 1}


def _kind(row: Row) -> str:
    """The layout without its degrees: ``pp2-tp4+sp`` is a ``pp-tp+sp``; nothing on one rank, where all begin."""
    return "" if row.world_size == 1 else re.sub(r"\d+", "", str(row.point.get("layout") or "ranks"))


def _best(rows: Sequence[Row], by_nodes: bool) -> tuple[Row, ...]:
    """The best run at each size; of nodes those that use most of their ranks."""
    best: dict[int, Row] = {}
    for row in sorted(rows, key=lambda row: (row.world_size, row.value or 0.0)):
        best[row.num_nodes if by_nodes else row.world_size] = row
    return tuple(best[size] for size in sorted(best))
