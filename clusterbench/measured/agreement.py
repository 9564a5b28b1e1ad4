"""Cases that compute the same agree: losses and gradients of timed steps, held against each other.

A layout changes where a step is computed and not what. So the first step after the seed's weights has one loss, one
gradient norm and one gradient in every layout, and the last one after as many updates has one loss and one norm. This
looks at the step that was timed, at its own size, where the proof looks at a small twin.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import Any, ClassVar

from clusterbench.formulas.statistics import median
from clusterbench.job.experts import even_tokens
from clusterbench.job.passes import (
    DUE,
    FIRST,
    GRADIENT_OF,
    LAST,
    LATE_STEP,
    ON_ONE_RANK,
    PROJECTIONS,
    between,
    kind_of_projection,
    most_updates,
    projection,
    updates_between,
)
from clusterbench.layout import ParallelLayout
from clusterbench.options import Option
from clusterbench.parallel import active_in, from_options
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from clusterbench.shape import OWN_SHAPE, ModelShape, shape_of
from clusterbench.types import Agreement, Case, Metric
from clusterbench.words import plural

DISPUTED = "not proven"
_MEASURED = "five times and more what 5 layouts of two models on a CPU differed by after 1 to 24 updates"
_OF_GRADIENTS = (
    "three times what tp2+sp and one rank differed by in 2 to 96 layers on a CPU, by 8 projections; of gradients that "
    "have nothing to do with each other it is 1.4"
)
_OF_LAST_GRADIENTS = (
    "six times and more what layouts of dense models and one rank differed by in 2 to 32 layers on a CPU, after 3 to "
    "16 updates; without gradients from the third step on it is 0.65"
)


Number = tuple[float, ...]
"""What is compared: one number, or the norm of a gradient and its projections."""


@dataclass(frozen=True)
class Statistic:
    """A number that cases which compute the same share.

    Attributes
    ----------
    name
        Of the evidence.
    words
        What it is; with the label of a number where there are several.
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
    is_of_gradients
        And so rounded the more the narrower and deeper a model is.
    measured
        What its limits rest on.
    """

    name: str
    words: str
    of_update: bool
    is_last: bool
    limits: Mapping[str, tuple[float, float]]
    of_rounding: float = 0.0
    of_products: float = 0.0
    is_of_gradients: bool = False
    measured: str = _MEASURED
    is_one_number: ClassVar[bool] = True

    def numbers(self, evidence: Mapping[str, float], most: int) -> dict[str, Number]:
        """By label what some evidence has of it: one without a label, one for each step or one for each weight.

        ``most`` are the updates after which steps may still be compared.
        """
        return {"": (evidence[self.name],)} if self.name in evidence else {}


@dataclass(frozen=True)
class OfEachStep(Statistic):
    """One number for each step between the first and the last: a ``loss`` or a ``norm``."""

    of: str = ""
    is_one_number = False

    def numbers(self, evidence: Mapping[str, float], most: int) -> dict[str, Number]:
        updates = sorted(update for update in map(updates_between, evidence) if 0 < update <= most)
        names = {update: between(update, self.of) for update in updates}
        return {str(update): (evidence[name],) for update, name in names.items() if name in evidence}


@dataclass(frozen=True)
class OfEachWeight(Statistic):
    """The gradient of each kind of weight: its norm and its projections. ``of`` is the first or the last step."""

    of: str = FIRST
    is_one_number = False

    def numbers(self, evidence: Mapping[str, float], most: int) -> dict[str, Number]:
        if self.is_last and evidence.get("num_updates", math.inf) > most:
            return {}
        kinds = dict.fromkeys(kind for name in evidence if (kind := kind_of_projection(name, self.of)))
        places = range(1 + PROJECTIONS)
        return {kind: tuple(evidence[projection(kind, place, self.of)] for place in places) for kind in kinds}


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
        is_of_gradients=True,
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
        is_of_gradients=True,
    ),
    OfEachStep("losses_between", "the loss of step {}", True, True, _LOSSES, 0.5, 2.0, of="loss"),
    OfEachStep("norms_between", "the gradient norm of step {}", True, True, _NORMS, 5.0, 5.0, True, of="norm"),
    OfEachWeight(
        "first_gradients",
        "the gradient of {} in the first step",
        True,
        False,
        {"float64": (1e-4, 1e-4), "float32": (1e-3, 0.3), "bfloat16": (0.3, 1.0)},
        of_rounding=2.0,
        of_products=16.0,
        is_of_gradients=True,
        measured=_OF_GRADIENTS,
    ),
    OfEachWeight(
        "last_gradients",
        "the mean gradient of {} behind the last step",
        True,
        True,
        {"float64": (1e-4, 1e-4), "float32": (1e-2, 2.0), "bfloat16": (0.5, 2.0)},
        of_rounding=10.0,
        of_products=50.0,
        is_of_gradients=True,
        measured=_OF_LAST_GRADIENTS,
        of=LAST,
    ),
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
    for history in histories:
        hash = history.case.hash
        for metric, why in _late(history, options):
            metrics[hash].append(metric)
            if why:
                wrong.setdefault(hash, why)
    return {hash: Agreement(tuple(of_case), wrong.get(hash, "")) for hash, of_case in metrics.items()}


@dataclass(frozen=True)
class _Seen:
    """What the repeats of one case showed of a statistic.

    Attributes
    ----------
    numbers
        Of each repeat, by label.
    alone
        What one rank computed behind the clock; empty where that was not asked for, or is not to be known.
    """

    history: History
    numbers: tuple[Mapping[str, Number], ...]
    alone: Mapping[str, Number] = field(default_factory=dict)

    def off(self, reference: Mapping[str, Number]) -> float:
        """The largest distance."""
        return self.furthest(reference)[0]

    def furthest(self, reference: Mapping[str, Number]) -> tuple[float, str, Number]:
        """The largest distance, the label of that number, and what it is here."""
        return max(
            (
                (off, label, of_repeat[label])
                for of_repeat in self.numbers
                for label, off in distances(of_repeat, reference).items()
            ),
            key=itemgetter(0),
        )


LEAST_SHARE = 0.01
"""Of the norm of all gradients: one of a kind of weight that is smaller is held against so much of it.

