"""Which ranks of a case do the same work, by what each of them counted in its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from clusterbench.job.passes import AT_REST, EXECUTED, MEMORY, STATES, TRAFFIC
from clusterbench.types import Case, Observation

ALIKE = 0.05
"""Fraction by which the bytes of ranks with the same work may differ: ZeRO 1 hands out whole weights, and updating them
is a small part of a step."""

Group = tuple[int, ...]


def ranks_of_same_work(case: Case, observation: Observation) -> list[Group]:
    """The ranks of a case in groups within which all do the same work; a rank with its own stands alone.

    Ranks that share a training step do the same where they called the same operators that multiply matrices as often
    with as many FLOPs (EXECUTED), ran the same collectives along the same axes with as many bytes (TRAFFIC), and hold
    parameters, gradients and optimizer states of as many bytes, but for :data:`ALIKE`. So stages of a pipeline are
    told apart (the first looks up embeddings and has no one to receive from, the last has the head), ranks that attend
    to more tokens, and experts with more rows; nothing of this is taken from the layout. Without those counts it is not
    known, and each rank stands alone. In a case without a layout all ranks do the same.
    """
    ranks = range(len(observation.seconds))
    if case.layout is None:
        return [tuple(ranks)]
    executed, traffic = EXECUTED.readable(observation), TRAFFIC.readable(observation)
    memory = MEMORY.readable(observation)
    if not (executed and traffic and memory):
        return [(rank,) for rank in ranks]
    same_counts: dict[object, list[int]] = defaultdict(list)
    for rank in ranks:
        flops = tuple((called.operator, called.during, called.count, called.flops) for called in executed[rank])
        bytes_sent = tuple((moved.axis, moved.op, moved.count, moved.size_bytes) for moved in traffic[rank])
        same_counts[flops, bytes_sent].append(rank)
    return sorted(group for together in same_counts.values() for group in _of_same_size(together, memory))


def _of_same_size(ranks: Sequence[int], memory: Sequence[Mapping[str, int]]) -> list[Group]:
    """Ranks whose states are as large as those of the first of their group."""
    groups: list[list[int]] = []
    for rank in ranks:
        home = next((group for group in groups if _as_large(memory[group[0]], memory[rank])), None)
        if home is None:
            groups.append([rank])
        else:
            home.append(rank)
    return [tuple(group) for group in groups]


def _as_large(rank: Mapping[str, int], peer: Mapping[str, int]) -> bool:
    sizes = ((rank.get(state + AT_REST, 0), peer.get(state + AT_REST, 0)) for state in STATES)
    return all(abs(own - other) <= ALIKE * max(own, other) for own, other in sizes)
