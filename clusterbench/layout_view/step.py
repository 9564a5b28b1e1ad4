"""One training step as its messages, phase by phase, in the order in which the step has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from clusterbench.errors import SuiteError
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import (
    NORM_ORDER,
    SUM_ORDER,
    Parallelism,
    Traffic,
    active_in,
    from_options,
    local_weights,
    objection_to,
    part_of,
    split_over,
    summed_over,
)
from clusterbench.parallel.tensor import crossings


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
    """A part of the step in plain words, and what passes in it; no message where every rank works for itself.

    Attributes
    ----------
    when
        How often in a step, and next to what.
    """

    name: str
    title: str
    when: str
    what: str
    messages: tuple[Message, ...]


ORDER = (
    "gather",
    "forward_tp",
    "forward_cp",
    "forward_ep",
    "forward_pp",
    "loss",
    "backward_ep",
    "backward_cp",
    "backward_tp",
    "backward_pp",
    "reduce",
    *(f"sum_{axis}" for axis in SUM_ORDER),
    "norm",
    "update",
    "share",
)
"""Phases in the order of :class:`clusterbench.training.step.TrainingStep`; forward and backward are one layer's."""

WITHIN_MICRO_BATCHES = ORDER[: ORDER.index("reduce")]

FLOWS = {"forward_pp": "forward", "backward_pp": "backward", "forward_ep": "all", "backward_ep": "all"}
"""How messages run through a group: to the next member, to the one before, to all others. Else around a ring."""


def phases_of(layout: ParallelLayout, job: TrainingJob | None) -> tuple[Phase, ...]:
    """The phases of one step. Without a job those that the layout can have, and no figures.

    Raises
    ------
    SuiteError
        If the job cannot be shared so.
    """
    found = _spoken(layout) if job is None else _most_of_stages(job)
    words = _words(layout, job)
    return tuple(
        Phase(name, *words[name], tuple(found.get(name, ()))) for name in ORDER if name in found or name == "update"
    )


def _most_of_stages(job: TrainingJob) -> dict[str, list[Message]]:
    """Of each phase and op, what the rank of that stage sends that sends most."""
    active = active_in(job.layout, from_options({}))
    if objection := objection_to(job, active):
        raise SuiteError(f"layout '{job.layout}' cannot train {job.shape.name} so: {objection}.")
    most: dict[str, dict[tuple[str, str], Message]] = defaultdict(dict)
    for stage in range(job.layout.pp):
        for name, some in traffic_by_phase(active, part_of(job, active, stage)).items():
            sums: dict[tuple[str, str], list[Traffic]] = defaultdict(list)
            for one in some:
                if one.op != "recv":  # the other side of a send
                    sums[one.axis, one.op].append(one)
            for (axis, op), of_op in sums.items():
                size = sum(one.bytes_on_link(job.layout) for one in of_op)
                before = most[name].get((axis, op))
                if before is None or size > (before.link_bytes or 0):
                    most[name][axis, op] = Message(axis, op, sum(one.count for one in of_op), size)
    return {name: list(messages.values()) for name, messages in most.items()}


def traffic_by_phase(active: Sequence[Parallelism], job: TrainingJob) -> dict[str, list[Traffic]]:
    """All that :func:`clusterbench.parallel.expected_traffic` counts of a rank, each under the phase it belongs to.

    Of parallelisms with their default options: one pipeline stage a rank, no recomputation.
    """
    found: dict[str, list[Traffic]] = defaultdict(list)
    for name, one in _of_parallelisms(active, job):
        if one.count:
            found[name].append(one)
    weights = local_weights(active, job)
    for axis in SUM_ORDER:
        parts = sum(prod(size) for name, size in weights.items() if axis in summed_over(active, name, job))
        if parts:
            found[f"sum_{axis}"].append(Traffic(axis, "all_reduce", 1, parts * job.master_bytes))
    if job.max_grad_norm is not None:
        ways = {split_over(active, name, job) for name in weights}
        for axis in NORM_ORDER:
            if numbers := sum(axis in way for way in ways):
                found["norm"].append(Traffic(axis, "all_reduce", 1, numbers * job.master_bytes))
        if job.layout.uses("pp"):
            found["norm"].append(Traffic("pp", "all_reduce", 1, job.master_bytes))
    return dict(found)