Where sequences have one token those of queries and keys are rounding alone, 1e-8 of the whole. Otherwise the least was
0.02, of a norm's weights.
"""


def distances(numbers: Mapping[str, Number], wanted: Mapping[str, Number]) -> dict[str, float]:
    """By label how far two are apart, as shares: of two numbers, or of two gradients by their projections.

    >>> distances({"": (1.5,)}, {"": (1.0,)}), distances({"key": (5.0, 3.0, -4.0)}, {"key": (5.0, 3.0, 1.0)})
    ({'': 0.5}, {'key': 0.7071067811865476})
    """
    least = LEAST_SHARE * math.sqrt(sum(norm[0] ** 2 for norm in wanted.values() if len(norm) > 1))
    return {label: _apart(number, wanted[label], least) for label, number in numbers.items()}


def _apart(number: Number, wanted: Number, least: float) -> float:
    if number == wanted:
        return 0.0
    compared = [(got - due) ** 2 for got, due in zip(number[1:] or number, wanted[1:] or wanted, strict=True)]
    size = max(abs(wanted[0]), least)
    off = math.sqrt(sum(compared) / len(compared)) / size if size else math.inf
    return math.inf if math.isnan(off) else off  # which no comparison would see


def _groups(histories: Sequence[History], statistic: Statistic, options: Mapping[str, Option]) -> Iterator[list[_Seen]]:
    """Cases that should show the same."""
    groups: dict[tuple[object, ...], list[_Seen]] = defaultdict(list)
    for history in histories:
        evidence = [seen.evidence[0] for seen in history.observations if seen.evidence]
        most = updates_compared(history.case.point)
        numbers = tuple(filter(None, (statistic.numbers(seen, most) for seen in evidence)))
        updates = {seen.get("num_updates") for seen in evidence} if statistic.is_last else {None}
        labels = {tuple(sorted(of_repeat)) for of_repeat in numbers}
        if len(labels) == 1 and len(updates) == 1:
            alone = _alone(history, statistic, most, *updates)
            seen = _Seen(history, numbers, alone if tuple(sorted(alone)) in labels else {})
            # other sources may draw other weights, or compute something else: each agree among themselves
            copy = [*history.copies][-1]
            groups[(copy, *labels, *updates, *_result_of(history.case, statistic.of_update, options))].append(seen)
    yield from groups.values()


def _alone(history: History, statistic: Statistic, most: int, num_updates: float | None) -> Mapping[str, Number]:
    """What one rank computed behind the clock of a case, after as many updates."""
    for observation in history.observations:
        for of_rank in ON_ONE_RANK.of(observation)[:1]:
            if num_updates in (None, of_rank.get("num_updates")):
                return statistic.numbers(of_rank, most)
    return {}


def one_rank_key(case: Case, options: Mapping[str, Option]) -> str:
    """What cases have in common that show the same on one rank; empty where one rank has no like."""
    if is_routed_by_place_of_a_rank(case.point):
        return ""
    return repr((_result_of(case, True, options), case.warmup + case.iterations))


def _result_of(case: Case, of_update: bool, options: Mapping[str, Option]) -> tuple[object, ...]:
    """All that changes what a case computes."""
    point: Mapping[str, Any] = case.point
    altering = ("result", "update") if of_update else ("result",)
    named = [(name, point.get(name, option.default)) for name, option in options.items() if option.alters in altering]
    # the load-balancing loss is one for each micro-batch
    per_forward = point["micro_batch_size"] if point.get("aux_loss") else None
    by_place = case.hash if is_routed_by_place_of_a_rank(point) else None
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


def is_routed_by_place_of_a_rank(point: Mapping[str, Any]) -> bool:
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
        case, numbers = seen.history.case, seen.numbers[-1]
        if statistic.is_last and statistic.is_one_number and _updates(seen) > updates_compared(point):
            most = plural(updates_compared(point), "update")
            basis = f"not compared: after more than {most} of so many layers rounding alone may go as far"
            yield case.hash, agreement_figure(statistic, None, limit, basis), ""
        elif reference is None:
            other = max((other for other in group if other is not seen), key=lambda other: other.off(numbers))
            _, label, number = other.furthest(numbers)
            basis = (
                f"{DISPUTED}: {statistic.words.format(label)} is {told(numbers[label])}, and {told(number)} in "
                f"{other.history.case.id}; {_neither(group)} says which is right"
            )
            yield case.hash, agreement_figure(statistic, None, limit, basis), ""
        else:
            of_reference, where = reference
            off, label, number = seen.furthest(of_reference)
            held_against = f"{told(of_reference[label])} {where}"
            basis = f"at most; {statistic.measured}; against {held_against}"
            how = apart_in_words(number)
            wrong = (
                f"{statistic.words.format(label)} is {told(number)}, and {held_against}: {off:.2g} {how}, where "
                f"{limit:g} is allowed in {point['dtype']}. A layout changes where a step is computed and not what."
            )
            yield case.hash, agreement_figure(statistic, off, limit, basis), "" if off <= limit else wrong


def apart_in_words(number: Number) -> str:
    """How two such are apart."""
    return "apart" if len(number) == 1 else "of that apart, by their projections"


def told(number: Number) -> str:
    """A number in a sentence; of a gradient its norm.

    >>> told((1.5,)), told((5.0, 3.0, -4.0))
    ('1.5', 'of norm 5')
    """
    return f"{number[0]:.7g}" if len(number) == 1 else f"of norm {number[0]:.6g}"


_MOST_OF_NARROW = 0.3
"""However narrow and deep a model is: as much as where a router's choice follows rounding."""


