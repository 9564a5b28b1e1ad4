"""One optimizer step: micro-batches forward and backward, gradients made whole, clipped, applied."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from clusterbench.parallel import Parallelism, active_in
from clusterbench.training.assembly import Assembly, assemble
from clusterbench.training.data import micro_batches
from clusterbench.training.job import BETAS, LEARNING_RATE, WEIGHT_DECAY, TrainingJob
from clusterbench.training.model import loss_of


class TrainingStep:
    """The step of one rank. Call it, or call its four parts in order.

    Parameters
    ----------
    parallelisms
        All of them, or those active in the job's layout.
    mesh
        With axes pp, dp, cp, tp. None for a job on one rank.

    Notes
    -----
    Every step sees the same batch, made in advance: feeding data is not what is measured. The loss is the mean over all
    tokens of the global batch; micro-batches and ranks have equally many, so it is a mean of means.
    """

    def __init__(
        self, job: TrainingJob, parallelisms: Sequence[Parallelism], mesh: DeviceMesh | None, device: torch.device
    ) -> None:
        self.job, self.mesh = job, mesh
        self.assembly: Assembly = assemble(job, active_in(job.layout, parallelisms), mesh, device)
        self.model, self.weights = self.assembly.model, self.assembly.weights
        self.micro_batches = micro_batches(job, mesh.get_local_rank("dp") if mesh else 0, device)
        # fused: one kernel for all weights and no temporaries, on CPU as on CUDA
        self.optimizer = torch.optim.AdamW(
            [weight.parameter for weight in self.weights],
            lr=LEARNING_RATE,
            betas=BETAS,
            weight_decay=WEIGHT_DECAY,
            fused=True,
        )

    def __call__(self) -> Tensor:
        """One step.

        Returns
        -------
        The mean loss over this rank's tokens, on the device: reading it would wait for the device.
        """
        loss = self.forward_backward()
        self.reduce()
        self.clip()
        self.update()
        return loss

    def forward_backward(self) -> Tensor:
        """Accumulates the gradients of all micro-batches; data parallelism averages them on the way."""
        self.optimizer.zero_grad(set_to_none=not self.assembly.keep_gradients)
        losses = []
        for index, (tokens, labels) in enumerate(self.micro_batches, start=1):
            with ExitStack() as stack:
                last = index == self.job.gradient_accumulation_steps
                for context in self.assembly.contexts + ([] if last else self.assembly.accumulating):
                    stack.enter_context(context())
                loss = loss_of(self.model(tokens), labels) / self.job.gradient_accumulation_steps
                loss.backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
        total = torch.stack([loss.to_local() if isinstance(loss, DTensor) else loss for loss in losses])
        return total.sum()

    def reduce(self) -> None:
        """Sums over an axis the gradients of weights that are whole on its ranks but saw a part of the work on each.

        All in one buffer, once per step, as Megatron does.
        """
        parts = [weight.gradient for weight in self.weights if weight.partial_over]
        if parts:
            flat = torch.cat([part.flatten() for part in parts])
            self._all_reduce(flat, "tp")
            for part, summed in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
                part.copy_(summed.view_as(part))

    def clip(self) -> Tensor | None:
        """Scales all gradients so that their norm over the whole model is at most ``max_grad_norm``.

        Returns
        -------
        The norm before, on the device.
        """
        if self.job.max_grad_norm is None:
            return None
        whole = [weight.gradient for weight in self.weights if not weight.split_over]
        split = [weight.gradient for weight in self.weights if weight.split_over]
        square = torch.nn.utils.get_total_norm(split) ** 2
        if split:
            self._all_reduce(square, "tp")
        norm = (square + torch.nn.utils.get_total_norm(whole) ** 2).sqrt()
        parameters = [weight.parameter for weight in self.weights]
        torch.nn.utils.clip_grads_with_norm_(parameters, self.job.max_grad_norm, norm)
        return norm

    def update(self) -> None:
        self.optimizer.step()

    def _all_reduce(self, tensor: Tensor, axis: str) -> None:
        assert self.mesh is not None
        dist.all_reduce(tensor, group=self.mesh.get_group(axis))
