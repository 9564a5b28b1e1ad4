"""Cases that compute the same agree: losses and gradient norms of timed steps, held against each other.

A layout changes where a step is computed and not what. So the first step after the seed's weights has one loss and one
gradient norm in every layout, and so has the last one after as many updates. This looks at the step that was timed, at
its own size, where the proof looks at a small twin.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from clusterbench.formulas.statistics import median
from clusterbench.job.experts import even_tokens
from clusterbench.job.passes import MOST_UPDATES, ON_ONE_RANK, between, updates_between
from clusterbench.layout import ParallelLayout
from clusterbench.options import Option
from clusterbench.parallel import active_in, from_options
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from clusterbench.shape import OWN_SHAPE, shape_of
from clusterbench.types import Agreement, Case, Metric

DISPUTED = "not proven"
_MEASURED = "five times and more what 5 layouts of two models on a CPU differed by after 1 to 24 updates"


@dataclass(frozen=True)
class Statistic:
    """A number that cases which compute the same share.

    Attributes
    ----------
    name
        Of the evidence.
    words
        What it is; with the place of a number where there are several.
    of_update
        Whether what an option makes of gradients or updates shows in it.
    is_last
        Whether it is of the last step, so that it is compared at equal numbers of updates only.
    limits
        By dtype: how far two may differ, and how far where a router's choice follows rounding.
    of_rounding
        How far where gradients are rounded before they are sent, as a multiple of that rounding: 50 times and more what
        dp2 and dp4 of one model differed by.
    of_products
        How far where products are rounded more coarsely than by their dtype, as a multiple of that: scales are of what
        a rank multiplies at a time, so layouts and micro-batches round elsewhere. Twins in float8 of 2 and 32 layers
        were 0.05 and 0.2 of a rounding off in the loss, and 0.2 in the norm of all gradients.
    is_norm
        Whether it is of gradients, and so rounded the more the narrower a model is.
    of_each
        Where it is one number for each step between the first and the last: of which statistic.
    """

    name: str
    words: str
    of_update: bool
    is_last: bool
    limits: Mapping[str, tuple[float, float]]
    of_rounding: float = 0.0
    of_products: float = 0.0
    of_each: str = ""
    is_norm: bool = False

    def values(self, evidence: Mapping[str, float]) -> tuple[float, ...]:
        """The numbers in some evidence; none where it has none."""
        if not self.of_each:
            return (evidence[self.name],) if self.name in evidence else ()
        updates = sorted(filter(None, map(updates_between, evidence)))
        names = dict.fromkeys(between(update, self.of_each) for update in updates)
        return tuple(evidence[name] for name in names if name in evidence)


_LOSSES = {"float64": (1e-8, 1e-8), "float32": (1e-4, 1e-2), "bfloat16": (2e-2, 5e-2)}
_NORMS = {"float64": (1e-7, 1e-7), "float32": (1e-3, 5e-2), "bfloat16": (0.1, 0.3)}

STATISTICS = (
    Statistic(
        "first_loss",
        "the loss of the first step",
        False,
        False,
        {"float64": (1e-11, 1e-11), "float32": (2e-6, 1e-3), "bfloat16": (1e-3, 5e-3)},
        of_products=0.5,
    ),
    Statistic(
        "first_norm",
        "the gradient norm of the first step",
        True,
        False,
        {"float64": (1e-11, 1e-11), "float32": (1e-5, 1e-2), "bfloat16": (5e-3, 3e-2)},
        0.1,
        1.0,
        is_norm=True,
    ),
    Statistic(
        "loss",
        "the loss of the last step",
        True,
        True,
        _LOSSES,
        0.5,
        2.0,
    ),
    Statistic(
        "norm",
        "the gradient norm of the last step",
        True,
        True,
        _NORMS,
        5.0,
        5.0,
        is_norm=True,
    ),
    Statistic("losses_between", "the loss of step {}", True, True, _LOSSES, 0.5, 2.0, "loss"),
    Statistic("norms_between", "the gradient norm of step {}", True, True, _NORMS, 5.0, 5.0, "norm", is_norm=True),
)


def agreements(histories: Sequence[History], options: Mapping[str, Option]) -> dict[str, Agreement]:
    """Hash -> how far each case is from those that compute the same, and which are wrong.

    Wrong is a case that differs from those on a single rank, or where there is none, or they differ among themselves,
    from more than half of the others.

    Parameters
    ----------
    histories
        Of training steps.
    options
        Those of a training step, each of which says what it alters.
    """
    metrics: dict[str, list[Metric]] = defaultdict(list)
    wrong: dict[str, str] = {}
    for statistic in STATISTICS:
        for group in _groups(histories, statistic, options):
            rounding = max(_sent(seen.history.case.point, options).rounding for seen in group)
            for hash, metric, why in _compared(group, statistic, rounding):
                metrics[hash].append(metric)
                if why:
                    wrong.setdefault(hash, why)
    return {hash: Agreement(tuple(of_case), wrong.get(hash, "")) for hash, of_case in metrics.items()}


@dataclass(frozen=True)
class _Seen:
    """What the repeats of one case showed of a statistic.

    Attributes
    ----------
    values
        Of each repeat: one number, or one for each step.
    alone
        What one rank computed behind the clock; empty where that was not asked for, or is not to be known.
    """

    history: History
    values: tuple[tuple[float, ...], ...]
    alone: tuple[float, ...] = ()

    def off(self, reference: Sequence[float]) -> float:
        """The largest relative distance."""
        return max(max(_off(values, reference)) for values in self.values)

    def furthest(self, reference: Sequence[float]) -> tuple[int, float]:
        """Which number is furthest off, and what it is here."""
        values = max(self.values, key=lambda values: max(_off(values, reference)))
        off = _off(values, reference)
        return off.index(max(off)), values[off.index(max(off))]


def _off(values: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [
        abs(value - wanted) / abs(wanted) if wanted else math.inf
        for value, wanted in zip(values, reference, strict=True)
    ]


def _groups(histories: Sequence[History], statistic: Statistic, options: Mapping[str, Option]) -> Iterator[list[_Seen]]:
    """Cases that should show the same."""
    groups: dict[tuple[object, ...], list[_Seen]] = defaultdict(list)
    for history in histories:
        evidence = [seen.evidence[0] for seen in history.observations if seen.evidence]
        values = tuple(filter(None, map(statistic.values, evidence)))
        updates = {seen.get("num_updates") for seen in evidence} if statistic.is_last else {None}
        numbers = {len(of_repeat) for of_repeat in values}
        if len(numbers) == 1 and len(updates) == 1:
            alone = _alone(history, statistic, *updates)
            seen = _Seen(history, values, alone if len(alone) in numbers else ())
            groups[(*numbers, *updates, *_result_of(history.case, statistic.of_update, options))].append(seen)
    yield from groups.values()


def _alone(history: History, statistic: Statistic, num_updates: float | None) -> tuple[float, ...]:
    """What one rank computed behind the clock of a case, after as many updates."""
    for observation in history.observations:
        for of_rank in ON_ONE_RANK.of(observation)[:1]:
            if num_updates in (None, of_rank.get("num_updates")):
                return statistic.values(of_rank)
    return ()


def one_rank_key(case: Case, options: Mapping[str, Option]) -> str:
    """What cases have in common that show the same on one rank; empty where one rank has no like."""
    if _is_routed_by_place_of_a_rank(case.point):
        return ""
    return repr((_result_of(case, True, options), case.warmup + case.iterations))


def _result_of(case: Case, of_update: bool, options: Mapping[str, Option]) -> tuple[object, ...]:
    """All that changes what a case computes."""
    point: Mapping[str, Any] = case.point
    altering = ("result", "update") if of_update else ("result",)
    named = [(name, point.get(name, option.default)) for name, option in options.items() if option.alters in altering]
    # the load-balancing loss is one for each micro-batch
    per_forward = point["micro_batch_size"] if point.get("aux_loss") else None
    by_place = case.hash if _is_routed_by_place_of_a_rank(point) else None
    by_ranks = case.hash if of_update and _sent(point, options).approximates else None
    return (point.get(OWN_SHAPE), per_forward, by_place, by_ranks, *sorted(named, key=lambda item: item[0]))


@dataclass(frozen=True)
class _Sent:
    """What becomes of gradients that are sent: ``rounding`` is a share of the largest."""

    approximates: bool = False
    rounding: float = 0.0


def _sent(point: Mapping[str, Any], options: Mapping[str, Option]) -> _Sent:
    """What a case's layout makes of gradients. A compression on one rank, or along no axis of it, makes nothing."""
    is_plain = all(
        point.get(name, option.default) == option.default
        for name, option in options.items()
        if option.alters == "update"
    )
    return _Sent() if is_plain else _sent_in(tuple(sorted(point.items())))