def _of_parallelisms(active: Sequence[Parallelism], job: TrainingJob) -> Iterator[tuple[str, Traffic]]:
    for parallelism in active:
        sent = list(parallelism.traffic(job))
        match parallelism.phase:
            case "tensor":
                if not job.layout.sp:
                    yield from _crossing(job, sent.pop(0), entering="backward_tp", leaving="forward_tp")
                yield from (("loss", one) for one in sent)
            case "sequence":
                gathered, scattered = sent
                yield from _crossing(job, gathered, entering="forward_tp", leaving="backward_tp")
                yield from _crossing(job, scattered, entering="backward_tp", leaving="forward_tp")
            case "context" | "expert" as axis:
                short = {"context": "cp", "expert": "ep"}[axis]
                forward = len(list(parallelism.forward_traffic(job)))
                yield from ((f"forward_{short}", one) for one in sent[:forward])
                yield from ((f"backward_{short}", one) for one in sent[forward:])
            case "pipeline":
                yield from _between_stages(job, sent)
            case _:
                by_op = {"all_gather": "gather", "broadcast": "share"}
                yield from ((by_op.get(one.op, "reduce"), one) for one in sent)


def _crossing(job: TrainingJob, sent: Traffic, entering: str, leaving: str) -> Iterator[tuple[str, Traffic]]:
    """Shares out what crosses the edges of split regions: as many are entered as left, but for the model's ends."""
    every = crossings(job)
    entered = (every + job.has_head - job.embeds) // 2
    for name, times in ((entering, entered), (leaving, every - entered)):
        yield (name, replace(sent, count=sent.count * times // every, size_bytes=sent.size_bytes * times // every))


def _between_stages(job: TrainingJob, sent: Sequence[Traffic]) -> Iterator[tuple[str, Traffic]]:
    forwards = sum(action.kind == "F" for action in job.actions)
    for one in sent:
        at_edge = job.has_head if one.op == "send" else job.embeds
        forward = 0 if at_edge else forwards
        for name, count in (("forward_pp", forward), ("backward_pp", one.count - forward)):
            if one.count:
                yield (name, replace(one, count=count, size_bytes=one.size_bytes * count // one.count))


def _spoken(layout: ParallelLayout) -> dict[str, list[Message]]:
    """Which axes speak in which phase, by the layout alone."""
    data = [layout.data_axis] if layout.degree("dp_cp") > 1 else []
    copies = ["edp"] if layout.ep > 1 and layout.degree("edp") > 1 else []
    crossing = ("all_gather", "reduce_scatter") if layout.sp else ("all_reduce",)
    found: dict[str, list[Message]] = defaultdict(list)

    def speak(name: str, axes: Sequence[str], *ops: str) -> None:
        found[name] += [Message(axis, op) for axis in axes for op in ops]

    for way in ("forward", "backward"):
        for axis, ops in {"tp": crossing, "cp": ("send",), "ep": ("all_to_all",), "pp": ("send",)}.items():
            if layout.degree(axis) > 1:
                speak(f"{way}_{axis}", [axis], *ops)
    if layout.tp > 1:
        speak("loss", ["tp"], "all_reduce")
    if layout.sp:
        speak("sum_tp", ["tp"], "all_reduce")
    if layout.zero >= 2:
        speak("gather", data + copies, "all_gather")
        speak("reduce", data + copies, "reduce_scatter")
    else:
        for axis in data:
            speak(f"sum_{axis}" if layout.pp > 1 else "reduce", [axis], "all_reduce")
        for axis in copies:
            speak(f"sum_{axis}", [axis], "all_reduce")
    if layout.zero == 1:
        speak("share", data + copies, "broadcast")
    if layout.pp > 1:
        speak("sum_ends", ["ends"], "all_reduce")
    split = {"tp": layout.tp > 1, "ep": layout.ep > 1, "edp": bool(copies) and layout.zero >= 2}
    if data and layout.zero >= 2:
        split[data[0]] = True
    norm = [axis for axis in NORM_ORDER if split.get(axis)] + (["pp"] if layout.pp > 1 else [])
    speak("norm", norm, "all_reduce")
    return {name: messages for name, messages in found.items() if messages}


def _words(layout: ParallelLayout, job: TrainingJob | None) -> Mapping[str, tuple[str, str, str]]:
    """Title, when, and what passes, of every phase."""
    each = "every micro-batch" if job is None else _times(job.gradient_accumulation_steps, "micro-batch", "es")
    in_layers = f"in every layer, for {each}"
    copies = layout.degree("dp_cp")
    at_stages = "; stages work on different micro-batches at the same time" if layout.pp > 1 else ""
    gathered = (
        "before a stage computes, where they are not still there"
        if layout.pp > 1
        else f"before every layer, for {each}, in forward"
        + (" and again in backward" if layout.zero == 3 else "; they stay until backward is through with them")
    )
    after = "once a step, after the last backward"
    averaged = "Ranks with the same weights have seen different tokens: their gradients are averaged"
    words = {
        "gather": (
            "ZeRO: weights are gathered",
            gathered,
            f"Each rank keeps 1/{copies} of every weight it computes with, and gets the rest from the others",
        ),
        "forward_tp": _slices_meet(layout, "Forward", in_layers),
        "forward_cp": (
            "Forward: keys and values go around",
            in_layers,
            "Each rank passes the keys and values of its part of the sequence on to the next, until every query has "
            "met every key",
        ),
        "forward_ep": (
            "Forward: tokens go to their experts and back",
            in_layers,
            "Each rank sends every token to the ranks that hold the experts its router chose, and gets the results",
        ),
        "forward_pp": (
            "Forward: activations go to the next stage",
            f"once for {each}{at_stages}",
            "The last layer of a stage hands its output to the first layer of the next",
        ),
        "loss": (
            "Loss: over the split vocabulary",
            f"once for {each}" + (", on the last stage" if layout.pp > 1 else ""),
            f"Each rank has the logits of 1/{layout.tp} of the vocabulary: of every token the largest logit, the sum "
            "of exponentials and the label's logit are put together",
        ),
        "backward_ep": (
            "Backward: gradients of tokens go to the experts and back",
            in_layers,
            "The way of the tokens, once more",
        ),
        "backward_cp": (
            "Backward: keys and values go around again, their gradients behind them",
            in_layers,
            "Each rank adds what its queries say of every key and value",
        ),
        "backward_tp": _slices_meet(layout, "Backward", in_layers),
        "backward_pp": (
            "Backward: gradients go to the stage before",
            f"once for {each}{at_stages}",
            "The first layer of a stage hands the gradient of its input to the last layer of the one before",
        ),
        "reduce": (
            f"Gradients are averaged{' and cut' if layout.zero >= 2 else ''}",
            f"for {each}, while backward runs" if layout.zero >= 2 else "while the last backward runs, in buckets",
            averaged + (f", and each keeps 1/{copies} of them" if layout.zero >= 2 else ""),
        ),
        "sum_tp": (
            "Gradients of what tp does not cut are summed",
            after,
            "Norms, and other weights that are whole on every rank of tp, have seen a part of the work on each",
        ),
        "sum_edp": ("Gradients of experts are averaged", after, "Ranks with the same experts have seen other tokens"),
        "sum_ends": (
            "The tied embedding's gradients are summed",
            f"{after}, where embedding and head share weights",
            "The first stage looks tokens up in it, the last one computes logits with it",
        ),
        "norm": (
            "Clipping: the norm of all gradients",
            "once a step",
            "Each rank adds up the squares of what it holds: a few numbers, but every rank waits for them",
        ),
        "update": (
            "Optimizer: every rank updates what it keeps",
            "once a step",
            "Nothing passes: each rank has the gradients and the optimizer states that it needs",
        ),
        "share": (
            "ZeRO: updated weights go to the other copies",
            "once a step",
            "Each rank has the optimizer states of some weights, has updated those, and sends them",
        ),
    }
    return words | {f"sum_{axis}": ("Gradients are averaged", after, averaged) for axis in ("dp", "cp", "dp_cp")}


def _slices_meet(layout: ParallelLayout, way: str, when: str) -> tuple[str, str, str]:
    what = "activations" if way == "Forward" else "gradients of activations"
    if layout.sp:
        return (
            f"{way}: slices of weights work together",
            when,
            f"Between the regions of split weights a rank has 1/{layout.tp} of the tokens: {what} are gathered at one "
            "edge of a region, summed and cut at the other",
        )
    return (
        f"{way}: slices of weights work together",
        when,
        f"The parts that each slice gives of the {what} are summed",
    )


def _times(number: int, noun: str, plural: str) -> str:
    return f"the one {noun}" if number == 1 else f"each of {number} {noun}{plural}"
