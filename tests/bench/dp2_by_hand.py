"""Our data-parallel step on two ranks against the same written by hand with ``DistributedDataParallel``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from tests.bench import Result
from tests.by_hand import ADAMW, Model, copy_into, loss_of, race

ROUNDS = 100  # some four minutes on two cores


def measure() -> list[Result]:
    return [race("dp2_by_hand", "dp2", StepByHand, ROUNDS, global_batch_size=16)]


class StepByHand:
    """One optimizer step, whose gradients are averaged while the last micro-batch goes backward."""

    def __init__(self, weights: Mapping[str, Tensor], shape, micro_batches) -> None:
        self.micro_batches, model = micro_batches, Model(shape, micro_batches[0][0].shape[1])
        copy_into(model, weights)
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=False)  # they are views of DDP's buckets
        total = torch.zeros(())
        for number, (tokens, labels) in enumerate(self.micro_batches, start=1):
            with nullcontext() if number == len(self.micro_batches) else self.model.no_sync():
                loss = loss_of(self.model(tokens), labels) / len(self.micro_batches)
                loss.backward()
            total += loss.detach()
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return total
