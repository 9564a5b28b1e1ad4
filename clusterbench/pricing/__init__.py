"""The price of a training step: seconds, from what a rank does and from how fast the machine does such things.

A profile of a framework (:mod:`clusterbench.pricing.profiles`) says what it does, rates
(:mod:`clusterbench.pricing.rates`) how fast; :func:`price` knows neither framework nor machine. The method and how far
it can be believed: docs/prediction.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from clusterbench.expectation import MEASURED
from clusterbench.pricing.rates import KnownRates, Rates
from clusterbench.pricing.work import FORWARD_AND_BACKWARD, Messages, StageWork, StepWork

KNEE = 4.0
"""How sharply the larger of two times that pass at once decides their sum: the norm by which they are added."""

CALLS_OF_AN_OPERATOR = 40.0
"""Calls in Python that take the host as long as an operator does: ``python -m tests.bench host_calls``."""

PARTS = ("compute", "memory", "launch", "latency", "tp", "cp", "ep", "p2p", "bubble", "dp", "optimizer", "overhead")
"""What the seconds of a step are made of.

``compute`` is products and attention, ``memory`` operators bound by memory; ``launch`` and ``latency`` are what a
micro-batch takes longer because the host cannot launch, or collectives cannot begin, any faster; an axis is what of its
messages is not hidden.
"""


TWO_SIDED_80, ONE_SIDED_99 = 1.2816, 2.3263
"""Standard deviations of the normal distribution: within which 80 % lie, to each side, and below which 99 % do."""

LEAST_MOVED = 0.01
"""Of a step: what a rate may move it by before the price is said to rest on it."""


SMALL = 0.03
"""Of a step: parts below are not named."""


@dataclass(frozen=True)
class Price:
    """Seconds of one step.

    Attributes
    ----------
    parts
        By names of :data:`PARTS`; they add up to ``step_s``.
    low_s, high_s
        With a probability of 80 % a measured step lies between the two, if profile and rates are those of the machine.
    unmeasured
        Rates that nobody measured on the machine, and by what share the step would be another at the ends of their
        intervals; without those of less than :data:`LEAST_MOVED`.
    part_ranges
        By part the seconds from which and to which the intervals of the rates move it: see :func:`price`.
    """

    step_s: float
    parts: Mapping[str, float]
    low_s: float
    high_s: float
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    part_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def limit_s(self) -> float:
        """With a probability of 99 % a measured step is shorter: the upper end at that many standard deviations.

        >>> round(Price(1.0, {}, 1 / 1.2, 1.2).limit_s, 3)
        1.392
        """
        return self.step_s * math.exp(ONE_SIDED_99 / TWO_SIDED_80 * math.log(self.high_s / self.step_s))


def price(work: StepWork, known: KnownRates) -> Price:
    """What a step costs, of what parts, and how sure that is.

    The interval is that of the model, widened on each side by what each rate's own ends make of it: those are taken as
    independent. So are the ranges of the parts, in seconds, as a part may be nothing; the error of the model is not in
    them, for it is known of whole steps alone.
    """
    parts = parts_of(work, known.rates)
    step_s = sum(parts.values())
    of_model = math.log(known.rates.model_error)
    shorter, longer, unmeasured = [of_model], [of_model], {}
    moved_parts = []
    elsewhere = {name for origin, names in known.by_origin.items() if origin not in MEASURED for name in names}
    unread = set(unread_rates(work))
    for name, ends in known.ends.items():
        if name in unread:
            continue
        # what every step takes is a part of its own, and moves no other
        at_ends = [parts | {"overhead": end.step_time} if name == "step_time" else parts_of(work, end) for end in ends]
        moved_parts.append(at_ends)
        moved = [math.log(sum(at_end.values()) / step_s) for at_end in at_ends]
        shorter.append(min(0.0, *moved))
        longer.append(max(0.0, *moved))
        if name in elsewhere and (most := max(map(abs, moved))) >= LEAST_MOVED:
            unmeasured[name] = most
    low_s, high_s = step_s * math.exp(-math.hypot(*shorter)), step_s * math.exp(math.hypot(*longer))
    return Price(step_s, parts, low_s, high_s, unmeasured, _ranges(parts, moved_parts))


def _ranges(
    parts: Mapping[str, float], at_ends: Sequence[Sequence[Mapping[str, float]]]
) -> dict[str, tuple[float, float]]:
    """From which to which seconds rates move each part, given the parts at both ends of each rate."""
    ranges = {}
    for part in dict.fromkeys(chain(parts, *chain(*at_ends))):  # where another stage is the slowest it may have others
        seconds = parts.get(part, 0.0)
        shorter = longer = 0.0
        for lower, upper in at_ends:
            one, other = lower.get(part, 0.0), upper.get(part, 0.0)
            if one != seconds or other != seconds:
                shorter += min(0.0, one - seconds, other - seconds) ** 2
                longer += max(0.0, one - seconds, other - seconds) ** 2
        if seconds or longer:
            ranges[part] = max(0.0, seconds - math.sqrt(shorter)), seconds + math.sqrt(longer)
    return ranges


def unread_rates(work: StepWork) -> Iterator[str]:
    """Rates that the price of this step does not ask for, so that their ends move nothing."""
    has_neighbours = any(stage.neighbours for stage in work.stages)
    if not has_neighbours:
        yield from ("p2p_time", "p2p_bandwidth")
    if work.pipeline_nodes <= 1 or len(work.stages) <= 1:
        yield "pipeline_factor"
    sent = [each for stage in work.stages for each in stage.messages]
    if not any(each.is_waited_for or work.is_in_turn for each in sent):
        yield "collective_time"
    every = [each for each in (*sent, *work.gradients, *work.after) if each.ranks > 1]
    if not every:
        yield "half_size"
        if not (has_neighbours and _stays_within_a_node(work)):
            yield "busbw"
    if all(each.nodes == 1 or each.sharing == 1 for each in every):
        yield "node_network"


def step_seconds(work: StepWork, rates: Rates) -> float:
    """What a step costs, and nothing else."""
    return sum(parts_of(work, rates).values())


def parts_of(work: StepWork, rates: Rates) -> dict[str, float]:
    """Seconds of a step by part.

    The slowest stage sets the pace of a pipeline; every other stage is waited for once, as in 1F1B (Narayanan et al.
    2021, arXiv:2104.04473, section 2.2).
    """
    chained = rates.pipeline_factor if work.pipeline_nodes > 1 and len(work.stages) > 1 else 1.0
    by_stage = [_micro_batch(stage, work, rates, chained) for stage in work.stages]
    seconds = [sum(parts.values()) for parts in by_stage]
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    others = sum(stage.stages * of for stage, of in zip(work.stages, seconds, strict=True)) - seconds[slowest]
    parts = {part: work.num_micro_batches * of for part, of in by_stage[slowest].items()}
    parts["bubble"] = work.bubble * others
    backward = seconds[slowest] * (FORWARD_AND_BACKWARD - 1) / FORWARD_AND_BACKWARD
    parts["dp"] = parts.get("dp", 0.0) + _gradients(work, rates, backward)  # beside what micro-batches send along dp
    parts["optimizer"] = work.optimizer_bytes / rates.memory
    parts["overhead"] = rates.step_time
    return parts


def spent(parts: Mapping[str, float]) -> str:
    """What a step goes to, in hundredths of it: the largest part first, without the small ones.

    >>> spent({"compute": 3.0, "tp": 0.9, "dp": 0.1})
    'compute 75, tp 22'
    """
    whole = sum(parts.values())
    largest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{part} {100 * seconds / whole:.0f}" for part, seconds in largest if seconds > SMALL * whole)


def _micro_batch(stage: StageWork, work: StepWork, rates: Rates, chained: float) -> dict[str, float]:
    parts = {
        "compute": stage.matmul_flops / rates.matmul + stage.attention_flops / rates.attention_at(work.head_dim),
        "memory": stage.memory_bytes / rates.memory,
    }
    for sent in stage.messages:
        hidden_s = 0.0 if work.is_in_turn else sent.behind_flops / rates.matmul
        if sent.behind_attention and not work.is_in_turn:
            hidden_s += sent.behind_attention / rates.attention_at(work.head_dim)
        shown = max(0.0, _seconds(sent, rates) - hidden_s)
        parts[sent.axis] = parts.get(sent.axis, 0.0) + shown
    busy = sum(parts.values())
    launch = (stage.operators + stage.host_calls / CALLS_OF_AN_OPERATOR) * rates.operator_time
    in_a_chain = [sent for sent in stage.messages if sent.is_waited_for or work.is_in_turn]
    latency = sum(sent.count * sent.partners for sent in in_a_chain) * rates.collective_time * chained
    waited = launch + latency if work.is_in_turn else _either(busy, launch, latency) - busy
    # each to the power by which they are added, so that the longer of the two has the larger share
    of_launch, of_latency = launch**KNEE, latency**KNEE
    if both := of_launch + of_latency:
        parts["launch"], parts["latency"] = waited * (of_launch / both), waited * (of_latency / both)
    if stage.neighbours:
        # a forward and a backward along each boundary
        bandwidth = rates.p2p_bandwidth
        if _stays_within_a_node(work):
            bandwidth = max(bandwidth, rates.busbw_of("send_recv", 1, 1))
        parts["p2p"] = 2 * stage.neighbours * (rates.p2p_time + work.boundary_bytes / bandwidth)
    return parts


def _stays_within_a_node(work: StepWork) -> bool:
    """Whether stages send to one another over the link of the cards, and no NIC is on the way."""
    return work.pipeline_nodes == 1 and not work.is_in_turn


def _either(first: float, second: float, third: float) -> float:
    """Times that pass at once: the longest, and a little more where others are nearly as long."""
    longest = max(first, second, third)
    if not longest:
        return 0.0
    shares = (first / longest) ** KNEE + (second / longest) ** KNEE + (third / longest) ** KNEE
    return float(longest * shares ** (1 / KNEE))


def _seconds(sent: Messages, rates: Rates) -> float:
    return sent.count * rates.collective_s(sent.op, sent.size_bytes, sent.partners, sent.nodes, sent.sharing)


def _gradients(work: StepWork, rates: Rates, backward: float) -> float:
    sent = sum(_seconds(each, rates) for each in work.gradients)
    shown = sent if work.is_in_turn else max(work.exposed * sent, sent - work.overlap * backward)
    return shown + sum(_seconds(each, rates) for each in work.after)
