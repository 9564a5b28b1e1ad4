"""The bytes ranks sent in one step, held against the formula: rank by rank, axis by axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from clusterbench.expected.formulas import StepFormulas
from clusterbench.formulas.collectives import RECV
from clusterbench.job.passes import Moved
from clusterbench.types import VOID, Case, Metric, metric_key, split_key
from clusterbench.units import format_value
from clusterbench.words import plural

METRIC, CALLS = "traffic_bytes", "collectives"
ROUNDING = 0.5
"""Bytes: both are whole, times a bus factor."""


@dataclass(frozen=True)
class Difference:
    """What a rank sent in one step along an axis and the formula does not have, or the other way round.

    Attributes
    ----------
    counted, formula
        Bytes times bus factor; with ``of_calls`` collectives.
    unknown
        Collectives of which no bus factor is known, and barriers; what they carry is in neither figure.
    of_calls
        Whether the bytes are as many in other messages, or a router decides how many they are.
    """

    rank: int
    axis: str
    counted: float
    formula: float
    unknown: tuple[str, ...] = ()
    of_calls: bool = False
    is_routed: bool = False

    @property
    def by(self) -> str:
        """How far they are apart, in words."""
        if self.unknown:
            return f"counted {', '.join(self.unknown)}, which the formula does not have"
        if self.of_calls:
            return f"counted {plural(int(self.counted), 'collective')}, and the formula has {self.formula:,.0f}"
        if self.formula:
            return f"counted {100 * self.counted / self.formula - 100:+.1f} % against the formula"
        return "counted traffic where the formula has none"

    @property
    def evidence(self) -> str:
        """The two figures, to the last byte."""
        if self.of_calls:
            return f"{self.by}; " + (
                "how many bytes each carries the router decides"
                if self.is_routed
                else "together they carry as many bytes"
            )
        return (
            f"counted {format_value(self.counted, 'B')} ({self.counted:,.0f} B), "
            f"formula {format_value(self.formula, 'B')} ({self.formula:,.0f} B) in one step"
        )

    def __str__(self) -> str:
        return f"axis {self.axis} on rank {self.rank}: {self.by}"


def has_formula(case: Case) -> bool:
    """Whether the plan says what a step sends; none does that was planned without a layout."""
    return bool(case.expected_of(METRIC))


def differences(case: Case, formulas: StepFormulas, ranks: Sequence[Sequence[Moved]]) -> list[Difference]:
    """Of each axis along which any rank sent other bytes than the formula has, the rank that is furthest from it.

    Where the bytes are right, or a router decides how many they are, other numbers of collectives: as many bytes in
    more messages take longer. Empty for a case without a formula.

    Parameters
    ----------
    ranks
        What each of them sent, in rank order.
    """
    if not ranks or not has_formula(case):
        return []
    by_stage = _by_stage(case, formulas)
    worst: dict[str, Difference] = {}
    for rank, (sent, (stage, _)) in enumerate(zip(ranks, formulas.places, strict=True)):
        formula, less = by_stage[stage], formulas.less_sent[rank]
        for axis in sorted({*formula, *(moved.axis for moved in sent)}):
            along, is_routed = [moved for moved in sent if moved.axis == axis], axis in formulas.routed_axes
            own = formula.get(axis, 0.0) - less.get(axis, 0.0)
            found = None if is_routed else _of_rank(rank, axis, along, own)
            found = found or _of_calls(rank, axis, along, formulas, stage, _more_planned(case, formulas, axis))
            if found and (axis not in worst or _size(found) > _size(worst[axis])):
                worst[axis] = found
    if worst and formulas.are_of_another_step(case, METRIC, CALLS) and _is_as_planned(case, ranks):
        return []
    return sorted(worst.values(), key=_size, reverse=True)


def _is_as_planned(case: Case, ranks: Sequence[Sequence[Moved]]) -> bool:
    """Whether the busiest ranks sent what the plan says, which of each axis has the largest figure of all stages."""
    planned = {key: case.expected[key].value for name in (METRIC, CALLS) for key in case.expected_of(name)}
    counted = {metric.key: metric.value for metric in traffic_metrics(ranks, ())}
    return planned.keys() == counted.keys() and all(
        value is not None and abs(value - planned[key]) <= ROUNDING for key, value in counted.items()
    )


def traffic_metrics(ranks: Sequence[Sequence[Moved]], found: Sequence[Difference]) -> Iterator[Metric]:
    """Collectives and bytes of the busiest rank by axis; of bytes that differ, which are void, low and high stay."""
    void = {difference.axis: difference for difference in found}
    for axis in sorted({moved.axis for rank in ranks for moved in rank}):
        along = [[moved for moved in rank if moved.axis == axis] for rank in ranks]
        counts = [sum(moved.count for moved in rank) for rank in along]
        yield Metric(CALLS, "1", max(counts), min(counts), max(counts), detail={"axis": axis})
        sizes = [_on_link(rank) for rank in along]
        detail = {"axis": axis}
        if unknown := _unknown([moved for rank in along for moved in rank]):
            why = f"no bus factor is known for {', '.join(unknown)}"
            yield Metric(METRIC, "B", None, detail=detail, basis=why)
        elif axis in void:
            yield Metric(METRIC, "B", None, min(sizes), max(sizes), detail=detail, basis=f"{VOID}{void[axis]}")
        else:
            yield Metric(METRIC, "B", max(sizes), min(sizes), max(sizes), detail=detail)


def _by_stage(case: Case, formulas: StepFormulas) -> Sequence[Mapping[str, float]]:
    """Bytes along each axis of the first ranks of each stage. Without a pipeline these are the plan's own figures."""
    if formulas.job.layout.uses("pp"):
        return formulas.sent
    return [{split_key(key)[1]["axis"]: case.expected[key].value for key in case.expected_of(METRIC)}]