def _of_norms(shape: ModelShape) -> float:
    """How many times as far gradient norms may differ in bfloat16: of a narrow model less of the rounding cancels.

    Of one rank they were off by 0.0012 where a model was 64 wide, by 0.006 where it was 16 and by 0.0175 where it was 8
    (root mean squares over 8 seeds); of models 2 and 4 wide two layouts were up to 0.054 apart in the first step, and
    0.107 in a later one. What each layer rounds the next ones go on from: norms of tp2+sp and one rank were 0.0006
    apart in 2 layers 64 wide, 0.0031 in 32 and 0.0092 in 96, and 0.001 in 64 layers 512 wide (over 4 seeds).

    >>> from dataclasses import replace
    >>> from clusterbench.shape import named_shape
    >>> _of_norms(replace(named_shape("llama-tiny"), hidden_size=16)), _of_norms(named_shape("llama-405b"))
    (4.0, 1.0)
    """
    return max(1.0, 64 / shape.hidden_size * max(1.0, shape.num_layers / 8))


def _of_losses(shape: ModelShape, tokens: int) -> float:
    """The same of losses: means over tokens, of what as many layers have rounded.

    Of 128 tokens they were up to 0.0002 apart in 2 layers, 0.0006 in 32 and 0.0009 in 96.

    >>> from dataclasses import replace
    >>> from clusterbench.shape import named_shape
    >>> _of_losses(replace(named_shape("llama-tiny"), num_layers=32), 128), _of_losses(named_shape("llama-405b"), 8192)
    (2.0, 1.0)
    """
    return max(1.0, math.sqrt(shape.num_layers / 8 * 128 / tokens))


