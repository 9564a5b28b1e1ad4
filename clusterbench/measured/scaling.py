"""Runs of the same work on more and more ranks: how much of the added ranks arrives, and where the rest goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from clusterbench.formulas.attribution import Part, loss_by_part
from clusterbench.formulas.scaling import STRONG, WEAK, scaling_efficiency
from clusterbench.layout import FOLLOWS_LAYOUT, ParallelLayout
from clusterbench.measured.step_parts import detail_of
from clusterbench.options import options_of
from clusterbench.parallel import parallelisms
from clusterbench.rows import Row
from clusterbench.shape import named_shape
from clusterbench.types import Point
from clusterbench.words import plural

Work = tuple[object, ...]


def scaling(rows: Sequence[Row]) -> Iterator[Row]:
    """Efficiency of each run against the smallest of the same work, and the parts of what was lost on the way."""
    parts: dict[str, dict[Part, Row]] = defaultdict(dict)
    for row in rows:
        if row.metric == "step_part":
            parts[row.case][row.detail["part"], row.detail.get("axis", "")] = row
    for row, smallest, kind in held_against([row for row in rows if row.metric == "tokens_per_s_per_rank"]):
        yield _efficiency(row, smallest, kind)
        if smallest.world_size < row.world_size:
            yield from _loss(row, smallest, kind, parts)


class Held(NamedTuple):
    """A run, and the smallest one that it is held against; ``kind`` says which work is the same."""

    row: Row
    smallest: Row
    kind: str


def held_against(rates: Sequence[Row]) -> list[Held]:
    """Each run with the smallest of the same total work, or, where it is itself that, of the same work per rank.

    Always of one that differs in how work is shared alone, and not in recomputation, experts' routing, trainer or
    variables. Of several layouts on as few ranks it is the fastest.
    """
    works = [*map(_works_of([row.point for row in rates]), rates)]
    smallest: dict[Work, Row] = {}
    for row, of_row in zip(rates, works, strict=True):
        for work in of_row:
            if work not in smallest or _order(row) < _order(smallest[work]):
                smallest[work] = row
    held = []
    for row, of_row in zip(rates, works, strict=True):
        strong, weak = map(smallest.__getitem__, of_row)
        is_weak = weak.world_size < row.world_size == strong.world_size
        held.append(Held(row, weak, WEAK) if is_weak else Held(row, strong, STRONG))
    return held


def _efficiency(row: Row, smallest: Row, kind: str) -> Row:
    def over_smallest(rate: float | None) -> float | None:
        if rate is None:
            return None
        assert smallest.value is not None
        sizes = row.world_size, smallest.world_size
        return scaling_efficiency(rate * sizes[0], sizes[0], smallest.value * sizes[1], sizes[1])

    value, low, high = map(over_smallest, (row.value, row.low, row.high))
    basis = f"{kind}: tokens/s per rank over those of {_name(smallest)}; 1 is perfect scaling"
    return row.beside("scaling_efficiency", "fraction", value, low, high, row.detail, basis, expected=1.0)


def _loss(row: Row, smallest: Row, kind: str, parts: Mapping[str, Mapping[Part, Row]]) -> Iterator[Row]:
    parts_of_case, base = parts.get(row.case, {}), parts.get(smallest.case, {})
    batch, of_smallest = _batch(row), _batch(smallest)
    if not parts_of_case or not base or not batch or not of_smallest:
        return
    work_ratio = batch / row.world_size / (of_smallest / smallest.world_size)
    lost = loss_by_part(_seconds(parts_of_case), _seconds(base), work_ratio)
    like = next(iter(parts_of_case.values()))
    less = f"less {work_ratio:.4g} x the same part of {_name(smallest)}"
    for part, lost_s in lost.items():
        yield like._replace(
            metric="scaling_loss_part",
            value=lost_s,
            low=None,
            high=None,
            detail=detail_of(part),
            basis=f"{kind}: of a step, {less}; the parts sum to the loss",
        )


def _seconds(parts: Mapping[Part, Row]) -> dict[Part, float]:
    return {part: row.value for part, row in parts.items() if row.value is not None}


def _name(row: Row) -> str:
    return f"{row.point['layout']} on {plural(row.world_size, 'rank')}"


def _order(row: Row) -> tuple[int, float]:
    return row.world_size, -(row.value or 0.0)


def _works_of(points: Sequence[Point]) -> Callable[[Row], tuple[Work, Work]]:
    """Tells what two runs share if one is the other on more ranks: all of the work of a step, or that of one rank."""
    first = points[0] if points else {}
    names = dict.fromkeys(name for point in points for name in point if name not in _of_sharing())
    # An option that is missing has its default, or is none of this shape.
    unlike = [name for name in names if any(point.get(name) != first.get(name) for point in points)]

    def works(row: Row) -> tuple[Work, Work]:
        same, batch = (row.device, *(row.point.get(name) for name in unlike)), _batch(row)
        return (*same, False, batch), (*same, True, batch and batch / row.world_size)

    return works


@cache
def _of_sharing() -> frozenset[str]:
    """Names of all in a point that says how work is shared, and not what a rank does by itself.

    >>> {"schedule", "expert_overlap"} <= _of_sharing(), _of_sharing() & {"recompute", "routing", "trainer", "compile"}
    (True, frozenset())
    """
    one, dense = ParallelLayout(), named_shape("llama-tiny")
    sharing = [kind for kind in parallelisms().values() if not kind().concerned(one, dense)]
    options = {name for kind in sharing for name, option in options_of(kind).items() if option.alters != "result"}
    return FOLLOWS_LAYOUT | options | {"num_ranks", "global_batch_size", "micro_batch_size", "rank_order", "parity"}


def _batch(row: Row) -> float | None:
    """None of a step whose batch is not known: one of another tool."""
    batch = row.point.get("global_batch_size")
    return batch if isinstance(batch, (int, float)) else None
