"""Data parallelism: every dp rank has all weights and a share of the batch; gradients are averaged."""

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
    """Averages gradients over dp while backward runs (torch's DistributedDataParallel).

    Notes
    -----
    Gradients are views of DDP's buckets, so they exist once. While micro-batches accumulate nothing is sent. Buckets
    are built anew after the first step, in the order in which gradients came.

    Source
    ------
    Li et al. 2020, arXiv:2006.15704.
    """

    phase: ClassVar[str] = "replicate"

    def active(self, layout: ParallelLayout) -> bool:
        return layout.uses("dp")

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        others = [kind() for kind in parallelisms().values() if kind is not type(self)]
        weights = local_weights(active_in(job.layout, others), job)
        sizes = [prod(weights[name]) * job.master_bytes for name in gradient_order(list(weights))]
        yield Traffic("dp", "all_reduce", num_buckets(sizes), sum(sizes))

    def apply(self, assembly: Assembly) -> None:
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(
            assembly.model,
            process_group=assembly.mesh.get_group("dp"),
            init_sync=False,  # the weights come from the seed on every rank
            gradient_as_bucket_view=True,
        )
        assembly.model = model
        assembly.accumulating.append(model.no_sync)
        # Dropping gradients between steps would let no_sync build a second set outside the buckets.
        assembly.keep_gradients = True


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