def _reference(group: Sequence[_Seen], limit: float) -> tuple[Mapping[str, Number], str] | None:
    """What a group should show, and where that is seen.

    That is on one rank behind the clock, in cases on one rank, or in more than half of all, whichever there is. Cases
    on one rank that differ among themselves decide nothing: one of them is wrong, and it is not known which.
    """
    behind = [(seen.alone, seen.history.case.id) for seen in group if seen.alone]
    if behind:
        return behind[0][0], f"on one rank behind the clock of {behind[0][1]}"
    alone = [seen for seen in group if seen.history.case.world_size == 1]
    if alone and all(seen.off(alone[0].numbers[-1]) <= limit for seen in alone):
        return _medians(alone), f"in {alone[0].history.case.id}, on one rank"
    agreeing = max(([seen for seen in group if seen.off(center.numbers[-1]) <= limit] for center in group), key=len)
    if len(agreeing) > 1 and 2 * len(agreeing) > len(group):
        where = f"in {len(agreeing)} of {len(group)} cases that compute the same"
        return _medians(agreeing), where
    return None


def _medians(group: Sequence[_Seen]) -> dict[str, Number]:
    every = [numbers for seen in group for numbers in seen.numbers]
    return {label: middle_of([numbers[label] for numbers in every]) for label in every[0]}


def middle_of(numbers: Sequence[Number]) -> Number:
    """Of each of what they are made of the median."""
    return tuple(map(median, zip(*numbers, strict=True)))


def _neither(group: Sequence[_Seen]) -> str:
    alone = any(seen.history.case.world_size == 1 for seen in group)
    return "those on one rank differ, and no majority" if alone else "no case on one rank and no majority"


def disputed_cases(rows: Iterable[Row]) -> set[str]:
    """Cases that differ from others with none to say which are right, from rows of the metric ``agreement``."""
    return {row.case for row in rows if row.value is None and row.basis.startswith(DISPUTED)}


def updates_compared(point: Mapping[str, Any]) -> int:
    """After how many updates cases of this point may still be compared."""
    return most_updates(shape_of(point).num_layers, point["dtype"])


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
    if point["dtype"] == "bfloat16":
        tokens = point["global_batch_size"] * point["seq_len"]
        times = _of_norms(shape) if statistic.is_of_gradients else _of_losses(shape, tokens)
        limit = max(limit, min(_MOST_OF_NARROW, limit * times))
    return limit


_FROM_SAME_WEIGHTS = {"first_loss": 3.0, "first_norm": 3.0, "first_gradients": 1.5}
"""How many times as far as in the first step a later one may be from one rank that is given its weights.

In bfloat16 dense layouts of 4 to 16 layers were up to 0.0008 off in the loss, 0.0045 in the norm and 0.17 in a gradient
after 2 to 20 updates; where a router decides 0.005, 0.011 and 0.5, and in float8 0.007, 0.015 and 0.7. In float32 they
were as far off as in the first step.
"""


def _late(history: History, options: Mapping[str, Option]) -> Iterator[tuple[Metric, str]]:
    """How far the step behind the timed ones is from one rank that was given its weights, and what is wrong with it."""
    point: Mapping[str, Any] = history.case.point
    rounding = _sent(point, options).rounding
    for seen in (of_rank for each in history.observations for of_rank in LATE_STEP.of(each)[:1] if of_rank):
        updates = plural(int(seen["num_updates"]), "update")
        for statistic, (what, off) in zip(_OF_FIRST, _differences(seen), strict=False):
            limit = _FROM_SAME_WEIGHTS[statistic.name] * limit_of(point, statistic, rounding)
            basis = f"at most; one rank with the same weights, after {updates}"
            why = (
                f"{what} on one rank from the same weights, after {updates}: {off:.2g} apart, where {limit:.2g} is "
                f"allowed in {point['dtype']}. A layout changes where a step is computed and not what."
            )
            name = statistic.name.replace(FIRST, "late")
            figure = Metric("agreement", "1", off, expected=limit, basis=basis, detail={"source": name})
            yield figure, "" if off <= limit else why


def _differences(seen: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Of loss, norm and gradients in words what is held against one rank, and how far it is from that."""
    for name, words in (("loss", "the loss"), ("norm", "the gradient norm")):
        number, due = seen[name], seen[f"{name}{DUE}"]
        yield f"{words} of a late step is {number:.7g}, and {due:.7g}", abs(number - due) / due if due else math.inf
    of_weights = {name: off for name, off in seen.items() if name.startswith(GRADIENT_OF)}
    if of_weights:
        worst = max(of_weights, key=lambda name: of_weights[name])
        yield f"the {worst} in a late step is not that", of_weights[worst]


_OF_FIRST = tuple(statistic for statistic in STATISTICS if statistic.name in _FROM_SAME_WEIGHTS)


def agreement_figure(statistic: Statistic, off: float | None, limit: float, basis: str) -> Metric:
    return Metric("agreement", "1", off, expected=limit, basis=basis, detail={"source": statistic.name})
