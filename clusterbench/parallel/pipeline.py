"""Pipeline parallelism: each rank of pp has some of the layers, and micro-batches pass through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from clusterbench.formulas import schedules
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.job import Chunk, TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Parallelism, Traffic

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly


@dataclass(frozen=True, kw_only=True)
class Pipeline(Parallelism):
    """Cuts the layers over the ranks of pp and runs micro-batches through them (torch.distributed.pipelining).

    Notes
    -----
    The embedding belongs to the first stage, norm and head to the last; layers are shared out evenly. A tied embedding
    is on both, and its gradient is summed over the two.

    Source
    ------
    Of each schedule: :data:`clusterbench.formulas.schedules.SCHEDULES`.
    """

    phase: ClassVar[str] = "pipeline"

    schedule: str = option("1f1b", "order in which pipeline stages compute", choices=tuple(SCHEDULES), said="{}")
    chunks_per_rank: int = option(
        0,
        "pipeline stages of one rank; 0 is what the schedule usually has",
        minimum=0,
        maximum=1024,
        said="{} chunks",
    )

    def active(self, layout: ParallelLayout) -> bool:
        return layout.uses("pp")

    @property
    def chunks(self) -> int:
        """Stages of one rank."""
        return self.chunks_per_rank or schedules.default_chunks(self.schedule)

    def objection(self, job: TrainingJob) -> str | None:
        pp, stages = job.layout.pp, job.layout.pp * self.chunks
        reason = schedules.objection(self.schedule, pp, job.gradient_accumulation_steps, self.chunks)
        if reason is not None:
            return f"{reason.removesuffix('.')} ({job.equation})"
        if job.shape.num_layers % stages:
            return (
                f"pp{pp} with {self.chunks} chunks per rank cuts the {job.shape.num_layers} layers of {job.shape.name} "
                f"into {stages} stages, which does not come out even: {job.shape.num_layers / stages:.4g}"
            )
        if job.layout.zero >= 2 and self.splits_backward:
            return (
                f"{self.schedule} computes the gradients of weights apart from those of inputs, and with "
                f"+zero{job.layout.zero} FSDP would reduce them before they are there; +zero1 does not"
            )
        if job.shape.tied_embeddings and SCHEDULES[self.schedule].placement == "v":
            return (
                f"{self.schedule} puts the first and the last stage on one rank, where the tied embedding of "
                f"{job.shape.name} would be twice"
            )
        return None

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of weights are computed apart from those of inputs."""
        return schedules.splits_backward(self.schedule)

    def hides_activations(self, job: TrainingJob) -> bool:
        # Between a stage's I and its W the gradients of all products are kept as well: measured is up to 2.4 times what
        # forward keeps.
        return self.splits_backward

    def part(self, job: TrainingJob, pp_rank: int) -> TrainingJob:
        stages = job.layout.pp * self.chunks
        each = job.shape.num_layers // stages
        held = schedules.stages_of(self.schedule, job.layout.pp, self.chunks, pp_rank)
        chunks = (Chunk(at, range(at * each, (at + 1) * each), at == 0, at == stages - 1) for at in held)
        # naive finishes each micro-batch before the next, as if there were no schedule
        actions = () if self.schedule == "naive" else tuple(self._order(job)[pp_rank])
        return replace(job, chunks=tuple(chunks), pp_rank=pp_rank, actions=actions)

    def twin(self, job: TrainingJob) -> tuple[int, int, int]:
        enough = (
            number
            for number in range(2, 2 * job.layout.pp + 2)
            if schedules.objection(self.schedule, job.layout.pp, number, self.chunks) is None
        )
        return job.layout.pp * self.chunks, next(enough), 1

    def sums(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        return ("ends",) if name == "embedding.weight" and job.shape.tied_embeddings else ()

    def peak_activations(self, job: TrainingJob, of_one_forward: Callable[[TrainingJob], float]) -> float | None:
        if not job.actions:
            return None
        sizes = {
            # a stage's output is held with what it computed from, until its backward
            chunk.stage: of_one_forward(replace(job, chunks=(chunk,))) + (0 if chunk.last else _between(job))
            for chunk in job.held
        }
        return schedules.peak_held(job.actions, sizes.__getitem__)

    def _order(self, job: TrainingJob) -> list[list[schedules.Action]]:
        return _order(self.schedule, job.layout.pp, job.gradient_accumulation_steps, self.chunks)

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        sent = schedules.messages(self._order(job))[job.pp_rank]
        sends = sent.activations_sent + sent.gradients_sent
        receives = sent.activations_received + sent.gradients_received
        yield Traffic("pp", "send", sends, sends * _between(job))
        yield Traffic("pp", "recv", receives, receives * _between(job))

    def apply(self, assembly: Assembly) -> None:
        from clusterbench.model.stages import Stages

        stages = Stages(assembly, self.schedule)
        assembly.stages, assembly.forward_backward = stages, stages.forward_backward


def _between(job: TrainingJob) -> int:
    """Bytes of what passes between two stages: the residual stream of one micro-batch."""
    tokens = job.local_tokens // (job.layout.tp if job.layout.sp else 1)
    return tokens * job.shape.hidden_size * job.compute_bytes


_order = cache(schedules.order)  # a plan asks again for every rank and figure
