"""What one rank does in a step, as amounts: FLOPs, bytes, operators and messages. No seconds: those need rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FORWARD_AND_BACKWARD = 3.0
"""Forwards that a micro-batch takes: one, and a backward as long as two."""


@dataclass(frozen=True)
class Messages:
    """Collectives of one kind along one axis, one after the other.

    Attributes
    ----------
    op
        As nccl-tests calls it.
    ranks
        Of one group.
    nodes, sharing
        Nodes that a group reaches over, and how many groups use the network of one node at the same time.
    size_bytes
        Of each: the larger of input and output.
    behind_flops, behind_attention
        Of products, and of attention, that the rank computes meanwhile, all of them together.
    is_waited_for
        Whether nothing goes on before each of them is through, so that they form a chain.
    """

    axis: str
    op: str
    ranks: int
    nodes: int
    sharing: int
    size_bytes: float
    count: float = 1
    behind_flops: float = 0.0
    is_waited_for: bool = True
    behind_attention: float = 0.0

    @property
    def partners(self) -> int:
        """Ranks that each of them takes: two of a send and its receive, else all of the group."""
        return min(2, self.ranks) if self.op == "send_recv" else self.ranks


@dataclass(frozen=True)
class StageWork:
    """One micro-batch of a pipeline stage, forward and backward, as one of its ranks has it.

    Attributes
    ----------
    matmul_flops, attention_flops
        Executed, with what backward computes again.
    memory_bytes
        Read and written by operators that are bound by memory.
    operators
        That the host launches.
    host_calls
        Calls in Python of those who wrap operators, such as DTensor, FSDP and recomputation: the host makes them, too.
    messages
        What is sent within the stage.
    parameters
        That the rank holds.
    stages
        How many stages are alike.
    neighbours
        Stages of other ranks that its chunks send to and receive from: 0 without a pipeline, 1 at its ends.
    """

    matmul_flops: float
    attention_flops: float
    memory_bytes: float
    operators: float
    messages: Sequence[Messages]
    parameters: float
    stages: int = 1
    neighbours: int = 0
    host_calls: float = 0.0


@dataclass(frozen=True)
class StepWork:
    """One step of a rank of the busiest stage.

    Attributes
    ----------
    head_dim
        Of attention, whose rate depends on it.
    stages
        Kinds of stages, from the first to the last.
    boundary_bytes
        Of what a stage sends to the next one for each micro-batch.
    pipeline_nodes
        Nodes that one pipeline reaches over.
    bubble
        Idle time as a share of one micro-batch of all stages: 1 for 1F1B, less for interleaved schedules.
    gradients
        What is sent while the last backward of a step is under way.
    overlap, exposed
        The share of that backward behind which they may pass, more than 1 where the next forward hides some, too, and
        the share of them that is never hidden.
    after
        What is sent when it is over.
    optimizer_bytes
        Read and written by the update.
    is_in_turn
        Whether the host computes itself what it launches, one after the other, as on a CPU.
    """

    head_dim: int
    num_micro_batches: int
    stages: Sequence[StageWork]
    boundary_bytes: float
    pipeline_nodes: int
    gradients: Sequence[Messages]
    after: Sequence[Messages]
    optimizer_bytes: float
    overlap: float = 0.75
    exposed: float = 0.10
    bubble: float = 1.0
    is_in_turn: bool = False
