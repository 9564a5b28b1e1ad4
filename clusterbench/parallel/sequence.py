"""Megatron's sequence parallelism: between the regions of tensor parallelism, a rank holds a part of the sequence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import RESULT, SENT, Parallelism, Traffic, Twin
from clusterbench.parallel._words import PhaseWords, Remark
from clusterbench.parallel.tensor import crossing_bytes, crossing_traffic, slices_work_together
from clusterbench.units import quotient
from clusterbench.words import Word

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly

SPLIT_ACTIVATIONS = frozenset(
    (
        "layer.attention_norm.input",
        "layer.attention_norm.rstd",
        "layer.feed_forward_norm.input",
        "layer.feed_forward_norm.rstd",
        "norm.input",
        "norm.rstd",
    )
)

GATHERED = ("layer.attention.input", "layer.feed_forward.input")
"""Activations of which the ranks of tp have a part each until a region is entered; experts take theirs as it is."""


@dataclass(frozen=True, kw_only=True)
class SequenceParallel(Parallelism):
    """Cuts norms and residuals along the sequence over the ranks of tp.

    Notes
    -----
    A norm looks at one token at a time, so that it works on this rank's tokens as they are, and its weight's gradient
    is a part. torch's style of this name would make DTensors of both for the same arithmetic, and by that of torch 2.11
    a compiled layer would sum that gradient in every micro-batch.

    What it saves is the input of each norm. The input of attention, of the feed-forward and of the head stays whole:
    PyTorch gathers it in forward and keeps it for backward, where Megatron gathers it a second time and keeps 1/tp.

    Source
    ------
    Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    """

    phase: ClassVar[str] = "sequence"
    axis: ClassVar[str] = "tp"
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "SP",
            "Sequence parallelism as in Megatron: where tensor parallelism cuts no weight, each rank of its group "
            "holds a part of the sequence. Korthikanti et al., arXiv:2205.05198.",
            "sp",
        ),
    )

    def active(self, layout: ParallelLayout) -> bool:
        return layout.sp

    def objection(self, job: TrainingJob) -> str | None:
        cp, tp = job.layout.cp, job.layout.tp
        if job.seq_len % (cp * tp):
            over = f"cp{cp} and tp{tp}, which do" if cp > 1 else f"tp{tp}, which does"
            return f"+sp cuts seq_len {job.seq_len} over {over} not divide it: {quotient(job.seq_len, cp * tp)}"
        return None

    def twin(self, job: TrainingJob) -> Twin:
        return Twin(seq_unit=job.layout.tp)

    def sums(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        return ("tp",) if name.endswith("norm.weight") else ()  # each rank has seen its own tokens only

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        gathered = sum(held.get(name, 0.0) for name in GATHERED[: 1 if job.shape.has_experts else 2])
        held = held | {f"{RESULT}{SENT}gathered": gathered}
        return {name: size / job.layout.tp if name in SPLIT_ACTIVATIONS else size for name, size in held.items()}

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        # Entering a region gathers the sequence and, in backward, sums and cuts the gradient; leaving it sums and cuts,
        # and gathers the gradient in backward. An all_reduce is these two, so the bytes are those of tp alone.
        yield from crossing_traffic(job, "all_gather", entering="forward_tp", leaving="backward_tp")
        yield from crossing_traffic(job, "reduce_scatter", entering="backward_tp", leaving="forward_tp")

    def forward_traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        calls = job.gradient_accumulation_steps * job.num_layers
        size_bytes, regions = calls * crossing_bytes(job), 1 if job.shape.has_experts else 2
        # into attention and into feed-forward, out of attention
        yield Traffic("tp", "all_gather", regions * calls, regions * size_bytes, during="forward_tp")
        yield Traffic("tp", "reduce_scatter", calls, size_bytes, during="forward_tp")

    def phases(self, layout: ParallelLayout, each: str) -> Iterable[PhaseWords]:
        for way, what in (("Forward", "activations"), ("Backward", "gradients of activations")):
            yield slices_work_together(
                way,
                each,
                f"Between the regions of split weights a rank has 1/{layout.tp} of the tokens: {what} are gathered at "
                "one edge of a region, summed and cut at the other",
            )

    def remarks(self, layout: ParallelLayout) -> Iterable[Remark]:
        yield Remark(
            "+sp cuts along the sequence what tp leaves whole, norms and residuals, for as many bytes: an "
            "all-reduce becomes an all-gather and a reduce-scatter.",
            "Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2",
        )

    def apply(self, assembly: Assembly) -> None:
        """Nothing: norms, residuals and routers take the tokens they are given.

        Where regions gather their input and cut their output is in the plan of tensor.py, which owns them.
        """
