"""Runs of the same work on more and more ranks, as the charts of scaling draw them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clusterbench.cases.names import choices, groups_apart, sharing
from clusterbench.cases.trained import workloads
from clusterbench.formulas.scaling import WEAK
from clusterbench.rows import Row


@dataclass(frozen=True)
class Sweep:
    """One workload on several numbers of ranks.

    Attributes
    ----------
    name
        What tells it from the other sweeps of the run; empty where there is one.
    smallest
        The efficiency of the run that the others are held against.
    kinds
        Kind of layout, as ``pp-tp+sp`` -> its best run at each size, smallest first. A kind without a run at the
        smallest size begins at the run that it is held against.
    by_nodes
        Whether a size is a number of nodes; otherwise of ranks.
    """

    name: str
    is_weak: bool
    smallest: Row
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


def sweeps(rows: Iterable[Row]) -> list[Sweep]:
    """All sweeps of a run, by its efficiencies; strong scaling first."""
    measured = [row for row in rows if row.value is not None]
    by_nodes = len({row.num_nodes for row in measured}) > 1
    held_strongly = [row for row in measured if not row.basis.startswith(WEAK)]
    groups = [(False, group) for group in _by_work(held_strongly, held_strongly)]
    if len(held_strongly) < len(measured):
        per_rank = [row._replace(point={**row.point, "global_batch_size": _batch_of_a_rank(row)}) for row in measured]
        groups += [(True, _against_one(group)) for group in _by_work(measured, per_rank)]
    groups = [group for group in groups if group[1]]
    smallest = [min(group, key=lambda row: (row.world_size, -(row.value or 0.0))) for _, group in groups]
    names = groups_apart([group for _, group in groups], [is_weak for is_weak, _ in groups])
    candidates = [
        Sweep(name, is_weak, first, _kinds(group, first, by_nodes), by_nodes)
        for name, (is_weak, group), first in zip(names, groups, smallest, strict=True)
    ]
    return [sweep for sweep in candidates if len({sweep.size(row) for row in sweep.runs}) > 1]


def _by_work(rows: Sequence[Row], computed: Sequence[Row]) -> list[list[Row]]:
    """Rows that compute the same, as ``computed`` has it of each."""
    work, groups = workloads(computed, sharing()), defaultdict[tuple[object, ...], list[Row]](list)
    for row, as_computed in zip(rows, computed, strict=True):
        groups[work(as_computed)].append(row)
    return list(groups.values())


def _against_one(rows: Sequence[Row]) -> list[Row]:
    """The weakly scaled runs and the smallest, which they are held against; nothing where there are none."""
    smallest = min(row.world_size for row in rows)
    weak = [row for row in rows if row.basis.startswith(WEAK)]
    alone = [row for row in rows if row.world_size == smallest and not row.basis.startswith(WEAK)]
    return [*alone, *weak] if weak else []


def _batch_of_a_rank(row: Row) -> float | None:
    batch = row.point.get("global_batch_size")
    return batch / row.world_size if isinstance(batch, (int, float)) and row.world_size else None


def _kinds(rows: Sequence[Row], smallest: Row, by_nodes: bool) -> dict[str, tuple[Row, ...]]:
    kinds: dict[str, list[Row]] = defaultdict(list)
    shared = choices(rows, quiet=sharing())
    for row in rows:
        if kind := _kind(row):
            kinds[", ".join([kind, *shared(row)])].append(row)
    runs_of = {}
    for kind, own in sorted(kinds.items()):
        starts = any(row.world_size == smallest.world_size for row in own)
        runs_of[kind] = _best(own if starts else [smallest, *own], by_nodes)
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
