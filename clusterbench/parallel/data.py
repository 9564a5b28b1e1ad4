"""Data parallelism: ranks hold the same weights and see different tokens; gradients are averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import ceil, prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from clusterbench.job import TrainingJob, is_spread_expert
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Joined, Parallelism, Traffic, held_sizes, without
from clusterbench.parallel._words import AFTER_BACKWARD, Meaning, PhaseWords
from clusterbench.shape import ModelShape
from clusterbench.words import Word

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import GradBucket
    from torch.distributed import ProcessGroup
    from torch.nn.parallel import DistributedDataParallel

    from clusterbench.model.assembly import Assembly
    from clusterbench.model.buckets import BucketedModel
    from clusterbench.model.decoder import Decoder

ONE_BUCKET_MB = 2**20
# torch.distributed._DEFAULT_FIRST_BUCKET_BYTES and the default of DDP's bucket_cap_mb.
FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20
BUCKET_MB_OF_TWIN = 2**-4

# PowerSGDState's default, and the earliest step it takes: DDP builds its buckets anew after the first.
WORTH_COMPRESSING = 2
STEPS_BEFORE_COMPRESSION = 2
FULL_RANK = 2**20
# float32's smallest normal number: a gradient of zeros, as of the router of one expert, is not divided by its norm.
SMALLEST = 2**-126

AVERAGED = "Ranks with the same weights have seen different tokens: their gradients are averaged"


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
    Li et al. 2020, arXiv:2006.15704. Vogels et al. 2019, arXiv:1905.13727 (PowerSGD). Lin et al. 2018, arXiv:1712.01887
    (the largest elements).
    """

    phase: ClassVar[str] = "replicate"
    axis: ClassVar[str] = "dp"
    speaks: ClassVar[str] = "once a step, which backward can hide"
    meanings: ClassVar[Mapping[str, Meaning]] = {
        "dp": Meaning(
            "data parallelism",
            "hold the same weights, or share them out as ZeRO says, and see other sequences",
            "gradients once a step, and with ZeRO weights; computation can hide it",
            "Li et al. 2020, arXiv:2006.15704; Rajbhandari et al. 2019, arXiv:1910.02054",
            "{n} times the sequences in a step, with messages that can travel while backward computes",
            "nothing is cut without ZeRO, and the batch has to be large enough to share",
        ),
        "dp_cp": Meaning(
            "all copies of the dense weights",
            "hold the same dense weights: dp and cp together",
            "gradients of dense weights once a step",
            "Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2",
        ),
    }
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "DP",
            "Data parallelism: copies of the model compute different sequences and average their gradients in every "
            "step. Li et al., arXiv:2006.15704.",
            r"dp\d*|DP\d+",
        ),
        Word(
            "DDP",
            "Distributed data parallel: PyTorch's data parallelism without sharding. Li et al., arXiv:2006.15704.",
        ),
    )

    compress: str = option(
        "none",
        "what DDP sends of gradients: bf16 rounds them; from the third step on powersgd sends low-rank factors, topk "
        "the largest elements, and what these lack is added in the next step",
        choices=("none", "bf16", "powersgd", "topk"),
        label="{} gradients",
        alters="update",
    )
    powersgd_rank: int = option(
        1, "columns of each factor of powersgd", minimum=1, maximum=FULL_RANK - 1, alters="update"
    )
    topk_share: float = option(
        0.01,
        "share of the elements of each gradient that topk sends",
        minimum=1e-6,
        maximum=0.5,
        alters="update",
        is_later=True,
    )
    bucket_mb: float | None = None
    """Size of DDP's buckets in MiB; None leaves it to DDP. No option of a suite: a twin has several buckets by it."""

    def active(self, layout: ParallelLayout) -> bool:
        return layout.degree("dp_cp") > 1 and not layout.shards_gradients

    def concerned(self, layout: ParallelLayout, shape: ModelShape) -> bool:
        return self.active(layout) or self.compress != "none"

    def objection(self, job: TrainingJob) -> str | None:
        if self.compress != "none" and job.layout.uses("pp"):
            return f"compress {self.compress} is a hook of DDP, without which pp{job.layout.pp} reduces gradients"
        if self.compress != "none" and job.gradient_bytes == 2:
            by = f"precision {job.precision}" if job.master_bytes == 2 else f"gradient_dtype {job.gradient_dtype}"
            return f"compress {self.compress} rounds float32 gradients; with {by} they are bfloat16"
        if self.compress == "topk":
            return self._too_large(job)
        return None

    def _too_large(self, job: TrainingJob) -> str | None:
        sizes = held_sizes(without(DataParallel, job.layout), job)
        name, numel = max(((name, prod(size)) for name, size, _ in sizes), key=lambda item: item[1])
        bits = 8 * job.gradient_bytes  # of a place, which travels beside its value
        if numel < 2 ** (bits - 1):
            return None
        return f"compress topk sends places as int{bits}, and {name} has {numel:,} elements"

    def hides_activations(self, job: TrainingJob) -> str:
        # measured: 12.7 % more than kept elements and activations with a share of 0.1
        if self.compress == "topk":
            return "topk orders each gradient, and holds what ranks send of a bucket, while backward goes on"
        return ""

    def hides_total(self, job: TrainingJob) -> str:
        return "powersgd makes factors and errors in buffers of its own" if self.compress == "powersgd" else ""

    def needs_data(self, job: TrainingJob) -> str:
        if self.compress == "powersgd":
            return "compress powersgd reduces in callbacks of other reductions, which a dry run does not reach"
        if self.compress == "topk":
            return "compress topk adds values where the places say that came with them"
        return ""

    def rounding(self, dtype: str) -> float:
        if self.compress == "powersgd":
            # measured: making as many columns as a matrix has orthogonal, one after the other, loses half of the digits
            return 2**-8 if dtype != "float64" else 0.0
        # 8 bits of significand, rounded once on each rank and once in the sum
        return 2**-7 if self.compress == "bf16" else 0.0

    @property
    def sent_as(self) -> str:
        return "bfloat16" if self.compress == "bf16" else ""

    @property
    def multiplies(self) -> bool:
        return self.compress == "powersgd"  # one factor in backward, the other in a callback of its all-reduce

    def for_proof(self) -> Self:
        # With as many columns as a matrix has, its factors are exact: what is proven is that they are the right ones.
        # Of all elements topk sends the gradient.
        rank = FULL_RANK if self.compress == "powersgd" else self.powersgd_rank
        share = 1.0 if self.compress == "topk" else self.topk_share
        return replace(self, powersgd_rank=rank, topk_share=share, bucket_mb=BUCKET_MB_OF_TWIN)

    @property
    def approximates(self) -> bool:
        return self.compress in ("powersgd", "topk")

    @property
    def largest_share(self) -> float:
        return self.topk_share if self.compress == "topk" else 0.0

    def exact(self) -> Self:
        return replace(self, compress="none") if self.compress == "bf16" else self

    def sums(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        return (job.layout.data_axis,) if job.layout.uses("pp") and not is_spread_expert(name, job) else ()

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        if self.compress == "topk":
            return held | {"topk.kept": float(sum(self._in_order(job, prod)) * job.master_bytes)}
        if self.compress != "powersgd":
            return held
        whole = self._in_order(job, prod)
        factors = self._in_order(job, self._numel_sent)
        sent_as_factors = sum(numel for numel, of_weight in zip(factors, whole, strict=True) if numel < of_weight)
        return held | {
            "powersgd.error": float(sum(whole) * job.master_bytes),
            "powersgd.factors": float(sent_as_factors * job.master_bytes),
        }

    def _numel_sent(self, size: tuple[int, ...]) -> int:
        return factor_numel(size, self.powersgd_rank)

    def _in_order(self, job: TrainingJob, numel_of: Callable[[tuple[int, ...]], int]) -> list[int]:
        """A number by the size of each weight that DDP reduces, in the order in which backward finishes them."""
        sizes = held_sizes(without(DataParallel, job.layout), job)
        numel = {name: numel_of(size) for name, size, _ in sizes if not is_spread_expert(name, job)}
        names, layer = list(numel), [name for name in numel if name.startswith("layers.")]
        first = names.index(layer[0])
        order = gradient_order([*names[:first], *layer * job.num_layers, *names[first + len(layer) :]])
        return [numel[name] for name in order]

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        if job.layout.uses("pp"):
            return
        gradient_bytes = job.gradient_bytes
        sizes = self._in_order(job, lambda size: prod(size) * gradient_bytes)
        axis, buckets = job.layout.data_axis, num_buckets(sizes)
        if self.compress == "powersgd":
            # in one bucket what is not worth it, and two factors of what is
            numbers = sum(self._in_order(job, self._numel_sent))
            yield Traffic(axis, "all_reduce", 3, numbers * job.gradient_bytes, during="reduce")
        elif self.compress == "topk":
            numbers = sum(self._in_order(job, lambda size: num_sent(prod(size), self.topk_share)))
            of_all = job.layout.degree(axis) * numbers
            yield Traffic(axis, "all_gather", buckets, of_all * 2 * job.gradient_bytes, during="reduce")
        elif self.compress == "bf16":
            yield Traffic(axis, "all_reduce", buckets, sum(sizes) * 2 // job.gradient_bytes, during="reduce")
        else:
            yield Traffic(axis, "all_reduce", buckets, sum(sizes), during="reduce")

    def joins_calls(self, job: TrainingJob) -> Iterable[Joined]:
        if job.layout.uses("pp"):
            return
        axis, op = job.layout.data_axis, "all_gather" if self.compress == "topk" else "all_reduce"
        if self.compress == "powersgd" or job.gradient_bytes != job.master_bytes:  # in buckets of two dtypes
            yield Joined(axis, op)
            return
        sizes = self._in_order(job, lambda size: prod(size) * job.gradient_bytes)
        number, (least, most) = num_buckets(sizes), fewest_and_most_buckets(sizes)
        yield Joined(axis, op, number - least, most - number)  # DDP fills buckets as gradients come

    def copies(self, job: TrainingJob) -> list[float]:
        """Bytes of each bucket's copy in which gradients travel; none where they travel in place, uncompressed."""
        if self.compress != "bf16":
            return []
        sizes = self._in_order(job, lambda size: prod(size) * job.gradient_bytes)
        return [size_bytes * 2 / job.gradient_bytes for size_bytes in buckets(sizes)]

    def phases(self, layout: ParallelLayout, each: str) -> Iterable[PhaseWords]:
        title, when = "Gradients are averaged", "while the last backward runs, in buckets"
        yield PhaseWords("reduce", title, when, AVERAGED)
        yield PhaseWords(f"sum_{layout.data_axis}", title, AFTER_BACKWARD, AVERAGED)

    def apply(self, assembly: Assembly) -> None:
        from clusterbench.engine.compat import leave_to_others

        job = assembly.job
        if job.layout.uses("pp"):
            return
        decoder = assembly.decoders[0]
        reduced = {weight.graded_name for weight in assembly.weights if not is_spread_expert(weight.name, job)}
        others = (name for name, _ in decoder.named_parameters() if name not in reduced)
        # of buffers there are only copies of weights, which every rank rounds for itself
        leave_to_others(decoder, [*others, *(name for name, _ in decoder.named_buffers())])
        group = assembly.grid.group(job.layout.data_axis)
        model = self._replicated(decoder, group)
        self._compress(model, assembly, group)
        assembly.model = model
        assembly.accumulating.append(model.no_sync)
        # Dropping gradients between steps would let no_sync build a second set outside the buckets.
        assembly.keep_gradients = True

    def _replicated(self, decoder: Decoder, group: ProcessGroup) -> DistributedDataParallel | BucketedModel:
        from torch.nn.parallel import DistributedDataParallel

        from clusterbench.engine.compat import active_fake_mode
        from clusterbench.model.buckets import BucketedModel

        if active_fake_mode() is not None:
            return BucketedModel(decoder, group, [FIRST_BUCKET_BYTES, BUCKET_BYTES])
        return DistributedDataParallel(
            decoder,
            process_group=group,
            init_sync=False,  # the weights come from the seed on every rank
            gradient_as_bucket_view=True,
            # PowerSGD reduces from callbacks. Those of several buckets come in another order on each rank over Gloo,
            # and ranks then take each other's messages for their own.
            bucket_cap_mb=ONE_BUCKET_MB if self.compress == "powersgd" else self.bucket_mb,
        )

    def _compress(
        self, model: DistributedDataParallel | BucketedModel, assembly: Assembly, group: ProcessGroup
    ) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        from clusterbench.engine.compat import active_fake_mode
        from clusterbench.engine.fake_group import sends_nothing
        from clusterbench.model.top_k import TopK

        if self.compress == "bf16":
            # DDP would have this hook on NCCL only; Gloo sums bfloat16 just as well
            model.register_comm_hook(group, lambda group, bucket: bf16_compress_hook(group, bucket))
        elif self.compress == "powersgd":
            exact = self.powersgd_rank == FULL_RANK
            state = PowerSGDState(
                group,
                matrix_approximation_rank=self.powersgd_rank,
                start_powerSGD_iter=0 if exact else STEPS_BEFORE_COMPRESSION,
                min_compression_rate=0 if exact else WORTH_COMPRESSING,
                use_error_feedback=not exact,
                warm_start=not exact,
                orthogonalization_epsilon=SMALLEST if exact else 0,
            )
            if exact:
                model.register_comm_hook(state, lambda state, bucket: powerSGD_hook(state, _ThinByRows(bucket)))
            else:
                model.register_comm_hook(state, powerSGD_hook)
            assembly.unsent = partial(_mean_error, state.error_dict.values(), group)
        elif self.compress == "topk":
            whole_steps = 0 if self.topk_share == 1 else STEPS_BEFORE_COMPRESSION
            top_k = TopK(group, partial(num_sent, share=self.topk_share), whole_steps)
            model.register_comm_hook(None, lambda _, bucket: top_k.hook(bucket))
            assembly.unsent = partial(_mean_error, top_k.kept.values(), group)
        elif sends_nothing(group) and active_fake_mode() is None:
            # DDP asks the group for the result, of which a fake one has none
            model.register_comm_hook(group, allreduce_hook)


class _ThinByRows:
    """A bucket that hands over matrices of one or two rows or columns row by row.

    torch makes two columns orthogonal by Gram-Schmidt, which leaves rounding errors where one depends on the other, as
    in the gradient of a router of two experts: one gains what the other loses. As timed no such matrix is compressed,
    because its factors are no smaller.
    """

    def __init__(self, bucket: GradBucket) -> None:
        self._bucket = bucket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def gradients(self) -> list[Tensor]:
        gradients = self._bucket.gradients()
        each = (tensor.unbind() if tensor.ndim > 1 and min(tensor.shape) <= 2 else (tensor,) for tensor in gradients)
        return list(chain.from_iterable(each))


def _mean_error(kept: Iterable[Tensor], group: ProcessGroup) -> Tensor:
    """Of what each rank kept, in the order of DDP's buckets, which is the same on every rank. A collective."""
    import torch
    import torch.distributed as dist

    errors = [error.flatten() for error in kept]
    if not errors:  # as on every rank
        return torch.zeros(0)
    mean = torch.cat(errors)
    dist.all_reduce(mean, group=group)
    return mean / dist.get_world_size(group)


def factor_numel(size: tuple[int, ...], rank: int) -> int:
    """Elements PowerSGD sends of a gradient: two factors, or all of it where they are not less than half as many.

    Source: ``_should_compress`` in torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py.

    >>> factor_numel((512, 128), rank=2), factor_numel((128,), rank=2)
    (1280, 128)
    """
    rows, columns = size[0], prod(size[1:])
    factors = (rows + columns) * min(rows, columns, rank)
    return factors if factors * WORTH_COMPRESSING < rows * columns else rows * columns


def num_sent(numel: int, share: float) -> int:
    """Elements that topk sends of a gradient with so many: at least one.

    >>> num_sent(4096, share=0.01), num_sent(64, share=0.001)
    (41, 1)
    """
    return max(1, ceil(numel * share))


def gradient_order(names: list[str]) -> list[str]:
    """Weights in the order backward finishes their gradients: last used first; a tied embedding with the look-up."""
    return names[::-1]


def num_buckets(sizes: Iterable[int]) -> int:
    """All-reduces DDP makes of gradients of these sizes in bytes.

    >>> num_buckets([2**19, 2**19, 30 * 2**20, 10, 10])
    3
    """
    return len(buckets(sizes))


def fewest_and_most_buckets(sizes: Sequence[int]) -> tuple[int, int]:
    """How many buckets gradients of these sizes may fill, in whatever order they come.

    Each but the last has reached its limit, and went beyond it by the last gradient at most.

    >>> fewest_and_most_buckets([2**19, 2**19, 30 * 2**20, 10, 10])
    (2, 3)
    """
    in_all, largest = sum(sizes), max(sizes, default=0)
    behind_first = in_all - FIRST_BUCKET_BYTES
    fewest = 1 + max(0, -(-(behind_first - largest) // (BUCKET_BYTES + largest)))
    return fewest, 1 if behind_first < 0 else 2 + behind_first // BUCKET_BYTES


def buckets(sizes: Iterable[int]) -> list[int]:
    """Bytes of the buckets of gradients of these sizes: one is closed when it has reached its limit.

    Source: ``compute_bucket_assignment_by_size`` in torch/csrc/distributed/c10d/reducer.cpp.

    >>> buckets([2**19, 2**19, 10, 10])
    [1048576, 20]
    """
    closed, filled, limit = list[int](), 0, FIRST_BUCKET_BYTES
    for size in sizes:
        filled += size
        if filled >= limit:
            closed.append(filled)
            filled, limit = 0, BUCKET_BYTES
    return [*closed, filled] if filled else closed
