"""Pipeline schedules: the order of each rank's actions, and the time, memory and messages of the step.

The orders are those of ``torch.distributed.pipelining`` 2.13, written down again so that a step can be predicted
without torch, without devices and for more ranks than there are. A rank holds one or several *chunks* of the model;
each chunk is one *stage* of the pipeline, and stages count through the model from 0.

The kinds of action are F (forward), B (whole backward), I (the part of backward that gives the input's gradient, which
the stage before waits for) and W (the rest of it, the weights' gradients, which no rank waits for).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from statistics import fmean
from typing import Any, Literal, NamedTuple, TypeVar, cast

from clusterbench.formulas.pipeline import bubble_fraction
from clusterbench.words import plural

Kind = Literal["F", "B", "I", "W"]
_T = TypeVar("_T")


class Action(NamedTuple):
    """One computation of one microbatch on one stage; prints as torch writes it.

    >>> print(Action("F", stage=2, microbatch=7))
    2F7
    """

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


Order = Sequence[Sequence[Action]]  # one list of actions per rank


# --- The orders of one rank -------------------------------------------------------------------------------------------


class _Script:
    """The actions of one rank as they are written down, by chunk; it counts the microbatches of each chunk itself."""

    def __init__(self, stages: Sequence[int]) -> None:
        self.actions: list[Action] = []
        self._stages = stages
        self._next: Counter[tuple[Kind, int]] = Counter()

    def write(self, *words: str) -> None:
        """Write ``F0`` or ``B1``: kind and chunk."""
        for word in words:
            kind, chunk = _KINDS[word[0]], int(word[1:])
            # A whole backward is the input's and the weights' part of the microbatch that is next in both.
            parts: tuple[Kind, ...] = ("I", "W") if kind == "B" else (kind,)
            self.actions.append(Action(kind, self._stages[chunk], self._next[parts[0], chunk]))
            for part in parts:
                self._next[part, chunk] += 1


_KINDS: dict[str, Kind] = {"F": "F", "B": "B", "I": "I", "W": "W"}
_FORWARD_BACKWARD: tuple[Kind, Kind] = ("F", "B")


def _naive(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    return [Action(kind, rank, microbatch) for microbatch in range(num_microbatches) for kind in _FORWARD_BACKWARD]


def _gpipe(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    return [Action(kind, rank, microbatch) for kind in _FORWARD_BACKWARD for microbatch in range(num_microbatches)]


def _1f1b(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    script = _Script([rank])
    ahead = min(num_microbatches, num_ranks - rank - 1)
    script.write(*["F0"] * ahead)
    script.write(*["F0", "B0"] * (num_microbatches - ahead))
    script.write(*["B0"] * ahead)
    return script.actions


def _looped_bfs(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    stages = _loop_stages(rank, num_ranks, chunks)
    forward = [Action("F", stage, microbatch) for stage in stages for microbatch in range(num_microbatches)]
    # Backward mirrors forward: the microbatch that came last through the last stage goes back first.
    return forward + [Action("B", stage, microbatch) for _, stage, microbatch in reversed(forward)]


def _interleaved_1f1b(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    forward, backward = _depth_first(rank, num_ranks, num_microbatches, chunks)
    ahead = _warmup(rank, num_ranks, num_microbatches, chunks, per_hop=2)
    actions = forward[:ahead]
    for k, (stage, microbatch) in enumerate(backward):
        actions += forward[ahead + k : ahead + k + 1]
        actions.append(Action("B", stage, microbatch))
    return actions


def _interleaved_zero_bubble(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    """ZB1P: one forward of warm-up per hop instead of two, and each W ``rank`` backwards late, to end the step."""
    forward, backward = _depth_first(rank, num_ranks, num_microbatches, chunks)
    ahead = _warmup(rank, num_ranks, num_microbatches, chunks, per_hop=1)
    actions = forward[:ahead]
    for k, (stage, microbatch) in enumerate(backward):
        actions += forward[ahead + k : ahead + k + 1]
        actions.append(Action("I", stage, microbatch))
        if k >= rank:
            actions.append(Action("W", *backward[k - rank]))
    return actions + [Action("W", *late) for late in backward[max(0, len(backward) - rank) :]]


def _depth_first(
    rank: int, num_ranks: int, num_microbatches: int, chunks: int
) -> tuple[list[Action], list[tuple[int, int]]]:
    """The forward actions of a rank, and the (stage, microbatch) of its backwards, of the interleaved schedules.

    A round of microbatches goes through all chunks before the next round starts; backward takes the chunks in reverse.
    """
    size = _round_size(num_ranks, num_microbatches)
    stages = _loop_stages(rank, num_ranks, chunks)
    rounds = [range(first, first + size) for first in range(0, num_microbatches, size)]
    forward = [
        Action("F", stage, microbatch) for microbatches in rounds for stage in stages for microbatch in microbatches
    ]
    backward = [
        (stage, microbatch) for microbatches in rounds for stage in reversed(stages) for microbatch in microbatches
    ]
    return forward, backward


def _round_size(num_ranks: int, num_microbatches: int) -> int:
    return num_microbatches // max(1, num_microbatches // num_ranks)


def _warmup(rank: int, num_ranks: int, num_microbatches: int, chunks: int, per_hop: int) -> int:
    ahead = (chunks - 1) * _round_size(num_ranks, num_microbatches) + per_hop * (num_ranks - 1 - rank)
    return min(ahead, num_microbatches * chunks)


def _zbv(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    # The order is made for a full pipeline. With fewer microbatches, those that do not exist are struck out.
    full = max(2 * num_ranks - 1, num_microbatches)
    behind = num_ranks - rank  # ranks from here to the turn of the V, this one included
    script = _Script(_v_stages(rank, num_ranks))

    # Warm-up, until the first microbatch has come back up the V.
    script.write(*["F0"] * (2 * behind - 1))
    script.write(*["F1", "F0"] * rank)
    script.write(*["F1", "I1", "W1"] * behind)

    # Steady state: both chunks forward and backward; towards the end chunk 0 has no forward left.
    for k in range(full - num_ranks):
        if k < full - 2 * num_ranks + rank + 1:
            script.write("F0")
        script.write("I0", "W0", "F1", "I1", "W1")

    # Cool-down: inputs' gradients first, since other ranks wait for them.
    script.write(*["I0", "I1"] * rank)
    script.write(*["I0", "W0"] * behind)
    script.write(*["W1"] * rank, *["W0"] * rank)
    return [action for action in script.actions if action.microbatch < num_microbatches]


def _dualpipev(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    # Torch joins each F of the steady state with the B after it into one OVERLAP_F_B, and runs it as F and then B.
    after = num_ranks - rank - 1
    script = _Script(_v_stages(rank, num_ranks))

    # Warm-up: chunk 0 down the V, then both chunks, then chunk 1 forward and backward.
    script.write(*["F0"] * (2 * after))
    script.write(*["F0", "F1"] * (rank + 1))
    script.write(*["I1", "W1", "F1"] * after)

    # Steady state: a forward of one chunk beside a backward of the other.
    script.write(*["F0", "B1", "F1", "B0"] * (num_microbatches - 2 * num_ranks + rank + 1))
    script.write(*["B1", "F1", "B0"] * after)

    # Cool-down: half of the backwards whole; of the others the weights wait for the gaps at the end.
    turns = [1, 0] * (rank + 1)
    script.write(*[f"B{chunk}" for chunk in turns[: rank + 1]])
    script.write(*[f"I{chunk}" for chunk in turns[rank + 1 :]])
    late = deque(f"W{chunk}" for chunk in turns[rank + 1 :])
    for _ in range(after):
        script.write(late.popleft(), "I0")
        late.append("W0")
    script.write(*late)
    return script.actions


def _loop_stages(rank: int, num_ranks: int, chunks: int) -> tuple[int, ...]:
    return tuple(range(rank, num_ranks * chunks, num_ranks))


def _v_stages(rank: int, num_ranks: int) -> tuple[int, ...]:
    return (rank, 2 * num_ranks - 1 - rank)


# --- The schedules ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """What is known of a schedule by its name alone.

    Parameters
    ----------
    torch_class
        Its name in ``torch.distributed.pipelining``; None where torch has none.
    chunks
        Model chunks per rank unless asked otherwise.
    any_chunks
        Whether other numbers of chunks work too.
    """

    what: str
    source: str
    torch_class: str | None
    placement: Literal["loop", "v"]
    chunks: int
    any_chunks: bool
    rank_order: Callable[[int, int, int, int], list[Action]]


SCHEDULES: dict[str, Schedule] = {
    "naive": Schedule(
        "one microbatch at a time through all stages and back; one rank computes while the others wait",
        "the model parallelism that Huang et al. 2019, arXiv:1811.06965, figure 2b, starts from",
        None,
        "loop",
        1,
        False,
        _naive,
    ),
    "gpipe": Schedule(
        "all microbatches forward, then all backward; holds the activations of every microbatch",
        "Huang et al. 2019, arXiv:1811.06965",
        "ScheduleGPipe",
        "loop",
        1,
        False,
        _gpipe,
    ),
    "1f1b": Schedule(
        "forward and backward in turn once the pipeline is full; idles like gpipe, but holds p microbatches at most",
        "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1",
        "Schedule1F1B",
        "loop",
        1,
        False,
        _1f1b,
    ),
    "interleaved_1f1b": Schedule(
        "1f1b with several chunks per rank, earlier microbatches first: less idle time for more messages",
        "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2",
        "ScheduleInterleaved1F1B",
        "loop",
        2,
        True,
        _interleaved_1f1b,
    ),
    "looped_bfs": Schedule(
        "gpipe with several chunks per rank, earlier chunks first: all microbatches through a chunk, then the next",
        "Lamy-Poirier 2022, arXiv:2211.05953",
        "ScheduleLoopedBFS",
        "loop",
        2,
        True,
        _looped_bfs,
    ),
    "interleaved_zero_bubble": Schedule(
        "interleaved 1f1b with backward split, weights' gradients late enough to fill the end of the step (ZB1P)",
        "Qi et al. 2023, arXiv:2401.10241",
        "ScheduleInterleavedZeroBubble",
        "loop",
        2,
        True,
        _interleaved_zero_bubble,
    ),
    "zbv": Schedule(
        "two chunks per rank in a V and backward split; no rank waits inside the step if F, I and W take equally long",
        "Qi et al. 2023, arXiv:2401.10241, section 6",
        "ScheduleZBVZeroBubble",
        "v",
        2,
        False,
        _zbv,
    ),
    "dualpipev": Schedule(
        "two chunks per rank in a V, forward of one beside backward of the other, to hide experts' messages",
        "DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1; github.com/deepseek-ai/DualPipe",
        "ScheduleDualPipeV",
        "v",
        2,
        False,
        _dualpipev,
    ),
}


def default_chunks(schedule: str) -> int:
    """Model chunks per rank unless asked otherwise.

    >>> default_chunks("1f1b"), default_chunks("zbv")
    (1, 2)
    """
    return _schedule_named(schedule).chunks


def stages_of(schedule: str, num_ranks: int, chunks: int, rank: int) -> tuple[int, ...]:
    """The stages a rank holds, by chunk.

    >>> stages_of("interleaved_1f1b", num_ranks=4, chunks=2, rank=1)
    (1, 5)
    >>> stages_of("zbv", num_ranks=4, chunks=2, rank=1)
    (1, 6)
    """
    if _schedule_named(schedule).placement == "v":
        return _v_stages(rank, num_ranks)
    return _loop_stages(rank, num_ranks, chunks)


def objection(schedule: str, num_ranks: int, num_microbatches: int, chunks: int) -> str | None:
    """Why torch would refuse the schedule at these sizes, in a sentence with what would do; None if it would not.

    >>> print(objection("dualpipev", num_ranks=4, num_microbatches=6, chunks=2))
    dualpipev needs as many microbatches as stages: at least 8 for 4 ranks of 2 chunks, not 6.
    """
    traits = _schedule_named(schedule)
    for value, name in [(num_ranks, "rank"), (num_microbatches, "microbatch"), (chunks, "chunk per rank")]:
        if value < 1:
            return f"{schedule} needs at least 1 {name}, not {value}."
    if not traits.any_chunks and chunks != traits.chunks:
        return f"{schedule} needs exactly {plural(traits.chunks, 'chunk')} per rank, not {chunks}."
    if schedule == "1f1b" and num_microbatches < num_ranks:
        needs = f"at least {num_ranks}, not {num_microbatches}"
        return f"1f1b needs as many microbatches as stages: {needs}; gpipe takes fewer."
    if schedule == "dualpipev" and num_microbatches < 2 * num_ranks:
        needs = f"at least {2 * num_ranks} for {num_ranks} ranks of 2 chunks, not {num_microbatches}"
        return f"dualpipev needs as many microbatches as stages: {needs}."
    rounds = max(1, num_microbatches // num_ranks)
    if schedule.startswith("interleaved") and num_microbatches % rounds:
        lower, upper = rounds * num_ranks, (rounds + 1) * num_ranks
        return (
            f"{schedule} on {num_ranks} ranks runs {num_microbatches} microbatches in {rounds} rounds, but "
            f"{num_microbatches} is not a multiple of {rounds}; {lower} and {upper} microbatches are accepted."
        )
    return None


def order(schedule: str, num_ranks: int, num_microbatches: int, chunks: int) -> list[list[Action]]:
    """What each rank computes, in order.

    Raises ValueError with the :func:`objection`, if there is one.

    >>> [" ".join(map(str, actions)) for actions in order("1f1b", num_ranks=2, num_microbatches=3, chunks=1)]
    ['0F0 0F1 0B0 0F2 0B1 0B2', '1F0 1B0 1F1 1B1 1F2 1B2']
    """
    if refused := objection(schedule, num_ranks, num_microbatches, chunks):
        raise ValueError(refused)
    return [
        _schedule_named(schedule).rank_order(rank, num_ranks, num_microbatches, chunks) for rank in range(num_ranks)
    ]


@cache  # a plan asks for every case
def splits_backward(schedule: str) -> bool:
    """Whether gradients of weights are computed apart from those of inputs.

    >>> splits_backward("zbv"), splits_backward("1f1b")
    (True, False)
    """
    orders = order(schedule, 2, 4, default_chunks(schedule))
    return any(action.kind == "I" for actions in orders for action in actions)


def _schedule_named(schedule: str) -> Schedule:
    if schedule not in SCHEDULES:
        raise ValueError(f"'{schedule}' is no pipeline schedule; there are {', '.join(SCHEDULES)}.")
    return SCHEDULES[schedule]


# --- Time -------------------------------------------------------------------------------------------------------------

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


# --- Memory and messages ----------------------------------------------------------------------------------------------


def peak_held(actions: Iterable[Action], size_of_stage: Callable[[int], float]) -> float:
    """The most activations one rank holds at a time.

    A stage's activations of a microbatch are held from its F to its B, or to its W where backward is split.

    Parameters
    ----------
    size_of_stage
        Activations of one microbatch on a stage; in bytes, or 1 to count them.

    >>> peak_held(order("1f1b", 4, 12, 1)[0], lambda stage: 2.5)
    10.0
    """
    held = peak = 0.0
    for kind, stage, _ in actions:
        if kind == "F":
            held += size_of_stage(stage)
            peak = max(peak, held)
        elif kind != "I":
            held -= size_of_stage(stage)
    return peak


def in_flight(actions: Iterable[Action]) -> dict[int, int]:
    """The most microbatches one rank holds activations of, by stage; the stages need not peak together.

    >>> in_flight(order("interleaved_1f1b", 4, 8, 2)[0])
    {0: 8, 4: 4}
    """
    now: Counter[int] = Counter()
    peaks: dict[int, int] = {}
    for kind, stage, _ in actions:
        now[stage] += {"F": 1, "I": 0, "B": -1, "W": -1}[kind]
        peaks[stage] = max(peaks.get(stage, 0), now[stage])
    return dict(sorted(peaks.items()))


class Full(NamedTuple):
    """A moment at which a rank may hold most: behind an F, or in another action, whose microbatch is still held.

    Attributes
    ----------
    in_flight, begun
        By stage: how many microbatches it holds activations of, and how many have been through its forward.
    graded, over
        The stages that have gradients by then, of microbatches before; and of those the ones that will get no more.
    behind
        The stages of which the last thing was a backward, not a forward.
    """

    kind: Kind
    stage: int
    in_flight: Mapping[int, int]
    begun: Mapping[int, int]
    graded: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()

    def holds(self, other: Full) -> bool:
        """Whether it has as many of each stage, or more, and all gradients."""
        return (
            other.graded <= self.graded
            and self.over <= other.over
            and all(
                number <= self.in_flight.get(stage, 0) and other.begun[stage] <= self.begun.get(stage, 0)
                for stage, number in other.in_flight.items()
            )
        )


def backwards(actions: Sequence[Action]) -> dict[int, tuple[int, int]]:
    """Stage -> the places of the first and of the last action of its backwards."""
    places = [(at, stage) for at, (kind, stage, _) in enumerate(actions) if kind != "F"]
    begin, end = {stage: at for at, stage in reversed(places)}, {stage: at for at, stage in places}
    return {stage: (begin[stage], at) for stage, at in end.items()}


def behind_forwards(actions: Iterable[Action]) -> dict[int, int]:
    """Stage -> how many of its actions are its first or follow a forward of it, and not a backward.

    >>> behind_forwards(order("1f1b", 2, 9, 1)[0])
    {0: 10}
    """
    before: dict[int, Kind] = {}
    number: Counter[int] = Counter()
    for kind, stage, _ in actions:
        number[stage] += before.get(stage, "F") == "F"
        before[stage] = kind
    return dict(number)


def fullest_moments(actions: Sequence[Action]) -> tuple[Full, ...]:
    """Every moment at which a rank may hold most, whatever its stages hold of a microbatch.

    Of those with the same in flight it is the last: most have been through forward by then.

    >>> [(at.kind, at.in_flight) for at in fullest_moments(order("1f1b", 2, 9, 1)[0])]
    [('F', {0: 2}), ('B', {0: 2})]
    """
    moments = {
        (at.kind, at.stage, at.graded, at.over, at.behind, *at.in_flight.items()): at for at in _moments(actions)
    }
    return tuple(_fullest(moments.values()))


def last_moments(actions: Sequence[Action]) -> tuple[Full, ...]:
    """The moment of the last backward of each stage, its microbatch still held."""
    return tuple({at.stage: at for at in _moments(actions) if at.kind != "F"}.values())


def _moments(actions: Sequence[Action]) -> Iterator[Full]:
    """One for each action: behind an F, or in another."""
    now: Counter[int] = Counter()
    begun: Counter[int] = Counter()
    graded, over, behind = frozenset[int](), frozenset[int](), frozenset[int]()
    ends = {last for _, last in backwards(actions).values()}
    for at, (kind, stage, _) in enumerate(actions):
        if kind == "F":
            now[stage] += 1
            begun[stage] += 1
        yield Full(kind, stage, dict(now), dict(begun), graded, over, behind)
        behind = behind - {stage} if kind == "F" else behind | {stage}
        if kind in "BW":
            now[stage] -= 1
            graded |= {stage}
        if at in ends:
            over |= {stage}


def _fullest(moments: Iterable[Full]) -> list[Full]:
    """Those beside which no other of the same kind and stage holds as much of every stage."""
    fullest: defaultdict[tuple[Kind, int], list[Full]] = defaultdict(list)
    for moment in sorted(
        moments, key=lambda at: (-sum(at.in_flight.values()) - sum(at.begun.values()), -len(at.graded))
    ):
        others = fullest[moment.kind, moment.stage]
        if not any(other.holds(moment) for other in others):
            others.append(moment)
    return [moment for others in fullest.values() for moment in others]


@dataclass(frozen=True)
class RankOrder:
    """What one rank computes, in order, and what follows from it: worked out once, for all jobs of the same schedule.

    Of many microbatches nothing is written down before :attr:`actions` is asked for. Behind the warm-up a schedule
    repeats itself, so that each number of it lies on a line with those of two short orders.
    """

    schedule: str
    num_ranks: int
    num_microbatches: int
    chunks: int
    rank: int

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        sizes = self.num_ranks, self.num_microbatches, self.chunks
        return tuple(_schedule_named(self.schedule).rank_order(self.rank, *sizes))

    @cached_property
    def in_flight(self) -> Mapping[int, int]:
        """See :func:`in_flight`."""
        return self._figure(in_flight, lambda short: short.in_flight)

    @cached_property
    def backwards(self) -> Mapping[int, tuple[int, int]]:
        """See :func:`backwards`."""
        return self._figure(backwards, lambda short: short.backwards)

    @cached_property
    def behind_forwards(self) -> Mapping[int, int]:
        """See :func:`behind_forwards`."""
        return self._figure(behind_forwards, lambda short: short.behind_forwards)

    @cached_property
    def full(self) -> Sequence[Full]:
        """See :func:`fullest_moments`."""
        return self._figure(fullest_moments, lambda short: short.full)

    @cached_property
    def ends(self) -> Sequence[Full]:
        """See :func:`last_moments`."""
        return self._figure(last_moments, lambda short: short.ends)

    def _figure(self, count: Callable[[Sequence[Action]], _T], of: Callable[[RankOrder], _T]) -> _T:
        if self._short is None:
            return count(self.actions)
        first, second, rounds = self._short
        return cast(_T, _on_a_line(of(first), of(second), rounds))

    @cached_property
    def _short(self) -> tuple[RankOrder, RankOrder, int] | None:
        """Two orders that differ in one round, and how many rounds longer than the first this one is; None if short."""
        is_in_rounds = self.schedule.startswith("interleaved")
        round_size = _round_size(self.num_ranks, self.num_microbatches) if is_in_rounds else 1
        rounds = (self.num_microbatches - _STEADY * self.num_ranks) // round_size
        if rounds <= 1:
            return None
        least = self.num_microbatches - rounds * round_size
        first, second = (
            rank_order(self.schedule, self.num_ranks, number, self.chunks, self.rank)
            for number in (least, least + round_size)
        )
        return first, second, rounds


_STEADY = 3
"""Times as many microbatches as ranks with which each schedule has come to repeat itself."""


@cache
def rank_order(schedule: str, num_ranks: int, num_microbatches: int, chunks: int, rank: int) -> RankOrder:
    """That of one rank.

    Raises ValueError with the :func:`objection`, if there is one.
    """
    if refused := objection(schedule, num_ranks, num_microbatches, chunks):
        raise ValueError(refused)
    return RankOrder(schedule, num_ranks, num_microbatches, chunks, rank)


def _on_a_line(first: Any, second: Any, steps: int) -> Any:
    """Each number within as many steps from the first as the second is one step from it.

    >>> _on_a_line({0: (5, 7)}, {0: (5, 8)}, 10)
    {0: (5, 17)}
    """
    if isinstance(first, int):
        return first + steps * (second - first)
    if isinstance(first, Mapping):
        return {key: _on_a_line(value, second[key], steps) for key, value in first.items()}
    if isinstance(first, Full):
        return Full(*_on_a_line(tuple(first), tuple(second), steps))
    if isinstance(first, tuple):
        return tuple(_on_a_line(*pair, steps) for pair in zip(first, second, strict=True))
    return first


class Messages(NamedTuple):
    """How many tensors of one microbatch a rank passes on per step."""

    activations_sent: int
    activations_received: int
    gradients_sent: int
    gradients_received: int


@cache  # a plan asks again for every rank
def messages(schedule: str, num_ranks: int, num_microbatches: int, chunks: int) -> tuple[Messages, ...]:
    """Messages of each rank in a step: activations go to the next stage and gradients to the one before.

    Two stages on one rank, as at the turn of a V, need none.

    >>> messages("1f1b", num_ranks=2, num_microbatches=3, chunks=1)[0]
    Messages(activations_sent=3, activations_received=0, gradients_sent=0, gradients_received=3)
    """
    stages = [stages_of(schedule, num_ranks, chunks, rank) for rank in range(num_ranks)]
    rank_of = {stage: rank for rank, held in enumerate(stages) for stage in held}

    def count(rank: int, step: int) -> int:
        return num_microbatches * sum(rank_of.get(stage + step, rank) != rank for stage in stages[rank])

    between = ((count(rank, 1), count(rank, -1)) for rank in range(num_ranks))
    return tuple(Messages(after, before, before, after) for after, before in between)
