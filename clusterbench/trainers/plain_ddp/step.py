"""The training step of PyTorch's documentation: DistributedDataParallel, AdamW, ``clip_grad_norm_``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from clusterbench.engine.grid import Grid
from clusterbench.engine.rig import Rig
from clusterbench.job import TrainingJob
from clusterbench.model.assembly import COMPUTE_DTYPES, adamw, master_dtype
from clusterbench.model.decoder import Decoder, loss_of, total_of
from clusterbench.model.noise import fill_weight
from clusterbench.training.built_step import ObservedStep, WeightPart
from clusterbench.training.data import micro_batches


class PlainDDPStep:
    """The step of one rank, a :class:`~clusterbench.training.built_step.BuiltStep`."""

    leaves_gradients: ClassVar[bool] = True

    def __init__(self, job: TrainingJob, grid: Grid | None, device: torch.device) -> None:
        self.job, self.grid, self.num_steps = job, grid, 0
        self.last_loss: Tensor | None = None
        self.last_norm: Tensor | None = None
        positions = torch.arange(job.seq_len, device=device)
        with torch.device(device):
            decoder = Decoder(job.shape, COMPUTE_DTYPES[job.dtype], positions, job.held[0]).to(master_dtype(job))
        for name, weight in decoder.named_parameters():
            fill_weight(weight.detach(), job.seed, name, (0,) * weight.dim(), weight.shape)
        self.modules = [decoder]
        self.model = DistributedDataParallel(decoder, process_group=grid.group("dp")) if grid else decoder
        self.optimizers = [adamw([*decoder.parameters()], job)]
        self.micro_batches = micro_batches(job, grid.rank("dp") if grid else 0, positions)

    def __call__(self) -> Tensor:
        self.last_loss = self._backward()
        self.last_norm = self._update()
        return self.last_loss

    def observed(self) -> ObservedStep:
        loss = self.global_loss(self._backward())
        gradients = {name: weight.grad.clone() for name, weight in self._weights() if weight.grad is not None}
        return ObservedStep(loss, self._update(), gradients)

    def parts(self) -> dict[str, WeightPart]:
        return {
            name: WeightPart(weight.detach(), tuple(slice(0, size) for size in weight.shape))
            for name, weight in self._weights()
        }

    def global_loss(self, loss: Tensor) -> Tensor:
        loss = loss.clone()
        if self.grid is not None:
            dist.all_reduce(loss, group=self.grid.group("dp"))
        return loss / self.job.layout.dp

    def gradient_norm(self) -> Tensor:
        gradients = [weight.grad for _, weight in self._weights() if weight.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def copies(self) -> dict[str, WeightPart]:
        return {}

    def own_passes(self, rig: Rig) -> dict[str, Callable[[], Any]]:
        return {}

    def _backward(self) -> Tensor:
        self.optimizers[0].zero_grad()
        losses = []
        for index, (tokens, labels) in enumerate(self.micro_batches, start=1):
            last = index == len(self.micro_batches)
            with nullcontext() if last or self.model is self.modules[0] else self.model.no_sync():  # type: ignore[operator]
                loss = loss_of(self.model(tokens), labels) / len(self.micro_batches)
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return total_of(losses)

    def _update(self) -> Tensor | None:
        norm = None
        if self.job.max_grad_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(self.modules[0].parameters(), self.job.max_grad_norm)
        self.optimizers[0].step()
        self.num_steps += 1
        return norm

    def _weights(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [*self.modules[0].named_parameters()]