@cache
def _sent_in(point: tuple[tuple[str, Any], ...]) -> _Sent:
    options = dict(point)
    active = active_in(ParallelLayout.parse(options["layout"]), from_options(options))
    return _Sent(
        any(parallelism.approximates for parallelism in active),
        max((parallelism.rounding(options["dtype"]) for parallelism in active), default=0.0),
    )


@cache
def _product_rounding(point: tuple[tuple[str, Any], ...]) -> float:
    """What products lose of their operands beyond the dtype."""
    options = dict(point)
    active = active_in(ParallelLayout.parse(options["layout"]), from_options(options))
    return max((parallelism.product_rounding for parallelism in active), default=0.0)


def _is_routed_by_place_of_a_rank(point: Mapping[str, Any]) -> bool:
    """Whether balanced routing sends a token elsewhere than it would on one rank: pieces of sequences are not even."""
    shape = shape_of(point)
    if not shape.has_experts or point.get("routing") != "balanced":
        return False
    layout = ParallelLayout.parse(point["layout"])
    pieces = (2 * layout.cp if layout.cp > 1 else 1) * layout.sequence_parts
    return bool(point["seq_len"] % (even_tokens(shape) * pieces))


def _compared(group: Sequence[_Seen], statistic: Statistic, rounding: float) -> Iterator[tuple[str, Metric, str]]:
    """Hash, figure and what is wrong, of each case of a group; nothing of a case with none to hold it against.

    ``rounding`` is what a message loses of the largest gradient, in any of the cases.
    """
    if len(group) == 1 and not group[0].alone:
        return
    point: Mapping[str, Any] = group[0].history.case.point
    limit = limit_of(point, statistic, rounding)
    reference = _reference(group, limit)
    for seen in group:
        case, values = seen.history.case, seen.values[-1]
        if statistic.is_last and not statistic.of_each and _updates(seen) > MOST_UPDATES:
            basis = f"not compared: how far rounding goes in more than {MOST_UPDATES} updates was not measured"
            yield case.hash, agreement_figure(statistic, None, limit, basis), ""
        elif reference is None:
            other = max((other for other in group if other is not seen), key=lambda other: other.off(values))
            at, value = other.furthest(values)
            basis = (
                f"{DISPUTED}: {_words(statistic, at)} is {values[at]:.7g}, and {value:.7g} in {other.history.case.id}"
                f"; {_neither(group)} says which is right"
            )
            yield case.hash, agreement_figure(statistic, None, limit, basis), ""
        else:
            of_reference, where = reference
            off, (at, value) = seen.off(of_reference), seen.furthest(of_reference)
            held_against = f"{of_reference[at]:.7g} {where}"
            basis = f"at most; {_MEASURED}; against {held_against}"
            wrong = (
                f"{_words(statistic, at)} is {value:.7g}, and {held_against}: {off:.2g} apart, where {limit:g} "
                f"is allowed in {point['dtype']}. A layout changes where a step is computed and not what."
            )
            yield case.hash, agreement_figure(statistic, off, limit, basis), "" if off <= limit else wrong


