"""What frameworks do in a step: one file each, found by its name.

A profile is where most of the accuracy is: how layers are laid over stages, what is kept for backward, in which dtype
gradients are reduced and when. Each names where that was read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, inf
from typing import Any, ClassVar

from clusterbench.discover import things
from clusterbench.errors import SuiteError, nearest
from clusterbench.job import TrainingJob
from clusterbench.layout import SHARD, ParallelLayout
from clusterbench.precision import MASTER
from clusterbench.pricing.work import StepWork


@dataclass(frozen=True)
class PricedJob:
    """A step that may be priced: a training job and where it runs.

    Attributes
    ----------
    chunks
        Of each pipeline rank; more than one is an interleaved schedule.
    recompute
        What backward computes again, in words of the table it comes from: ``none``, ``selective``, ``full``.
    options
        Of a case of ``train_step``, all that its point says.
    rank_order
        Which ranks are neighbours.
    is_gated
        Whether the feed-forward has three matrices; one of two stands as a gated one of two thirds of its width.
    dp_overlap
        Whether gradients are reduced behind backward and weights gathered behind forward; None where nobody says.
    reduce_dtype
        In which gradients are sent; empty where nobody says.
    """

    job: TrainingJob
    ranks_per_node: int
    chunks: int = 1
    recompute: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict)
    rank_order: str = "megatron"
    is_gated: bool = True
    dp_overlap: bool | None = None
    reduce_dtype: str = ""

    @property
    def num_micro_batches(self) -> int:
        """Forwards of a data-parallel rank in a step."""
        return self.job.gradient_accumulation_steps

    @property
    def shard_group_size(self) -> int:
        """Of HSDP, ranks that share one copy of the weights; 0 where all ranks with the same weights do."""
        return int(self.options.get("shard_group_size", 0))

    @property
    def replicas_have_a_network(self) -> bool:
        """Whether the groups of HSDP shard within a node, so that nothing but their copies' all-reduce leaves it."""
        ranks, layout = self.shard_group_size, self.job.layout
        where = self.ranks_per_node, self.rank_order
        return ranks > 0 and reach_of_shards(layout, SHARD, ranks, *where).nodes == 1

    @property
    def num_nodes(self) -> int:
        """That it runs on."""
        return ceil(self.job.layout.world_size / self.ranks_per_node)


BACKWARD = 2 / 3
"""Of a layer's products, those behind which the copies of HSDP add up the gradients that their groups have shared.

They do so on a stream of their own while weights are gathered and gradients shared within the groups, as the two use
other networks: pytorch/pytorch, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, FSDPCommContext.lazy_init.
"""


def sharing_words(priced: PricedJob) -> str:
    """How states are shared, as a profile that does not know it calls it."""
    size = priced.shard_group_size
    return f"HSDP, groups of {size} ranks that shard" if size else str(priced.job.layout.zero)


def objection_to_options(priced: PricedJob, knows_compiled: bool = False) -> str | None:
    """Why a case has no price: an option of which no rate is known; None where it has none such.

    Rates are of operators on a rank's own memory, of products in bfloat16 on a GPU, and of fused attention.

    Parameters
    ----------
    knows_compiled
        Whether it is known what the compiled layers of this case launch, read and write.
    """
    options, job = priced.options, priced.job
    if options.get("float8", "none") != "none":
        return "float8: no rate of products in it is known, and no price with FP8 was ever held against a measurement"
    if job.device == "cuda" and job.dtype != "bfloat16":
        return f"dtype {job.dtype}: rates of products on a GPU are those of bfloat16"
    if job.gradient_bytes != job.master_bytes:
        return f"gradient_dtype {job.gradient_dtype}: bytes read to add and cast such gradients are not priced"
    if options.get("compile") and not knows_compiled:
        return "compile: what a compiled layer launches, reads and writes is not priced"
    if options.get("offload"):
        return "offload: what passes between host and GPU is not priced"
    if options.get("attention_backend") == "math":
        return "attention_backend math: the rate of attention is that of fused kernels"
    if options.get("compress") == "powersgd":
        return "compress powersgd: the products of its factors are not priced"
    if options.get("compress") == "topk":
        return "compress topk: finding the largest elements is not priced"
    return None


