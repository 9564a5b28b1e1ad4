"""A step played through: when each rank computes and waits, and the idle share, played and by formula."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

from clusterbench.formulas.pipeline import bubble_fraction
from clusterbench.formulas.schedules import (
    objection,
    order,
)
from clusterbench.formulas.schedules.orders import Action, Kind, Order

Costs = Mapping[str, float | Sequence[float]]


class Played(NamedTuple):
    """An action with its place in time, in seconds from the start of the step."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """A step played through: for each rank what it computed when."""

    ranks: tuple[tuple[Played, ...], ...]

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end on any rank."""
        return max((played[-1].end_s for played in self.ranks if played), default=0.0)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Seconds each rank computes."""
        return tuple(sum(end_s - start_s for _, start_s, end_s in played) for played in self.ranks)

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Idle share of each rank, as a fraction of the whole step."""
        makespan_s = self.makespan_s
        return tuple(1 - busy_s / makespan_s if makespan_s else 0.0 for busy_s in self.busy_s)

    @property
    def bubble(self) -> float:
        """Idle share of the rank that idles most."""
        return max(self.bubbles, default=0.0)


def play(order: Order, costs: Costs, send_s: float = 0.0) -> Timeline:
    """Play the orders through: each rank starts its next action once it is free and the action's input is there.

    Parameters
    ----------
    costs
        Seconds of each kind of action, one number for all stages or one per stage. Without ``B`` a whole backward
        costs I + W. :func:`costs_in_torch` knows where torch's differ.
    send_s
        Time from the end of a computation to its result being on another rank. It slows no computation, and
        between two stages of one rank it is 0.

    Raises ValueError if the ranks wait for each other, or a cost is missing.

    >>> timeline = play(order("1f1b", 4, 12, 1), {"F": 1.0, "B": 2.0})
    >>> timeline.makespan_s, round(timeline.bubble, 4)
    (45.0, 0.2)
    """
    rank_of = placement(order)
    last_stage = max(rank_of, default=0)
    seconds = _seconds_by_stage({action.kind for actions in order for action in actions}, costs, last_stage + 1)
    # When a result was there on its own rank. B ends as an I does: with the gradient the stage before waits for.
    ended_s: dict[tuple[Kind, int, int], float] = {}
    played: list[list[Played]] = [[] for _ in order]
    clocks_s = [0.0] * len(order)
    waiting: defaultdict[tuple[Kind, int, int], list[int]] = defaultdict(list)
    runnable = deque(range(len(order)))
    while runnable:
        rank = runnable.popleft()
        for action in order[rank][len(played[rank]) :]:
            kind, stage, microbatch = action
            start_s, missing = clocks_s[rank], None
            for need in _needs(action, last_stage):
                if need not in ended_s:
                    missing = need
                    break
                there_s = ended_s[need] + (send_s if rank_of[need[1]] != rank else 0.0)
                if there_s > start_s:
                    start_s = there_s
            if missing:
                waiting[missing].append(rank)
                break
            end_s = clocks_s[rank] = start_s + seconds[kind][stage]
            played[rank].append(Played(action, start_s, end_s))
            result: tuple[Kind, int, int] = ("I" if kind == "B" else kind, stage, microbatch)
            ended_s[result] = end_s
            if result in waiting:
                runnable.extend(waiting.pop(result))
    if waiting:
        raise ValueError(_deadlock(order, played, last_stage, ended_s))
    return Timeline(tuple(map(tuple, played)))


def costs_in_torch(num_stages: int, forward_s: float, inputs_s: float, weights_s: float) -> Costs:
    """Costs of equal stages for :func:`play`, as torch computes them.

    The first stage has no input's gradient to give, and torch knows how to leave it out of a whole backward but not
    where backward is split: there its I does nothing and its W is a whole backward.

    Source: ``_PipelineStageBase.backward_one_chunk`` and ``backward_weight_one_chunk``, torch 2.13.

    >>> costs_in_torch(3, forward_s=1.0, inputs_s=1.5, weights_s=1.0)["W"]
    (2.5, 1.0, 1.0)
    """
    num_others = num_stages - 1
    return {
        "F": forward_s,
        "B": inputs_s + weights_s,
        "I": (0.0,) + (inputs_s,) * num_others,
        "W": (inputs_s + weights_s,) + (weights_s,) * num_others,
    }


class Bubble(NamedTuple):
    """Idle share of the rank that idles most, as a fraction of the whole step, and what that rests on."""

    value: float
    basis: str