_MOST_OF_NARROW = 0.3
"""However narrow a model is: as much as where a router's choice follows rounding."""


def _of_width(hidden_size: int) -> float:
    """How many times as far gradient norms of a narrow model may differ in bfloat16: less of the rounding cancels.

    Of one rank they were off by 0.0012 where a model was 64 wide, by 0.006 where it was 16 and by 0.0175 where it was 8
    (root mean squares over 8 seeds); of models 2 and 4 wide two layouts were up to 0.054 apart in the first step, and
    0.107 in a later one.

    >>> _of_width(16), _of_width(4096)
    (4.0, 1.0)
    """
    return max(1.0, 64 / hidden_size)


def _words(statistic: Statistic, at: int) -> str:
    return statistic.words.format(at + 2)  # the step after the first is the first between


def _reference(group: Sequence[_Seen], limit: float) -> tuple[Sequence[float], str] | None:
    """What a group should show, and where that is seen.

    That is on one rank behind the clock, in cases on one rank, or in more than half of all, whichever there is. Cases
    on one rank that differ among themselves decide nothing: one of them is wrong, and it is not known which.
    """
    behind = [(seen.alone, seen.history.case.id) for seen in group if seen.alone]
    if behind:
        return behind[0][0], f"on one rank behind the clock of {behind[0][1]}"
    alone = [seen for seen in group if seen.history.case.world_size == 1]
    if alone and all(seen.off(alone[0].values[-1]) <= limit for seen in alone):
        return _medians(alone), f"in {alone[0].history.case.id}, on one rank"
    agreeing = max(([seen for seen in group if seen.off(center.values[-1]) <= limit] for center in group), key=len)
    if len(agreeing) > 1 and 2 * len(agreeing) > len(group):
        where = f"in {len(agreeing)} of {len(group)} cases that compute the same"
        return _medians(agreeing), where
    return None


