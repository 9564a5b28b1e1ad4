"""Our step with sharded weights (ZeRO 3) on two ranks against the same written by hand with ``fully_shard``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

from tests.bench import Result
from tests.by_hand import ADAMW, Model, copy_into, loss_of, race

ROUNDS = 80  # some four minutes on two cores


def measure() -> list[Result]:
    return [race("fsdp2_by_hand", "dp2+zero3", StepByHand, ROUNDS, global_batch_size=16)]


class StepByHand:
    """One optimizer step; gradients are reduced in every micro-batch, so that they are never all whole."""

    def __init__(self, weights: Mapping[str, Tensor], shape, micro_batches) -> None:
        self.micro_batches, self.model = micro_batches, Model(shape, micro_batches[0][0].shape[1])
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in self.model.layers.values():
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        copy_into(self.model, weights)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for tokens, labels in self.micro_batches:
            loss = loss_of(self.model(tokens), labels) / len(self.micro_batches)
            loss.backward()
            total += loss.detach()
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return total
