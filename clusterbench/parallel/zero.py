"""ZeRO stage 1: of the ranks that hold the same weights, each keeps the optimizer states of its share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapreplace
from math import prod
from typing import TYPE_CHECKING, ClassVar

from clusterbench.job import TrainingJob, is_spread_expert
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Parallelism, Traffic, held_sizes, without
from clusterbench.parallel._words import PhaseWords, Remark
from clusterbench.words import Word

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from clusterbench.model.assembly import Assembly


@dataclass(frozen=True, kw_only=True)
class ZeroOptimizer(Parallelism):
    """Shards optimizer states over dp and cp (torch's ZeroRedundancyOptimizer, behind DDP).

    Notes
    -----
    Whole weights are given to ranks, greedily by size; each rank updates its own and broadcasts them, a broadcast for
    each weight. The all-reduce of DDP and the broadcasts move 3N(d-1)/d; the paper's reduce-scatter and all-gather
    would move 2N(d-1)/d. Stages 2 and 3 are in fsdp.py.

    Source
    ------
    Rajbhandari et al. 2019, arXiv:1910.02054, sections 5.1 and 7.
    """

    phase: ClassVar[str] = "replicate"
    axis: ClassVar[str] = "dp"
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "ZeRO",
            "Zero redundancy optimizer: data-parallel ranks share out the optimizer's states (stage 1), the gradients "
            "too (stage 2) and the weights too (stage 3). Rajbhandari et al., arXiv:1910.02054.",
            r"zero\d*|ZeRO\d+",
        ),
    )
    modules: ClassVar[tuple[str, ...]] = ("torch.distributed.optim",)

    def active(self, layout: ParallelLayout) -> bool:
        return layout.zero == 1

    def objection(self, job: TrainingJob) -> str | None:
        experts_have_copies = job.layout.spreads_experts and job.layout.degree("edp") > 1
        if job.layout.degree("dp_cp") == 1 and not experts_have_copies:
            return "+zero1 shares optimizer states among ranks that hold the same weights, but dp and cp are 1"
        return None

    def states(self, states: dict[str, float], job: TrainingJob) -> dict[str, float]:
        most = [_most_of_a_rank(tuple(weights), ranks) for _, weights, ranks in self.sharers(job)]
        # the step counts stay with the weights: a few bytes, of the rank with most weights
        numel, counts = (sum(of_axes) for of_axes in zip(*most, strict=True))
        return states | {"optimizer_state": 2.0 * numel * job.moment_bytes + 4 * counts}

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        for axis, weights, ranks in self.sharers(job):
            if ranks > 1:
                yield Traffic(axis, "broadcast", len(weights), sum(weights) * job.master_bytes, during="share")

    def phases(self, layout: ParallelLayout, each: str) -> Iterable[PhaseWords]:
        yield PhaseWords(
            "share",
            "ZeRO: updated weights go to the other copies",
            "once a step",
            "Each rank has the optimizer states of some weights, has updated those, and sends them",
        )

    def remarks(self, layout: ParallelLayout) -> Iterable[Remark]:
        copies = layout.degree("dp_cp")
        if copies > 1:
            yield Remark(
                f"ZeRO 1 shares optimizer states among the {copies} ranks that would hold the same.",
                "Rajbhandari et al. 2019, arXiv:1910.02054, sections 5 and 7",
            )

    def keeps(self, layout: ParallelLayout) -> str:
        return "the optimizer states"

    def sharers(self, job: TrainingJob) -> Iterator[tuple[str, list[int], int]]:
        """Axis, sizes of the weights that are shared out along it, and among how many ranks."""
        experts, dense = list[int](), list[int]()
        for name, size, number in held_sizes(without(ZeroOptimizer, job.layout), job):
            sizes = experts if is_spread_expert(name, job) else dense
            sizes += [prod(size)] * number
        yield job.layout.data_axis, dense, job.layout.degree("dp_cp")
        if experts:
            yield "edp", experts, job.layout.degree("edp")

    def apply(self, assembly: Assembly) -> None:
        assembly.make_optimizer = lambda parameters, axis: _optimizer(assembly, parameters, axis)


def states_in_the_paper(job: TrainingJob) -> dict[str, str]:
    """What the paper's stages would hold of each of the states, which is not everywhere what PyTorch holds."""
    ranks, stage, own = job.layout.degree("dp_cp"), job.layout.zero, "ZeRO's paper (arXiv:1910.02054, section 5)"
    if not stage or ranks == 1:
        return {}
    share, whole = f"1/{ranks} of it", "whole on every rank"
    return {
        "parameters": f"{own}, stage {stage}: {share if stage == 3 else whole}",
        "gradients": f"{own}, stage {stage}: {share if stage >= 2 else whole}",
        "optimizer_state": f"{own}, stage {stage}: {share}",
    }


def shares_of(sizes: Iterable[int], ranks: int) -> list[list[int]]:
    """The weights, by their sizes, that each rank updates: largest first, each to the rank with least so far.

    Source: ``ZeroRedundancyOptimizer._partition_parameters``.

    >>> shares_of([5, 3, 3, 1], ranks=2)
    [[5, 1], [3, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    totals = [(0, rank) for rank in range(ranks)]  # a heap
    for size in sorted(sizes, reverse=True):
        total, rank = totals[0]
        shares[rank].append(size)
        heapreplace(totals, (total + size, rank))
    return shares


@lru_cache(maxsize=4096)  # in a plan many layouts leave a rank the same weights
def _most_of_a_rank(sizes: tuple[int, ...], ranks: int) -> tuple[int, int]:
    """The most elements that one rank updates, and the most weights."""
    shares = shares_of(sizes, ranks)
    return max(map(sum, shares)), max(map(len, shares))


def _optimizer(assembly: Assembly, parameters: Sequence[nn.Parameter], axis: str) -> Optimizer:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from clusterbench.model.assembly import adamw, adamw_of

    job = assembly.job
    if job.layout.degree(axis) == 1:
        return adamw(parameters, job, assembly.rounding)
    group = assembly.grid.group(axis)
    kind, settings = adamw_of(job, assembly.rounding)
    return ZeroRedundancyOptimizer(parameters, kind, process_group=group, **settings)
