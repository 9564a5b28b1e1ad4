"""Runs of the same work on more and more ranks: how much of the added ranks arrives, and where the rest goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterbench.formulas.attribution import Part, loss_by_part
from clusterbench.formulas.scaling import STRONG, WEAK, scaling_efficiency
from clusterbench.measured.step_parts import detail_of
from clusterbench.rows import Row
from clusterbench.shape import OWN_SHAPE
from clusterbench.words import plural

Work = tuple[object, ...]


def scaling(rows: Sequence[Row]) -> Iterator[Row]:
    """Efficiency of each run against the smallest of the same work, and the parts of what was lost on the way.

    Held against the smallest of the same total work, or, where a run is itself that, of the same work per rank.
    """
    rates = [row for row in rows if row.metric == "tokens_per_s_per_rank"]
    parts: dict[str, dict[Part, Row]] = defaultdict(dict)
    for row in rows:
        if row.metric == "step_part":
            parts[row.case][row.detail["part"], row.detail.get("axis", "")] = row
    works = [_works(row) for row in rates]
    smallest_of = _smallest_by_work(rates, works)
    for row, (total, per_rank) in zip(rates, works, strict=True):
        kind, smallest, weak = STRONG, smallest_of[total], smallest_of[per_rank]
        if weak.world_size < row.world_size == smallest.world_size:
            kind, smallest = WEAK, weak
        yield _efficiency(row, smallest, kind)
        if smallest.world_size < row.world_size:
            yield from _loss(row, smallest, kind, parts)


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
    if not parts_of_case or not base or not _batch(smallest):
        return
    work_ratio = _batch(row) / row.world_size / (_batch(smallest) / smallest.world_size)
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


def _smallest_by_work(rows: Sequence[Row], works: Sequence[tuple[Work, Work]]) -> dict[Work, Row]:
    """Work, total and per rank -> the run on the fewest ranks; of several layouts on as many, the fastest."""
    smallest: dict[Work, Row] = {}
    for row, of_row in zip(rows, works, strict=True):
        for work in of_row:
            if work not in smallest or _order(row) < _order(smallest[work]):
                smallest[work] = row
    return smallest


def _order(row: Row) -> tuple[int, float]:
    return row.world_size, -(row.value or 0.0)


def _works(row: Row) -> tuple[Work, Work]:
    """What two runs share if one is the other on more ranks: all of the work of a step, or that of one rank."""
    point, batch = row.point, _batch(row)
    same = row.device, point["shape"], point.get(OWN_SHAPE), point["seq_len"], point["dtype"], point["recompute"]
    return (*same, False, batch), (*same, True, batch / row.world_size)


def _batch(row: Row) -> float:
    batch: Any = row.point["global_batch_size"]
    return batch  # type: ignore[no-any-return]
