"""Our tensor-parallel step with sequence parallelism on two ranks against the same with ``parallelize_module``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.utils import clip_grad_norm_

from tests.bench import Result
from tests.by_hand import ADAMW, Model, copy_into, loss_of, race

ROUNDS = 90  # some four minutes on two cores


def measure() -> list[Result]:
    return [race("tp2_sp_by_hand", "tp2+sp", StepByHand, ROUNDS)]


class StepByHand:
    """One optimizer step on weights that are all DTensors; the norms' gradients are parts until they are used."""

    def __init__(self, weights: Mapping[str, Tensor], shape, micro_batches) -> None:
        self.micro_batches, self.model = micro_batches, Model(shape, micro_batches[0][0].shape[1])
        cut, whole, out = Shard(1), Replicate(), RowwiseParallel(output_layouts=Shard(1))
        plan = {
            "embedding": RowwiseParallel(input_layouts=whole, output_layouts=cut),
            "layers.*.attention": PrepareModuleInput(
                input_layouts=(cut, None, None), desired_input_layouts=(whole, None, None)
            ),
            "layers.*.feed_forward": PrepareModuleInput(input_layouts=(cut,), desired_input_layouts=(whole,)),
            **{f"layers.*.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
            **{f"layers.*.feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")},
            **{f"layers.*.{name}": out for name in ("attention.output", "feed_forward.down")},
            **{name: SequenceParallel() for name in ("layers.*.attention_norm", "layers.*.feed_forward_norm", "norm")},
            "head": ColwiseParallel(input_layouts=cut, output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(self.model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
        copy_into(self.model, weights)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for tokens, labels in self.micro_batches:
            with loss_parallel():
                loss = loss_of(self.model(tokens), labels) / len(self.micro_batches)
                loss.backward()
            total += loss.detach().to_local()
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return total