def _of_rank(rank: int, axis: str, sent: Sequence[Moved], formula: float) -> Difference | None:
    counted = _on_link(sent)
    unknown = _unknown(sent)
    if not unknown and abs(counted - formula) <= ROUNDING:
        return None
    return Difference(rank, axis, counted, formula, unknown)


def _more_planned(case: Case, formulas: StepFormulas, axis: str) -> float:
    """Collectives that the plan has beyond the formulas: it may be of an earlier version, whose step sent others."""
    planned = case.expected.get(metric_key(CALLS, axis=axis))
    if planned is None or formulas.job.layout.uses("pp"):
        return 0.0
    return planned.value - sum(count for (along, _), count in formulas.calls[0].items() if along == axis)


def _of_calls(
    rank: int, axis: str, sent: Sequence[Moved], formulas: StepFormulas, stage: int, more_planned: float
) -> Difference | None:
    joined = {key: may for key, may in formulas.joined_calls.items() if key[0] == axis}
    uncounted = {key for key, may in joined.items() if inf in may} | {(axis, RECV)}  # a message counts where it is sent
    counted = sum(moved.count for moved in sent if (axis, moved.op) not in uncounted)
    counts = (count for key, count in formulas.calls[stage].items() if key[0] == axis and key not in uncounted)
    formula = sum(counts) + more_planned
    fewer, more = (sum(may[way] for key, may in joined.items() if key not in uncounted) for way in (0, 1))
    if formula - fewer <= counted <= formula + more:
        return None
    return Difference(rank, axis, counted, formula, of_calls=True, is_routed=axis in formulas.routed_axes)


def _on_link(sent: Sequence[Moved]) -> float:
    """Bytes times bus factor. Records of before 2026-11-25 have some of what is received, too."""
    return sum(moved.traffic_bytes or 0 for moved in sent if moved.op != RECV)


def _unknown(sent: Sequence[Moved]) -> tuple[str, ...]:
    """What no formula has, a barrier included, which carries nothing."""
    return tuple(sorted({moved.op for moved in sent if moved.traffic_bytes is None or moved.op == "barrier"}))


def _size(difference: Difference) -> tuple[bool, bool, float]:
    return bool(difference.unknown), not difference.of_calls, abs(difference.counted - difference.formula)
