"""The actions of a rank, and their order in each schedule, as ``torch.distributed.pipelining`` 2.13 has it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "I", "W"]


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


def naive(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    return [Action(kind, rank, microbatch) for microbatch in range(num_microbatches) for kind in _FORWARD_BACKWARD]


def gpipe(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    return [Action(kind, rank, microbatch) for kind in _FORWARD_BACKWARD for microbatch in range(num_microbatches)]


def one_forward_one_backward(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    script = _Script([rank])
    ahead = min(num_microbatches, num_ranks - rank - 1)
    script.write(*["F0"] * ahead)
    script.write(*["F0", "B0"] * (num_microbatches - ahead))
    script.write(*["B0"] * ahead)
    return script.actions


def looped_bfs(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    stages = loop_stages(rank, num_ranks, chunks)
    forward = [Action("F", stage, microbatch) for stage in stages for microbatch in range(num_microbatches)]
    # Backward mirrors forward: the microbatch that came last through the last stage goes back first.
    return forward + [Action("B", stage, microbatch) for _, stage, microbatch in reversed(forward)]


def interleaved_1f1b(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    forward, backward = _depth_first(rank, num_ranks, num_microbatches, chunks)
    ahead = _warmup(rank, num_ranks, num_microbatches, chunks, per_hop=2)
    actions = forward[:ahead]
    for k, (stage, microbatch) in enumerate(backward):
        actions += forward[ahead + k : ahead + k + 1]
        actions.append(Action("B", stage, microbatch))
    return actions


def interleaved_zero_bubble(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
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
    size = round_size(num_ranks, num_microbatches)
    stages = loop_stages(rank, num_ranks, chunks)
    rounds = [range(first, first + size) for first in range(0, num_microbatches, size)]
    forward = [
        Action("F", stage, microbatch) for microbatches in rounds for stage in stages for microbatch in microbatches
    ]
    backward = [
        (stage, microbatch) for microbatches in rounds for stage in reversed(stages) for microbatch in microbatches
    ]
    return forward, backward


def round_size(num_ranks: int, num_microbatches: int) -> int:
    return num_microbatches // max(1, num_microbatches // num_ranks)


def _warmup(rank: int, num_ranks: int, num_microbatches: int, chunks: int, per_hop: int) -> int:
    ahead = (chunks - 1) * round_size(num_ranks, num_microbatches) + per_hop * (num_ranks - 1 - rank)
    return min(ahead, num_microbatches * chunks)


def zbv(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    # The order is made for a full pipeline. With fewer microbatches, those that do not exist are struck out.
    full = max(2 * num_ranks - 1, num_microbatches)
    behind = num_ranks - rank  # ranks from here to the turn of the V, this one included
    script = _Script(v_stages(rank, num_ranks))

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


def dualpipev(rank: int, num_ranks: int, num_microbatches: int, chunks: int) -> list[Action]:
    # Torch joins each F of the steady state with the B after it into one OVERLAP_F_B, and runs it as F and then B.
    after = num_ranks - rank - 1
    script = _Script(v_stages(rank, num_ranks))

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


def loop_stages(rank: int, num_ranks: int, chunks: int) -> tuple[int, ...]:
    return tuple(range(rank, num_ranks * chunks, num_ranks))


def v_stages(rank: int, num_ranks: int) -> tuple[int, ...]:
    return (rank, 2 * num_ranks - 1 - rank)
