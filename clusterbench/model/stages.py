"""The pipeline stages of one rank, driven by torch's schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from clusterbench.engine.clock import clock_for
from clusterbench.engine.compat import is_profiling, let_go_of_outputs, skip_warm_up
from clusterbench.engine.fake_group import sends_nothing
from clusterbench.engine.trace import in_trace
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.job import TrainingJob
from clusterbench.job.passes import Computed
from clusterbench.model.decoder import Decoder, loss_of, total_of


class Stages:
    """Runs all micro-batches of a step through the pipeline.

    ``naive`` is GPipe with one micro-batch, as often as there are micro-batches.

    Parameters
    ----------
    decoders
        One for each stage this rank has.
    group
        The ranks of the pipeline, in the order of their stages.
    """

    def __init__(
        self,
        job: TrainingJob,
        decoders: Sequence[Decoder],
        schedule: str,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        properties = SCHEDULES[schedule]
        self.job, self.device = job, device
        num_stages = job.layout.pp * len(job.held)
        self.stages = [
            PipelineStage(
                decoder,
                decoder.chunk.stage,
                num_stages,
                device,
                input_args=_tokens(job) if decoder.chunk.first else _between(job, decoder.dtype),
                output_args=_logits(job, decoder.dtype) if decoder.chunk.last else _between(job, decoder.dtype),
                group=group,
            )
            for decoder in decoders
        ]
        kind: Any = getattr(pipelining, properties.torch_class or "ScheduleGPipe")
        self.at_once = job.gradient_accumulation_steps if properties.torch_class else 1
        several = properties.torch_class is not None and issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
        self.schedule = kind(
            self.stages if several else self.stages[0],
            n_microbatches=self.at_once,
            loss_fn=lambda logits, labels: loss_of(logits, labels) / job.gradient_accumulation_steps,
            scale_grads=False,
        )
        if sends_nothing(group):
            skip_warm_up(self.schedule)
            for stage in self.stages:
                let_go_of_outputs(stage)

    def forward_backward(self, micro_batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Runs a step's forwards and backwards; returns the sum of the losses, zero on a rank that has none."""
        with _watched(self.stages, in_trace) if is_profiling() else nullcontext():
            return self._forward_backward(micro_batches)

    def _forward_backward(self, micro_batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        losses: list[Tensor] = []
        for first in range(0, len(micro_batches), self.at_once):
            batch = micro_batches[first : first + self.at_once]
            tokens = [torch.cat([tokens for tokens, _ in batch])] if self.job.embeds else []
            target = torch.cat([labels for _, labels in batch]) if self.job.has_head else None
            of_these: list[Tensor] = []
            # logits that are returned would be kept until the step is over
            self.schedule.step(*tokens, target=target, losses=of_these, return_outputs=False)
            losses += [loss.detach() for loss in of_these]  # whose graphs would hold what was received
        if not self.job.has_head:
            return torch.zeros((), device=self.device, dtype=torch.float64 if self.job.dtype == "float64" else None)
        return total_of(losses)

    def timeline(self, step: Callable[[], object]) -> list[Computed]:
        """This rank's actions of one step with their times. Waiting for messages is between the actions."""
        clock = clock_for(self.device)
        actions: list[tuple[str, int, int]] = []
        marks = [clock.mark()]

        @contextmanager
        def marked(*action: Any) -> Iterator[None]:
            actions.append(action)
            marks.append(clock.mark())
            try:
                yield
            finally:
                marks.append(clock.mark())

        with _watched(self.stages, marked):
            step()
        clock.settle()
        ends, at = [], 0.0
        for seconds in clock.seconds(marks):
            at += seconds
            ends.append(at)
        return [Computed(*action, ends[2 * n], ends[2 * n + 1]) for n, action in enumerate(actions)]


def _tokens(job: TrainingJob) -> Tensor:
    """One micro-batch as the first stage gets it: a tensor without data."""
    return torch.empty(job.micro_batch_size, job.local_tokens // job.micro_batch_size, dtype=torch.int64, device="meta")


def _between(job: TrainingJob, dtype: torch.dtype) -> Tensor:
    """What a stage hands the next of one micro-batch, without data.

    torch takes shapes from here and asks no stage for them, which would run each once more forward and backward.
    """
    size = job.micro_batch_size, job.residual_tokens // job.micro_batch_size, job.shape.hidden_size
    return torch.empty(size, dtype=dtype, device="meta", requires_grad=True)


def _logits(job: TrainingJob, dtype: torch.dtype) -> Tensor:
    """What the last stage makes of one micro-batch, without data: torch 2.11 looks at it though none is sent."""
    size = job.micro_batch_size, job.local_tokens // job.micro_batch_size, job.shape.vocab_size
    return torch.empty(size, dtype=dtype, device="meta", requires_grad=True)


@contextmanager
def _watched(
    stages: Sequence[PipelineStage], around: Callable[[str, int, int], AbstractContextManager[object]]
) -> Iterator[None]:
    """Enters ``around`` kind, stage and micro-batch of everything the stages compute."""

    def watched(stage: Any, name: str, kind: str) -> Callable[..., Any]:
        original = getattr(stage, name)

        def call(microbatch: int, *arguments: Any, **options: Any) -> Any:
            split = name == "backward_one_chunk" and not options.get("full_backward", True)
            with around("I" if split else kind, stage.stage_index, microbatch):
                return original(microbatch, *arguments, **options)

        return call

    names = (("forward_one_chunk", "F"), ("backward_one_chunk", "B"), ("backward_weight_one_chunk", "W"))
    for stage in stages:
        for name, kind in names:
            setattr(stage, name, watched(stage, name, kind))
    try:
        yield
    finally:
        for stage in stages:
            for name, _ in names:
                delattr(stage, name)