def _medians(group: Sequence[_Seen]) -> list[float]:
    return [median(numbers) for numbers in zip(*(values for seen in group for values in seen.values), strict=True)]


def _neither(group: Sequence[_Seen]) -> str:
    alone = any(seen.history.case.world_size == 1 for seen in group)
    return "those on one rank differ, and no majority" if alone else "no case on one rank and no majority"


def disputed_cases(rows: Iterable[Row]) -> set[str]:
    """Cases that differ from others with none to say which are right, from rows of the metric ``agreement``."""
    return {row.case for row in rows if row.value is None and row.basis.startswith(DISPUTED)}


def _updates(seen: _Seen) -> float:
    return seen.history.observations[-1].evidence[0]["num_updates"]


def limit_of(point: Mapping[str, Any], statistic: Statistic, rounding: float = 0.0) -> float:
    """How far two steps may differ that compute the same as ``point`` does.

    ``rounding`` is what a message loses of the largest gradient.
    """
    shape = shape_of(point)
    routes = shape.has_experts and point.get("routing", "real") == "real"
    coarse = _product_rounding(tuple(sorted(point.items()))) if point["dtype"] == "bfloat16" else 0.0
    limit = max(
        statistic.limits[point["dtype"]][routes], statistic.of_rounding * rounding, statistic.of_products * coarse
    )
    if statistic.is_norm and point["dtype"] == "bfloat16":
        limit = max(limit, min(_MOST_OF_NARROW, limit * _of_width(shape.hidden_size)))
    return limit


def agreement_figure(statistic: Statistic, off: float | None, limit: float, basis: str) -> Metric:
    return Metric("agreement", "1", off, expected=limit, basis=basis, detail={"source": statistic.name})
