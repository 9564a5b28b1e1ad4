"""Our step on a pipeline of two stages against the same written by hand with ``Schedule1F1B``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from tests.bench import Result
from tests.by_hand import ADAMW, Model, copy_into, loss_of, race

ROUNDS = 110  # some four minutes on two cores


def measure() -> list[Result]:
    return [race("pp2_by_hand", "pp2", StepByHand, ROUNDS, micro_batch_size=2)]


class StepByHand:
    """One optimizer step of this rank's half of the layers, all micro-batches through one schedule."""

    def __init__(self, weights: Mapping[str, Tensor], shape, micro_batches) -> None:
        rank, ranks, number = dist.get_rank(), dist.get_world_size(), len(micro_batches)
        self.first, self.last = rank == 0, rank == ranks - 1
        model, each = Model(shape, micro_batches[0][0].shape[1]), shape.num_layers // ranks
        for layer in {*range(shape.num_layers)} - {*range(rank * each, (rank + 1) * each)}:
            del model.layers[str(layer)]
        if not self.first:
            model.embedding = None
        if not self.last:
            model.norm = model.head = None
        copy_into(model, weights)
        stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, number, lambda *output: loss_of(*output) / number, scale_grads=False)
        self.tokens, self.labels = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
        self.weights = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.weights, **ADAMW)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        losses: list[Tensor] = []
        tokens, labels = [self.tokens] if self.first else [], self.labels if self.last else None
        self.schedule.step(*tokens, target=labels, losses=losses, return_outputs=False)
        square = get_total_norm([weight.grad for weight in self.weights]) ** 2
        dist.all_reduce(square)
        clip_grads_with_norm_(self.weights, 1.0, square.sqrt())
        self.optimizer.step()
        return torch.stack([loss.detach() for loss in losses]).sum() if losses else torch.zeros(())
