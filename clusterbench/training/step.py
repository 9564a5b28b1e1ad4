"""One optimizer step: micro-batches forward and backward, gradients made whole, clipped, applied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.engine.compat import norm_of_all, scale_all
from clusterbench.engine.grid import Grid
from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.job import TrainingJob
from clusterbench.job.passes import ATTENTION, EXPERTS, TIMELINE, Computed, ExpertLoad
from clusterbench.model.assembly import Assembly
from clusterbench.model.context_attention import watch_attention
from clusterbench.model.decoder import Decoder, total_of
from clusterbench.model.experts import watch_experts
from clusterbench.parallel import NORM_ORDER, SUM_ORDER, Parallelism, active_in, part_of
from clusterbench.training.assemble import assemble
from clusterbench.training.built_step import ObservedStep, WeightPart
from clusterbench.training.data import micro_batches

_CLIP_EPSILON = 1e-6
"""Added to the norm that is divided by, as ``torch.nn.utils.clip_grad_norm_`` does."""


class TrainingStep:
    """The step of one rank, a :class:`~clusterbench.training.built_step.BuiltStep`; its four parts can be called alone.

    Parameters
    ----------
    parallelisms
        All of them, or those active in the job's layout.
    grid
        The ranks of the layout. None for a job on one rank.

    Notes
    -----
    Every step sees the same batch, made in advance, unless whoever calls it puts others in its place. The loss is the
    mean over all tokens of the global batch; micro-batches and ranks have equally many, so it is a mean of means.
    """

    leaves_gradients: ClassVar[bool] = True

    def __init__(
        self, job: TrainingJob, parallelisms: Sequence[Parallelism], grid: Grid | None, device: torch.device
    ) -> None:
        active = active_in(job.layout, parallelisms)
        self.grid = grid
        self.job = part_of(job, active, grid.rank("pp") if grid else 0)
        positions = positions_of(self.job, active, grid.rank("cp") if grid else 0).to(device)
        self.assembly: Assembly = assemble(self.job, active, grid, positions, device)
        self.model, self.weights = self.assembly.model, self.assembly.weights
        self.num_steps = 0
        self.last_loss: Tensor | None = None
        self.last_norm: Tensor | None = None
        self.micro_batches = micro_batches(job, grid.rank("dp") if grid else 0, positions)
        self.graded_elsewhere = [weight for weight in self.weights if weight.is_graded_elsewhere]
        experts = [weight for weight in self.weights if "ep" in weight.split_over]
        dense = [weight for weight in self.weights if "ep" not in weight.split_over]
        self.optimizers = [
            self.assembly.make_optimizer([weight.parameter for weight in weights], axis)
            for weights, axis in ((dense, job.layout.data_axis), (experts, "edp"))
            if weights
        ]

    def __call__(self) -> Tensor:
        """One step.

        Returns
        -------
        The mean loss over this rank's tokens, on the device: reading it would wait for the device. Zero on a pipeline
        stage that has no loss.
        """
        self.last_loss = self.forward_backward()
        self.reduce()
        self.last_norm = self.clip()
        self.update()
        return self.last_loss

    def observed(self) -> ObservedStep:
        """One step as the proof sees it. A collective."""
        loss = self.global_loss(self.forward_backward())
        self.reduce()
        gradients = {weight.name: weight.gradient.clone() for weight in self.weights}
        norm = self.clip()
        self.update()
        return ObservedStep(loss, norm, gradients)

    def parts(self) -> dict[str, WeightPart]:
        """This rank's part of each weight by its name."""
        return {weight.name: WeightPart(weight.value, weight.place) for weight in self.weights}

    def global_loss(self, loss: Tensor) -> Tensor:
        """The mean over the tokens of the global batch, from this rank's. A collective."""
        layout, loss = self.job.layout, loss.clone()
        for axis in (layout.data_axis, "pp"):  # stages without a loss add zero; the same order on every rank
            if layout.degree(axis) > 1:
                self._all_reduce(loss, axis)
        return loss / layout.degree("dp_cp")

    @property
    def modules(self) -> list[Decoder]:
        return self.assembly.decoders

    def copies(self) -> dict[str, WeightPart]:
        return {}

    def own_passes(self, rig: Rig) -> dict[str, Callable[[], Any]]:
        """The pipeline's timeline, attention under cp, the experts' parts."""
        own: dict[str, Callable[[], Any]] = {}
        if self.assembly.stages is not None:
            own |= TIMELINE.taken(lambda: self._timeline(rig))
        if self.job.layout.uses("cp"):
            own |= ATTENTION.taken(lambda: watch_attention(self, rig.device))
        if self.job.shape.has_experts:
            own |= EXPERTS.taken(lambda: self._experts(rig))
        return own

    def _timeline(self, rig: Rig) -> list[Computed]:
        assert self.assembly.stages is not None
        rig.comm.barrier()
        return self.assembly.stages.timeline(self)

    def _experts(self, rig: Rig) -> ExpertLoad:
        rig.comm.barrier()
        load = watch_experts(self, self.assembly.layers(), rig.device)
        self._expect_every_row(torch.tensor(load.rows, device=rig.device))
        return load

    def _expect_every_row(self, rows_of_layers: Tensor) -> None:
        """No row is dropped or counted twice: they are the tokens of one forward, K times. A collective.

        Raises
        ------
        WrongResult
            On every rank that shares the experts.
        """
        job, ranks = self.job, self.job.layout.ep if self.job.layout.spreads_experts else 1
        if ranks > 1:
            self._all_reduce(rows_of_layers, "ep")
        due = ranks * job.residual_tokens * job.shape.experts_per_token
        for rows in rows_of_layers.tolist():
            if rows != due:
                raise WrongResult(
                    f"the rows counted at the experts of a layer of {job.layout} are {rows}, and its ranks send {due}: "
                    f"{ranks} x {job.residual_tokens} tokens x {job.shape.experts_per_token}."
                )

    def forward_backward(self) -> Tensor:
        """Accumulates the gradients of all micro-batches; data parallelism averages them on the way."""
        self.assembly.round_weights()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=not self.assembly.keep_gradients)
        for weight in self.graded_elsewhere:
            weight.let_go(self.assembly.keep_gradients)
        if self.assembly.forward_backward is not None:
            with ExitStack() as stack:
                for context in self.assembly.contexts:
                    stack.enter_context(context())
                return self.assembly.forward_backward(self.micro_batches)
        losses = []
        for index, (tokens, labels) in enumerate(self.micro_batches, start=1):
            with ExitStack() as stack:
                last = index == self.job.gradient_accumulation_steps
                for context in self.assembly.contexts + ([] if last else self.assembly.accumulating):
                    stack.enter_context(context())
                loss = self.loss(self.model(tokens), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
        return total_of(losses)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """What one micro-batch adds to the loss of the step."""
        return self.assembly.loss(output, labels) / self.job.gradient_accumulation_steps

    def reduce(self) -> None:
        """Sums gradients over axes whose ranks each saw a part of the work.

        All in one buffer for each axis, once per step, as Megatron does.
        """
        for axis in SUM_ORDER:
            parts = [weight.gradient for weight in self.weights if axis in weight.sum_over]
            if parts:
                self._sum(parts, axis)
        for weight in self.weights:
            if weight.scale != 1:
                weight.gradient.mul_(weight.scale)

    def _sum(self, parts: Sequence[Tensor], axis: str) -> None:
        # a method of its own, so that the buffer is gone when that of the next axis is made
        flat = torch.cat([part.flatten() for part in parts])
        self._all_reduce(flat, axis)
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
        norm = self.gradient_norm()
        factor = torch.clamp(self.job.max_grad_norm / (norm + _CLIP_EPSILON), max=1.0)
        scale_all([weight.gradient for weight in self.weights], factor)
        return norm

    def gradient_norm(self) -> Tensor:
        """Of the gradients of the whole model as they are now. A collective."""
        by_way: dict[tuple[str, ...], list[Tensor]] = defaultdict(list)
        for weight in self.weights:
            if weight.name != "embedding.weight" or self.job.embeds:  # a tied head's copy is the first stage's to count
                by_way[weight.split_over].append(weight.gradient)
            else:
                by_way[weight.split_over] = by_way[weight.split_over]
        squares = {way: norm_of_all(gradients) ** 2 for way, gradients in by_way.items()}
        for axis in NORM_ORDER:
            ways = [way for way in squares if axis in way]
            if ways:
                # stacked and taken apart again: an index would come from the host, which then waits for the device
                summed = torch.stack([squares[way] for way in ways])
                self._all_reduce(summed, axis)
                squares |= dict(zip(ways, summed.unbind(), strict=True))
        total = torch.stack(list(squares.values())).sum()
        if self.job.layout.uses("pp"):
            self._all_reduce(total, "pp")
        return total.sqrt()

    def update(self) -> None:
        for weight in self.graded_elsewhere:
            weight.hand_over()
        for optimizer in self.optimizers:
            optimizer.step()
        self.num_steps += 1

    def _all_reduce(self, tensor: Tensor, axis: str) -> None:
        assert self.grid is not None
        dist.all_reduce(tensor, group=self.grid.group(axis))


def positions_of(job: TrainingJob, active: Sequence[Parallelism], cp_rank: int) -> Tensor:
    """Of the tokens of each sequence that a rank of cp sees."""
    for parallelism in active:
        parts = parallelism.positions(job, cp_rank)
        if parts is not None:
            return torch.cat([torch.arange(part.start, part.stop) for part in parts])
    return torch.arange(job.seq_len)
