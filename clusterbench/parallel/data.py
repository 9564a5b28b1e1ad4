"""Data parallelism: ranks hold the same weights and see different tokens; gradients are averaged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Parallelism, Traffic, active_in, local_weights, parallelisms
from clusterbench.training.job import TrainingJob

if TYPE_CHECKING:
    from clusterbench.training.assembly import Assembly

# torch.distributed._DEFAULT_FIRST_BUCKET_BYTES and the default of DDP's bucket_cap_mb.
FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True, kw_only=True)
class DataParallel(Parallelism):
    """Averages gradients over dp (and cp) while backward runs (torch's DistributedDataParallel).

    Notes
    -----
    Gradients are views of DDP's buckets, so they exist once. While micro-batches accumulate nothing is sent. Buckets
    are built anew after the first step, in the order in which gradients came.

    Under pipeline parallelism a stage's backward runs in pieces that DDP's hooks cannot follow (a weight's gradient may
    come long after its input's), so gradients are summed in one flat buffer when the schedule is through. With ZeRO 2
    and 3 FSDP averages them. Experts that are spread over ranks are averaged by the expert grid.

    Source
    ------
    Li et al. 2020, arXiv:2006.15704.
    """

    phase: ClassVar[str] = "replicate"

    def active(self, layout: ParallelLayout) -> bool:
        return layout.degree("dp_cp") > 1 and layout.zero < 2

    def sums(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        return (job.layout.data_axis,) if job.layout.uses("pp") and not is_spread_expert(name, job) else ()

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        if job.layout.uses("pp"):
            return
        others = [kind() for kind in parallelisms().values() if kind is not type(self)]
        weights = local_weights(active_in(job.layout, others), job)
        names = [name for name in gradient_order(list(weights)) if not is_spread_expert(name, job)]
        sizes = [prod(weights[name]) * job.master_bytes for name in names]
        yield Traffic(job.layout.data_axis, "all_reduce", num_buckets(sizes), sum(sizes))

    def apply(self, assembly: Assembly) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from clusterbench.engine.compat import leave_to_others

        job = assembly.job
        if job.layout.uses("pp"):
            return
        decoder = assembly.decoders[0]
        leave_to_others(
            decoder, [weight.local_name for weight in assembly.weights if is_spread_expert(weight.name, job)]
        )
        model = DistributedDataParallel(
            decoder,
            process_group=assembly.grid.group(job.layout.data_axis),
            init_sync=False,  # the weights come from the seed on every rank
            gradient_as_bucket_view=True,
        )
        assembly.model = model
        assembly.accumulating.append(model.no_sync)
        # Dropping gradients between steps would let no_sync build a second set outside the buckets.
        assembly.keep_gradients = True


def is_spread_expert(name: str, job: TrainingJob) -> bool:
    """Whether a weight belongs to experts that are spread over ranks, so that dp ranks hold different ones."""
    return job.layout.ep > 1 and ".experts." in name


def gradient_order(names: list[str]) -> list[str]:
    """Weights in the order backward finishes their gradients: last used first; a tied embedding with the look-up."""
    return names[::-1]


def num_buckets(sizes: Iterable[int]) -> int:
    """All-reduces DDP makes of gradients of these sizes in bytes: one when a bucket has reached its limit.

    Source: ``compute_bucket_assignment_by_size`` in torch/csrc/distributed/c10d/reducer.cpp.

    >>> num_buckets([2**19, 2**19, 30 * 2**20, 10, 10])
    3
    """
    buckets, filled, limit = 0, 0, FIRST_BUCKET_BYTES
    for size in sizes:
        filled += size
        if filled >= limit:
            buckets, filled, limit = buckets + 1, 0, BUCKET_BYTES
    return buckets + (filled > 0)
