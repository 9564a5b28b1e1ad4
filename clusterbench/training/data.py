"""Synthetic tokens: a function of seed and global position, so that every rank computes its own share of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clusterbench.job import TrainingJob
from clusterbench.model.noise import noise


def tokens(job: TrainingJob, sequences: Tensor, positions: Tensor) -> Tensor:
    """Tokens at the given sequence indices and positions, shape (sequences, positions)."""
    return noise(job.seed, "tokens", sequences, positions) % job.shape.vocab_size


def micro_batches(job: TrainingJob, dp_rank: int, positions: Tensor, step: int = 0) -> list[tuple[Tensor, Tensor]]:
    """This rank's share of one step: inputs and the tokens after them, each (micro batch, positions).

    Steps count from 0 and have other sequences each. Those that read nothing are all fed the first one's.
    """
    return [
        (tokens(job, sequences, positions), tokens(job, sequences, positions + 1))
        for sequences in share_of(job, dp_rank, step).to(positions.device)
    ]


def share_of(job: TrainingJob, dp_rank: int, step: int = 0) -> Tensor:
    """The sequences that a rank of dp takes in a step, shape (micro-batches, micro batch).

    Forward ``i`` of all ranks together takes sequences ``i * dp * micro_batch_size`` onwards, rank by rank.
    """
    forwards = torch.arange(job.gradient_accumulation_steps)
    first = (forwards * job.layout.dp + dp_rank) * job.micro_batch_size
    return step * job.global_batch_size + first[:, None] + torch.arange(job.micro_batch_size)


def of_own_vocabulary(
    batches: Sequence[tuple[Tensor, Tensor]], job: TrainingJob, tp_rank: int
) -> list[tuple[Tensor, Tensor]]:
    """The same with every token one whose embedding this rank of tp holds.

    Of the others the embeddings are zeros until ranks sum them. A rank that nobody answers would keep the zeros, and
    norms make their gradients grow from layer to layer beyond any number.
    """
    part = job.shape.vocab_size // job.layout.tp
    return [(inputs % part + tp_rank * part, labels % part + tp_rank * part) for inputs, labels in batches]
