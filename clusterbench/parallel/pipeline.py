"""Pipeline parallelism: each rank of pp has some of the layers, and micro-batches pass through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from clusterbench.formulas import schedules
from clusterbench.formulas.pipeline import layers_by_stage
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.formulas.schedules.memory import Full, RankOrder, rank_order
from clusterbench.formulas.schedules.messages import messages
from clusterbench.job import Chunk, TrainingJob
from clusterbench.job.layer_end import at_layer_end, before_loss, keeps_input, residual_bytes
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Moments, Parallelism, Slack, Traffic, Twin
from clusterbench.parallel._words import AFTER_BACKWARD, Meaning, PhaseWords, Remark
from clusterbench.torch_release import makes_buffers_for_messages
from clusterbench.words import Word, plural

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly

WHILE_THE_LOSS = ("loss.logits_in_float32", "loss.shifted")
"""Copies of the logits that live while the loss of a micro-batch is computed, and no longer."""


@dataclass(frozen=True, kw_only=True)
class Pipeline(Parallelism):
    """Cuts the layers over the ranks of pp and runs micro-batches through them (torch.distributed.pipelining).

    Notes
    -----
    The embedding belongs to the first stage, norm and head to the last; layers are shared out evenly, or as evenly as
    they can be (:func:`clusterbench.formulas.pipeline.layers_by_stage`). A tied embedding is on both, and its gradient
    is summed over the two.

    Source
    ------
    Of each schedule: :data:`clusterbench.formulas.schedules.SCHEDULES`.
    """

    phase: ClassVar[str] = "pipeline"
    axis: ClassVar[str] = "pp"
    speaks: ClassVar[str] = "once a micro-batch, and little"
    meanings: ClassVar[Mapping[str, Meaning]] = {
        "pp": Meaning(
            "pipeline parallelism",
            "hold one after the other's layers of the same model",
            "activations from stage to stage, and their gradients back: the least",
            "Narayanan et al. 2021, arXiv:2104.04473",
            "each rank has the layers of one of {n} stages, with the least traffic of all ways to cut a model",
            "stages idle while the pipeline fills and drains: ({n}-1)/(m+{n}-1) of the step with m micro-batches",
        ),
        "ends": Meaning(
            "first and last stage",
            "both hold a tied embedding",
            "its gradient once a step, where embedding and head share weights",
            "Narayanan et al. 2021, arXiv:2104.04473",
        ),
    }
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "PP",
            "Pipeline parallelism: consecutive layers lie on consecutive ranks; micro-batches pass from stage to "
            "stage. Narayanan et al., arXiv:2104.04473.",
            r"pp\d*|PP\d+",
        ),
        Word(
            "1F1B",
            "One forward, one backward: the pipeline schedule in which a stage alternates between the two, and so "
            "holds the activations of few micro-batches. Narayanan et al., arXiv:2104.04473.",
            "1f1b",
        ),
        Word(
            "ZBV",
            "Zero bubble, V-shaped: a pipeline schedule that splits the backward pass to fill what would be waiting. "
            "Qi et al., arXiv:2401.10241.",
            "zbv|zb",
        ),
    )

    schedule: str = option(
        "1f1b", "order in which pipeline stages compute", choices=tuple(SCHEDULES), label="{}", alters="nothing"
    )
    chunks_per_rank: int = option(
        0,
        "pipeline stages of one rank; 0 is what the schedule usually has",
        minimum=0,
        maximum=1024,
        label="{} chunks",
        alters="nothing",
    )

    def active(self, layout: ParallelLayout) -> bool:
        return layout.uses("pp")

    @property
    def chunks(self) -> int:
        """Stages of one rank."""
        return self.chunks_per_rank or schedules.default_chunks(self.schedule)

    def objection(self, job: TrainingJob) -> str | None:
        pp, stages = job.layout.pp, job.layout.pp * self.chunks
        if reason := schedules.objection_to_chunks(self.schedule, self.chunks):
            return reason.removesuffix(".")
        if job.shape.num_layers < stages:
            return (
                f"pp{pp} with {plural(self.chunks, 'chunk')} per rank has {stages} stages, and {job.shape.name} has "
                f"{plural(job.shape.num_layers, 'layer')}: every stage needs one"
            )
        if job.layout.shards_gradients and self.splits_backward:
            return (
                f"{self.schedule} computes the gradients of weights apart from those of inputs, and with "
                f"+zero{job.layout.zero} FSDP would reduce them before they are there; +zero1 does not"
            )
        if job.shape.tied_embeddings and SCHEDULES[self.schedule].placement == "v":
            return (
                f"{self.schedule} puts the first and the last stage on one rank, where the tied embedding of "
                f"{job.shape.name} would be twice"
            )
        # last, as all else no batch mends
        if reason := schedules.objection(self.schedule, pp, job.gradient_accumulation_steps, self.chunks):
            return f"{reason.removesuffix('.')} ({job.equation})"
        return None

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of weights are computed apart from those of inputs."""
        return schedules.splits_backward(self.schedule)

    def hides_activations(self, job: TrainingJob) -> str:
        # Measured is from 6 % less to 2.4 times what forward keeps of the micro-batches in flight.
        if self.splits_backward:
            return f"{self.schedule} splits backward, and torch then lets go of a micro-batch at no fixed time"
        return ""

    def slack(self, job: TrainingJob) -> Iterable[Slack]:
        if SCHEDULES[self.schedule].chunks == 1 and _holds_messages(job):
            yield Slack(4 * residual_bytes(job), "messages under way, which torch holds until the next ones")

    def part(self, job: TrainingJob, pp_rank: int) -> TrainingJob:
        chunks = self.held(job.shape.num_layers, job.layout.pp, pp_rank)
        # naive finishes each micro-batch before the next, as if there were no schedule
        sizes = job.layout.pp, job.gradient_accumulation_steps, self.chunks
        order = None if self.schedule == "naive" else rank_order(self.schedule, *sizes, pp_rank)
        return replace(job, chunks=chunks, pp_rank=pp_rank, order=order)

    def held(self, num_layers: int, pp: int, pp_rank: int) -> tuple[Chunk, ...]:
        """What a rank at this place along pp has of so many layers."""
        return _chunks(self.schedule, num_layers, pp, self.chunks)[pp_rank]

    def twin(self, job: TrainingJob) -> Twin:
        # one more than fill the pipeline, so that it also runs full
        full = (
            number
            for number in range(job.layout.pp, 4 * job.layout.pp + 4)
            if schedules.objection(self.schedule, job.layout.pp, number, self.chunks) is None
        )
        least = max(2, next(full))
        stages = job.layout.pp * self.chunks
        # two layers in each stage, or where layers do not come out even two in those that have one more
        longer = job.shape.num_layers % stages or stages
        return Twin(stages + longer, next(number for number in full if number > least))

    def sums(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        return ("ends",) if name == "embedding.weight" and job.shape.tied_embeddings else ()

    def full_moments(self, job: TrainingJob, moments_of: Callable[[Chunk], Moments], parts: int) -> list[float]:
        """Bytes whenever the schedule may hold most: what micro-batches in flight keep, and one of them in backward."""
        full = []
        inputs, held = self.kept_inputs(job, moments_of), self.beside(job, moments_of, parts)

        def beside(at: Full) -> float:
            return inputs + held(at)

        for at in self.fullest(job):
            chunk = next(chunk for chunk in job.held if chunk.stage == at.stage)
            forward, *backward = moments_of(chunk)
            if at.kind == "F":
                at_end = before_loss(job, forward, parts) + self._logits_before(at, forward) if chunk.last else 0.0
                most = sum(forward.values()), self._gathering(job, at, forward), at_end
                full += [beside(at) + held_bytes for held_bytes in most]
                continue
            kept = sum(forward.values()) - sum(forward.get(name, 0.0) for name in WHILE_THE_LOSS)
            logits = forward.get("loss.logits", 0.0)  # a stage's output, which is held until its backward is through
            full += [beside(at) + kept, *(beside(at) + sum(moment.values()) + logits for moment in backward)]
        return full

    def _gathering(self, job: TrainingJob, at: Full, forward: Mapping[str, float]) -> float:
        """Bytes while a head that is cut over tp gathers all logits, beside those of the micro-batch before."""
        logits = self._logits_before(at, forward)
        if "loss.shifted" in forward or not (logits and job.layout.uses("tp")):
            return 0.0
        held = sum(size for name, size in forward.items() if not name.startswith("loss."))
        return held + logits * (2 + 1 / job.layout.tp)

    def _logits_before(self, at: Full, forward: Mapping[str, float]) -> float:
        """Bytes of those of the micro-batch before.

        torch's 1F1B lets go of an output when it has the next one, though its backward is through.
        """
        is_through = at.begun[at.stage] > at.in_flight[at.stage] and not makes_buffers_for_messages()
        return forward.get("loss.logits", 0.0) if self.schedule == "1f1b" and is_through else 0.0

    def order(self, job: TrainingJob) -> RankOrder:
        """What a rank computes; of naive, which finishes each micro-batch before the next, no more than two."""
        number = min(2, job.gradient_accumulation_steps)
        return job.order or rank_order("naive", job.layout.pp, number, 1, job.pp_rank)

    def fullest(self, job: TrainingJob) -> Sequence[Full]:
        """Moments at which a rank may hold most.

        Where torch's 1F1B lets go of what it sent, it does so one forward late as it fills the pipeline, and at once
        afterwards: that the pipeline is full for the first time is a moment of its own then.
        """
        full, stage = self.order(job).full, job.pp_rank
        if self.schedule != "1f1b" or not makes_buffers_for_messages():
            return full
        ahead = {stage: min(job.layout.pp - stage, job.gradient_accumulation_steps)}
        return [*full, Full("F", stage, ahead, ahead)]

    def beside(
        self, job: TrainingJob, moments_of: Callable[[Chunk], Moments], parts: int, messages: bool = False
    ) -> Callable[[Full], float]:
        """What says how many bytes of activations are held at a moment, without those of the micro-batch under way.

        Without what was received, too, where torch makes a buffer for the input of each micro-batch when it prepares a
        stage, and they stay. Its schedules of several chunks then wait for what they have sent when the step is over,
        and Gloo holds all outputs until then.
        """
        message, holds_sent, comes_late = residual_bytes(job), self._holds_sent(job), makes_buffers_for_messages()
        kept, grows, sent, ending, by_losses = {}, {}, {}, {}, 0
        for chunk in job.held:
            forward = moments_of(chunk)[0]
            kept[chunk.stage] = sum([size for name, size in forward.items() if name not in WHILE_THE_LOSS])
            in_buffer = 0 if chunk.first else message
            reads = keeps_input(forward, job)
            unread = in_buffer * messages * (not reads)  # which is no activation
            grows[chunk.stage] = kept[chunk.stage] + (unread if comes_late else -in_buffer * reads)
            by_losses += in_buffer * chunk.last * (messages or reads)
            sent[chunk.stage] = 0 if chunk.last else message
            ending[chunk.stage] = _ending(job, chunk, forward, parts, messages)

        def held(at: Full) -> float:
            outputs = self._unsent(at) if comes_late else at.begun if holds_sent else at.in_flight
            of_stages = sum([grows[of] * number + sent[of] * outputs[of] for of, number in at.in_flight.items()])
            own = kept[at.stage] - (ending[at.stage] if at.kind == "F" else 0.0)
            return of_stages - own + message * self._holds_first(job, at) + by_losses * self._read_by_losses(job, at)

        return held

    def _unsent(self, at: Full) -> Mapping[int, int]:
        """By stage, how many outputs a schedule holds that waits for what it sends.

        With several chunks it waits behind the backward of each micro-batch, else before the backwards begin; 1f1b
        behind the next forward.
        """
        if SCHEDULES[self.schedule].chunks > 1:
            return at.in_flight
        if at.kind != "F":
            return dict.fromkeys(at.in_flight, 0)
        if self.schedule != "1f1b":
            return at.in_flight
        return {stage: min(number, 2) if number == at.begun[stage] else 1 for stage, number in at.in_flight.items()}

    def _read_by_losses(self, job: TrainingJob, at: Full) -> int:
        """How many inputs of the last stage are held though their micro-batches are through.

        A schedule keeps the losses of a step, and each its graph, which keeps what it began with.
        """
        if job.order is None or not makes_buffers_for_messages():
            return 0
        last = [chunk.stage for chunk in job.held if chunk.last and not chunk.first]
        return sum(at.begun.get(stage, 0) - at.in_flight.get(stage, 0) for stage in last)

    def _holds_first(self, job: TrainingJob, at: Full) -> bool:
        """Whether an output is held though its micro-batch is through: torch's 1F1B fills the pipeline first.

        It waits for the last but one of what it sent by then only when it drains.
        """
        if not _holds_messages(job) or makes_buffers_for_messages():
            return False
        ahead = min(job.layout.pp - at.stage, job.gradient_accumulation_steps)
        through = at.begun[at.stage] - at.in_flight[at.stage]
        return self.schedule == "1f1b" and 0 <= ahead - 2 < through <= job.gradient_accumulation_steps - ahead

    def sent_back(self, job: TrainingJob, at: Full) -> float:
        """Bytes of gradients that went to the stage before and are held to the end of the step: no activations."""
        through = sum(at.begun[stage] - number for stage, number in at.in_flight.items() if stage > 0)
        if makes_buffers_for_messages() and self.schedule == "1f1b":
            return float(min(through, 1) * residual_bytes(job))
        return float(through * residual_bytes(job)) if self._holds_sent(job) else 0.0

    def came_back(self, job: TrainingJob, at: Full) -> float:
        """Bytes of the gradient with which a backward begins, where it came in no buffer that is there all the time."""
        is_last = next(chunk.last for chunk in job.held if chunk.stage == at.stage)
        comes = at.kind != "F" and not is_last and makes_buffers_for_messages()
        return float(residual_bytes(job) * comes)

    def _holds_sent(self, job: TrainingJob) -> bool:
        """Whether what stages sent is there to the end of a step: since torch 2.15 the schedule itself holds it."""
        holds = _holds_messages(job) or makes_buffers_for_messages()
        return SCHEDULES[self.schedule].chunks > 1 and holds

    def kept_inputs(self, job: TrainingJob, moments_of: Callable[[Chunk], Moments]) -> float:
        """Bytes of the buffers of inputs that backward reads: as activations they are there all the time."""
        if makes_buffers_for_messages():
            return 0.0
        keeping = [chunk for chunk in job.held if not chunk.first and keeps_input(moments_of(chunk)[0], job)]
        return float(len(keeping) * self._at_once(job) * residual_bytes(job))

    def buffers(self, job: TrainingJob) -> float:
        """Bytes of the buffers that torch makes for inputs of micro-batches and for gradients of what is sent on.

        None where it makes each for its own message.
        """
        if makes_buffers_for_messages():
            return 0.0
        messages = sum((not chunk.first) + (not chunk.last) for chunk in job.held)
        return float(messages * self._at_once(job) * residual_bytes(job))

    def _at_once(self, job: TrainingJob) -> int:
        return job.order.num_microbatches if job.order else 1

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        sizes = job.layout.pp, job.gradient_accumulation_steps, self.chunks
        sent = messages(self.schedule, *sizes)[job.pp_rank]
        for op, during, calls in (
            ("send", "forward_pp", sent.activations_sent),
            ("send", "backward_pp", sent.gradients_sent),
            ("recv", "forward_pp", sent.activations_received),
            ("recv", "backward_pp", sent.gradients_received),
        ):
            yield Traffic("pp", op, calls, calls * residual_bytes(job), during=during)

    def phases(self, layout: ParallelLayout, each: str) -> Iterable[PhaseWords]:
        when = f"once for {each}; stages work on different micro-batches at the same time"
        yield PhaseWords(
            "forward_pp",
            "Forward: activations go to the next stage",
            when,
            "The last layer of a stage hands its output to the first layer of the next",
            flow="forward",
        )
        yield PhaseWords(
            "backward_pp",
            "Backward: gradients go to the stage before",
            when,
            "The first layer of a stage hands the gradient of its input to the last layer of the one before",
            flow="backward",
        )
        yield PhaseWords(
            "sum_ends",
            "The tied embedding's gradients are summed",
            f"{AFTER_BACKWARD}, where embedding and head share weights",
            "The first stage looks tokens up in it, the last one computes logits with it",
        )

    def remarks(self, layout: ParallelLayout) -> Iterable[Remark]:
        if layout.dp > 1:
            yield Remark(
                f"At the same global batch, dp{layout.dp} leaves each pipeline 1/{layout.dp} of the micro-batches, so "
                f"that filling and draining pp{layout.pp} stages weighs more; fewer stages and more copies weigh less.",
                "Narayanan et al. 2021, arXiv:2104.04473, section 3.3.1",
            )
        if layout.sp:
            yield Remark(
                f"With +sp a stage hands on 1/{layout.tp} of its output from each rank, not the same on all "
                f"{layout.tp}.",
                "Narayanan et al. 2021, arXiv:2104.04473, section 4.1, which cuts and gathers there for the same end",
            )
        if layout.shards_parameters:
            yield Remark(
                "With ZeRO 3 a stage gathers its weights again and again, micro-batch by micro-batch. Llama 3 does "
                "not shard them again after forward for this reason.",
                "Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2",
            )

    def apply(self, assembly: Assembly) -> None:
        from clusterbench.model.stages import Stages

        group = assembly.grid.group("pp")
        stages = Stages(assembly.job, assembly.decoders, self.schedule, group, assembly.device)
        assembly.stages, assembly.forward_backward = stages, stages.forward_backward


def _ending(job: TrainingJob, chunk: Chunk, held: Mapping[str, float], parts: int, messages: bool) -> float:
    """Bytes that live beside what is kept and sent, when the last layer of a stage without a head comes to its end."""
    if chunk.last:
        return 0.0
    # What was received is in a buffer, and what a look-up summed over tp is a message.
    makes_input = len(chunk.layers) > 1 or (chunk.first and not job.layout.uses("tp"))
    return at_layer_end(job, held, makes_input, parts, messages) - residual_bytes(job)


def _holds_messages(job: TrainingJob) -> bool:
    """Whether what was sent is there until it is waited for: Gloo holds the tensor itself, and NCCL none.

    As seen of torch 2.11 with NCCL 2.28 on an H200: ``batch_isend_irecv`` lets go of what it sent at once.
    """
    return job.device == "cpu"


@cache  # a plan asks again for every rank and figure
def _chunks(schedule: str, num_layers: int, num_ranks: int, chunks: int) -> Sequence[tuple[Chunk, ...]]:
    """Those of each rank."""
    stages = num_ranks * chunks
    layers = layers_by_stage(num_layers, stages)
    every = [Chunk(at, layers[at], at == 0, at == stages - 1) for at in range(stages)]
    return [
        tuple(every[at] for at in schedules.stages_of(schedule, num_ranks, chunks, rank)) for rank in range(num_ranks)
    ]
