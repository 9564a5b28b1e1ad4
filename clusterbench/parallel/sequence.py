"""Megatron's sequence parallelism: between the regions of tensor parallelism, a rank holds a part of the sequence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Parallelism, Traffic
from clusterbench.parallel.tensor import crossing_bytes, crossings
from clusterbench.training.job import TrainingJob

if TYPE_CHECKING:
    from clusterbench.training.assembly import Assembly

SPLIT_ACTIVATIONS = (
    "layer.attention_norm.input",
    "layer.attention_norm.rstd",
    "layer.feed_forward_norm.input",
    "layer.feed_forward_norm.rstd",
    "norm.input",
    "norm.rstd",
)


@dataclass(frozen=True, kw_only=True)
class SequenceParallel(Parallelism):
    """Cuts norms and residuals along the sequence over the ranks of tp (torch's SequenceParallel).

    Notes
    -----
    What it saves is the input of each norm. The input of attention, of the feed-forward and of the head stays whole:
    PyTorch gathers it in forward and keeps it for backward, where Megatron gathers it a second time and keeps 1/tp.

    Source
    ------
    Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    """

    phase: ClassVar[str] = "sequence"

    def active(self, layout: ParallelLayout) -> bool:
        return layout.sp

    def objection(self, job: TrainingJob) -> str | None:
        tp = job.layout.tp
        if job.seq_len % tp:
            return f"+sp cuts seq_len {job.seq_len} over tp{tp}, which does not divide it: {job.seq_len / tp:.4g}"
        return None

    def partial(self, name: str, job: TrainingJob) -> bool:
        return name.endswith("norm.weight")  # each rank has seen its own tokens only

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        return {name: size / job.layout.tp if name in SPLIT_ACTIVATIONS else size for name, size in held.items()}

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        # Entering a region gathers the sequence and, in backward, sums and cuts the gradient; leaving it sums and cuts,
        # and gathers the gradient in backward. An all_reduce is these two, so the bytes are those of tp alone.
        calls = job.gradient_accumulation_steps * 2 * crossings(job)
        yield Traffic("tp", "all_gather", calls, calls * crossing_bytes(job))
        yield Traffic("tp", "reduce_scatter", calls, calls * crossing_bytes(job))

    def apply(self, assembly: Assembly) -> None:
        from torch.distributed.tensor.parallel import SequenceParallel as Style

        # Where attention, feed-forward and head gather their input is in the plan of tensor.py, which owns them.
        assembly.parallelize(
            "tp", {"norm": Style(), "layers.*.attention_norm": Style(), "layers.*.feed_forward_norm": Style()}
        )
