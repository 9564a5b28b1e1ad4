"""One training step as its messages, phase by phase, in the order in which the step has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from clusterbench.errors import SuiteError
from clusterbench.formulas.collectives import RECV
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import (
    STEP,
    Parallelism,
    Traffic,
    active_in,
    from_options,
    objection_to,
    part_of,
    traffic_of_step,
)
from clusterbench.parallel._words import PhaseWords
from clusterbench.shape import named_shape


@dataclass(frozen=True)
class Message:
    """Calls of one collective along one axis within a phase.

    Attributes
    ----------
    count, link_bytes
        Calls of a step, and bytes on the busiest link of all of them, of the rank that sends most in this phase; None
        where no job was named.
    """

    axis: str
    op: str
    count: int | None = None
    link_bytes: float | None = None


@dataclass(frozen=True)
class Phase:
    """A part of the step in plain words, and what passes in it; no message where every rank works for itself."""

    words: PhaseWords
    messages: tuple[Message, ...]


_OF_EVERY_STEP = (
    PhaseWords(
        "norm",
        "Clipping: the norm of all gradients",
        "once a step",
        "Each rank adds up the squares of what it holds: a few numbers, but every rank waits for them",
    ),
    PhaseWords(
        "update",
        "Optimizer: every rank updates what it keeps",
        "once a step",
        "Nothing passes: each rank has the gradients and the optimizer states that it needs",
    ),
)


def phases_of(layout: ParallelLayout, job: TrainingJob | None) -> tuple[Phase, ...]:
    """The phases of one step. Without a job those that the layout can have, and no figures.

    Raises
    ------
    SuiteError
        If the job cannot be shared so.
    """
    each = "every micro-batch" if job is None else _times(job.gradient_accumulation_steps, "micro-batch", "es")
    active = active_in(layout, from_options({}))
    words = {phase_words.name: phase_words for phase_words in _OF_EVERY_STEP}
    words |= {
        phase_words.name: phase_words for parallelism in active for phase_words in parallelism.phases(layout, each)
    }
    if job is not None and (objection := objection_to(job, active)):
        raise SuiteError(f"layout '{layout}' cannot train {job.shape.name} so: {objection}.")
    messages = _possible(layout) if job is None else _most_of_stages(job, active, range(layout.pp))
    return tuple(
        Phase(words[name], tuple(messages.get(name, ()))) for name in STEP if name in messages or name == "update"
    )


def _most_of_stages(job: TrainingJob, active: Sequence[Parallelism], stages: Iterable[int]) -> dict[str, list[Message]]:
    """Of each phase and op, what the rank of that stage sends that sends most."""
    most: dict[str, dict[tuple[str, str], Message]] = defaultdict(dict)
    for stage in stages:
        for name, traffic in traffic_by_phase(active, part_of(job, active, stage)).items():
            sums: dict[tuple[str, str], list[Traffic]] = defaultdict(list)
            for sent in traffic:
                if sent.op != RECV:  # the other side of a send
                    sums[sent.axis, sent.op].append(sent)
            for (axis, op), of_op in sums.items():
                size = sum(sent.bytes_on_link(job.layout) for sent in of_op)
                before = most[name].get((axis, op))
                if before is None or size > (before.link_bytes or 0):
                    most[name][axis, op] = Message(axis, op, sum(sent.count for sent in of_op), size)
    return {name: list(messages.values()) for name, messages in most.items()}


def traffic_by_phase(active: Sequence[Parallelism], job: TrainingJob) -> dict[str, list[Traffic]]:
    """All that :func:`clusterbench.parallel.expected_traffic` counts of a rank, each under the phase it belongs to.

    Of parallelisms with their default options: one pipeline stage a rank, no recomputation.
    """
    by_phase: dict[str, list[Traffic]] = defaultdict(list)
    for sent in traffic_of_step(active, job):
        if sent.count:
            by_phase[sent.during].append(sent)
    return dict(by_phase)


def _possible(layout: ParallelLayout) -> dict[str, list[Message]]:
    """Which axes speak in which phase, by the layout alone: of a model that every axis cuts, without figures."""
    heads = layout.cp * layout.tp
    shape = replace(
        named_shape("llama-tiny"),
        num_layers=layout.pp,
        num_heads=heads,
        num_kv_heads=heads,
        ffn_hidden_size=layout.tp,
        vocab_size=layout.tp,
        tied_embeddings=True,
        num_experts=layout.degree("ep") if layout.uses("ep") else 0,
        experts_per_token=1 if layout.uses("ep") else 0,
    )
    job = TrainingJob(shape, layout, 2 * heads, layout.dp, 1)
    # One micro-batch is enough to see what is sent, and gpipe takes one; a stage in the middle sends both ways.
    active = active_in(layout, from_options({"schedule": "gpipe"}))
    largest = _most_of_stages(job, active, sorted({0, layout.pp // 2, layout.pp - 1}))
    own = {
        name: [message for message in messages if layout.degree(message.axis) > 1] for name, messages in largest.items()
    }
    return {
        name: [Message(message.axis, message.op) for message in messages] for name, messages in own.items() if messages
    }


def _times(number: int, noun: str, plural: str) -> str:
    return f"the one {noun}" if number == 1 else f"each of {number} {noun}{plural}"