def bubble_formula(schedule: str, num_ranks: int, num_microbatches: int, chunks: int) -> Bubble | None:
    """The closed form of ``play(...).bubble`` for equal stages and free communication, where there is one.

    The forms of the zero-bubble schedules hold for F = I = W only. None where torch would refuse the sizes, or there
    are too few microbatches to keep every rank of an interleaved or V schedule busy; :func:`play` knows those too.

    >>> value, basis = bubble_formula("interleaved_1f1b", num_ranks=4, num_microbatches=8, chunks=2)
    >>> print(f"{value:.4f}: {basis}")
    0.1579: (p-1) / (v m + p-1), arXiv:2104.04473, section 2.2.2
    """
    p, m, v = num_ranks, num_microbatches, chunks
    if objection(schedule, p, m, v):
        return None
    match schedule:
        case "naive":
            return Bubble(1 - 1 / p, "1 - 1/p: one rank computes at a time")
        case "gpipe" | "1f1b":
            return Bubble(bubble_fraction(p, m), "(p-1) / (m + p-1), arXiv:2104.04473, section 2.2.1")
        case "interleaved_1f1b" if m >= p:
            return Bubble(bubble_fraction(p, m, v), "(p-1) / (v m + p-1), arXiv:2104.04473, section 2.2.2")
        case "looped_bfs" if m >= p:
            return Bubble(bubble_fraction(p, m, v), "(p-1) / (v m + p-1), as interleaved 1F1B: arXiv:2211.05953")
        # With F = I = W, a chunk of a microbatch costs 3 F, and p-1 times F is idle.
        case "interleaved_zero_bubble" if m >= p:
            basis = "(p-1) / (3 v m + p-1) if F = I = W: (p-1)(F+I-W) idle, arXiv:2401.10241, as ZB-H1 by chunk"
            return Bubble(bubble_fraction(p, 3 * m, v), basis)
        case "zbv" if m >= 2 * p - 1:
            return Bubble(bubble_fraction(p, 3 * m, v), f"(p-1) / (6 m + p-1) if F = I = W: {_COUNTED}")
        case "dualpipev":
            return Bubble(bubble_fraction(p, 3 * m, v), f"(p-1) / (6 m + p-1) if F = I = W: {_COUNTED}")
        case _:
            return None


@lru_cache(maxsize=1024)  # a plan asks again for layouts that differ in dp alone
def bubble_of_stages(
    schedule: str, num_ranks: int, num_microbatches: int, chunks: int, forward_s: tuple[float, ...]
) -> Bubble:
    """The mean of ``play(...).bubbles`` for stages that are not equal, with free communication.

    Parameters
    ----------
    forward_s
        Time of one forward on each stage, in any unit. Both parts of its backward take as long each, as in the closed
        forms of :func:`bubble_formula`, which these stages would have if they were equal.

    >>> equal = bubble_of_stages("1f1b", 4, 12, 1, (1.0, 1.0, 1.0, 1.0))
    >>> longer = bubble_of_stages("1f1b", 4, 12, 1, (1.0, 2.0, 1.0, 1.0))
    >>> round(equal.value, 4), round(longer.value, 4)
    (0.2, 0.4156)
    """
    orders = order(schedule, num_ranks, num_microbatches, chunks)
    played = play(orders, {"F": forward_s, "I": forward_s, "W": forward_s}).bubbles
    basis = f"{schedule} played with stages as long as what they multiply, as layers do not come out even over them"
    return Bubble(fmean(played), f"{basis}; mean rank, F = I = W")


_COUNTED = "a rank waits (p-1) F at the ends of the step, counted in torch 2.13's order; no paper gives it"


def placement(order: Order) -> dict[int, int]:
    """The rank of each stage."""
    return {action.stage: rank for rank, actions in enumerate(order) for action in actions}


def _needs(action: Action, last_stage: int) -> tuple[tuple[Kind, int, int], ...]:
    """The results an action starts from."""
    kind, stage, microbatch = action
    if kind == "W":
        return (("I", stage, microbatch),)
    if kind == "F":
        return (("F", stage - 1, microbatch),) if stage else ()
    forward: tuple[Kind, int, int] = ("F", stage, microbatch)
    return (forward,) if stage == last_stage else (forward, ("I", stage + 1, microbatch))


def _seconds_by_stage(kinds: Iterable[Kind], costs: Costs, num_stages: int) -> dict[Kind, Sequence[float]]:
    def of(kind: str) -> Sequence[float]:
        if kind == "B" and "B" not in costs:
            return [inputs_s + weights_s for inputs_s, weights_s in zip(of("I"), of("W"), strict=True)]
        if kind not in costs:
            raise ValueError(f"the schedule has actions of kind {kind}, but only {', '.join(costs)} have a cost.")
        cost = costs[kind]
        if not isinstance(cost, Sequence):
            return [cost] * num_stages
        if len(cost) != num_stages:
            raise ValueError(f"{kind} has costs for {len(cost)} stages, but the schedule has {num_stages}.")
        return cost

    return {kind: of(kind) for kind in sorted(kinds)}


def _deadlock(
    order: Order, played: list[list[Played]], last_stage: int, ended_s: Mapping[tuple[Kind, int, int], float]
) -> str:
    stuck = []
    for rank, (actions, done) in enumerate(zip(order, played, strict=True)):
        if len(done) < len(actions):
            action = actions[len(done)]
            need = next(need for need in _needs(action, last_stage) if need not in ended_s)
            stuck.append(f"rank {rank} waits for {Action(*need)} before {action}")
    return "the schedule never ends: " + ", ".join(stuck) + "."