@dataclass(frozen=True)
class Profile(ABC):
    """A framework, as it is configured.

    Attributes
    ----------
    source
        Repository, commit and files in which it was read.
    usual_zero
        The stage of ZeRO that it has where nobody says.
    usual_dp_overlap
        What it takes of a step that does not say whether it hides gradients, in words; empty where it is no choice.
    usual_reduce_dtype
        In which it sends gradients where nobody says, if that is a choice; empty where it is float32 and none.
    precisions
        In which it can keep weights and moments, those of the most bytes first.
    """

    source: ClassVar[str]
    usual_zero: ClassVar[int] = 0
    usual_dp_overlap: ClassVar[str] = ""
    usual_reduce_dtype: ClassVar[str] = ""
    precisions: ClassVar[tuple[str, ...]] = (MASTER,)

    def objection(self, priced: PricedJob) -> str | None:
        """Why the framework cannot run this step, or why that cannot be priced; None where both can be."""
        return priced.job.objection() or objection_to_options(priced)

    @abstractmethod
    def work(self, priced: PricedJob) -> StepWork:
        """What a rank does in a step. Asked only where there is no objection."""

    @abstractmethod
    def memory(self, priced: PricedJob) -> Sequence[Mapping[str, float]]:
        """Bytes that a rank of each stage holds at most, by what they are. Asked only where there is no objection."""

    def held(self, priced: PricedJob, room: float = inf) -> float:
        """Bytes that a rank of the fullest stage holds at most; where that is more than ``room``, any figure above it.

        A search asks for many steps that fit no card: of those a profile need not find the fullest moment.
        """
        return max(sum(of.values()) for of in self.memory(priced))


def profiles() -> Mapping[str, type[Profile]]:
    """All profiles by name."""
    return things("clusterbench.pricing.profiles", Profile)


def named_profile(name: str) -> Profile:
    """A profile with its defaults.

    Raises
    ------
    SuiteError
        If there is none of this name.
    """
    if name not in profiles():
        raise SuiteError(f"no profile '{name}'.{nearest(name, profiles())}\nProfiles: {', '.join(sorted(profiles()))}.")
    return profiles()[name]()


@dataclass(frozen=True)
class Reach:
    """How many nodes a group lies on, and how many such groups the network of one of them has to serve at once."""

    nodes: int
    sharing: int


@lru_cache(maxsize=4096)  # of a layout it is asked with each micro-batch and each way to recompute
def reach(layout: ParallelLayout, axis: str, ranks_per_node: int, rank_order: str) -> Reach:
    """Where the group along an axis lies that is on most nodes.

    >>> reach(ParallelLayout.parse("dp8-tp4"), "dp", 8, "megatron")
    Reach(nodes=4, sharing=4)
    >>> reach(ParallelLayout.parse("dp7-tp2"), "tp", 7, "megatron")  # ranks 6 and 7
    Reach(nodes=2, sharing=7)
    """
    first = layout.members(axis, rank_order)
    if not _is_like_others(first, ranks_per_node):
        return _widest(layout.groups(axis, rank_order), ranks_per_node)
    return _reach(first, ranks_per_node)


@lru_cache(maxsize=4096)
def reach_of_shards(layout: ParallelLayout, axis: str, ranks: int, ranks_per_node: int, rank_order: str) -> Reach:
    """The same of groups that shard weights, of so many neighbours on the data axis, or of those that replicate these.

    >>> layout = ParallelLayout.parse("dp64+zero3")
    >>> [reach_of_shards(layout, axis, 8, 8, "megatron") for axis in ("shard", "replica")]
    [Reach(nodes=1, sharing=1), Reach(nodes=8, sharing=8)]
    """

    def parts(members: Sequence[int]) -> list[Sequence[int]]:
        number = len(members) // ranks
        if axis == SHARD:
            return [members[at * ranks : (at + 1) * ranks] for at in range(number)]
        return [members[at::number] for at in range(number)]

    first = parts(layout.members(layout.data_axis, rank_order))[0]
    if not _is_like_others(first, ranks_per_node):
        groups = layout.groups(layout.data_axis, rank_order)
        return _widest([part for group in groups for part in parts(group)], ranks_per_node)
    return _reach(first, ranks_per_node)


def _is_like_others(first: Sequence[int], ranks_per_node: int) -> bool:
    """Whether groups of this size and stride lie on nodes all alike: each within one, or evenly over whole ones."""
    stride = first[1] - first[0] if len(first) > 1 else 1
    span = stride * len(first)
    return (
        ranks_per_node % span == 0
        or stride % ranks_per_node == 0
        or (span % ranks_per_node == 0 and ranks_per_node % stride == 0)
    )


def _widest(groups: Sequence[Sequence[int]], ranks_per_node: int) -> Reach:
    """Of all groups: a ring is as slow as where it has the fewest GPUs of a node, and with them of its NICs."""
    on_nodes = [Counter(rank // ranks_per_node for rank in group) for group in groups]
    fewest = min((min(ranks.values()) for ranks in on_nodes if len(ranks) > 1), default=ranks_per_node)
    return Reach(max(map(len, on_nodes)), ranks_per_node // fewest)


def _reach(members: Sequence[int], ranks_per_node: int) -> Reach:
    of_node = sum(rank < ranks_per_node for rank in members)
    nodes = ceil(len(members) / of_node)
    return Reach(nodes, 1 if nodes == 1 else ranks_per_node // of_node)
