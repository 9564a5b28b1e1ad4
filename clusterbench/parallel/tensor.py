"""Tensor parallelism: every weight matrix cut over the ranks of tp, as in Megatron."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import RESULT, SENT, Parallelism, Slack, Traffic
from clusterbench.parallel._words import AFTER_BACKWARD, Meaning, PhaseWords, Remark, in_layers
from clusterbench.units import quotient
from clusterbench.words import Word

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    from clusterbench.model.assembly import Assembly

# Dimension of each weight that is cut: 0 gives each rank some outputs, 1 some inputs, whose products are then summed.
SPLIT_DIM = {
    "embedding": 0,
    "attention.query": 0,
    "attention.key": 0,
    "attention.value": 0,
    "attention.output": 1,
    "feed_forward.gate": 0,
    "feed_forward.up": 0,
    "feed_forward.down": 1,
    "head": 0,
}
SPLIT_ACTIVATIONS = frozenset(
    (
        "layer.attention.query",
        "layer.attention.key",
        "layer.attention.value",
        "layer.attention.output",
        "layer.attention.logsumexp",
        "layer.feed_forward.gate",
        "layer.feed_forward.silu",
        "layer.feed_forward.up",
        "layer.feed_forward.product",
    )
)


@dataclass(frozen=True, kw_only=True)
class TensorParallel(Parallelism):
    """Cuts heads, feed-forward and vocabulary over the ranks of tp (torch's ColwiseParallel and RowwiseParallel).

    Notes
    -----
    With fewer kv heads than ranks, keys and values are kept whole on every rank, which computes the head it needs;
    their gradients are parts then.

    These are torch's own styles, with what DTensor costs: a few dozen microseconds of Python for each operator and
    placement, which a GPU hides behind its kernels and a CPU with a small model does not. There a step takes about as
    long as any with ``parallelize_module``, and longer than one on local tensors: see tests/bench/tp2_by_hand.py. In
    compiled layers nothing is left of it: see tests/bench/tp2_compiled.py.

    Source
    ------
    Shoeybi et al. 2019, arXiv:1909.08053.
    """

    phase: ClassVar[str] = "tensor"
    axis: ClassVar[str] = "tp"
    speaks: ClassVar[str] = "in every layer, which waits for it"
    meanings: ClassVar[Mapping[str, Meaning]] = {
        "tp": Meaning(
            "tensor parallelism",
            "hold slices of the same layers and compute the same tokens together",
            "activations, in every layer, forward and backward: the most, and nothing hides it",
            "Shoeybi et al. 2019, arXiv:1909.08053",
            "every matrix, its gradient and its optimizer state are cut into {n} slices, and so is the work on them",
            "computation waits for messages in every layer, and the products get smaller",
        )
    }
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "TP",
            "Tensor parallelism: the weights of each layer are cut over the ranks of a group, which sum their parts in "
            "every layer; tp4 is a group of 4 ranks. Shoeybi et al., arXiv:1909.08053.",
            r"tp\d*|TP\d+",
        ),
    )

    loss_parallel: bool = option(
        True, "compute the loss on logits split over the vocabulary, in place of gathering them (tp)", alters="nothing"
    )

    def active(self, layout: ParallelLayout) -> bool:
        return layout.uses("tp")

    def objection(self, job: TrainingJob) -> str | None:
        tp, shape = job.layout.tp, job.shape
        for what, number in (
            ("attention heads", shape.num_heads),
            ("feed-forward channels", 0 if shape.has_experts else shape.ffn_hidden_size),
            ("rows of the vocabulary", shape.vocab_size),
        ):
            if number % tp:
                share = f"{number} / {tp} = {quotient(number, tp)}"
                return f"tp{tp} does not divide the {number} {what} of {shape.name}: {share}"
        larger, smaller = max(shape.num_kv_heads, tp), min(shape.num_kv_heads, tp)
        if larger % smaller:
            return (
                f"tp{tp} and the {shape.num_kv_heads} kv heads of {shape.name} do not divide one another: "
                f"{larger} / {smaller} = {quotient(larger, smaller)}"
            )
        return None

    def weight(self, name: str, size: tuple[int, ...], job: TrainingJob) -> tuple[int, ...]:
        dim = self._split_dim(name, job)
        return size if dim is None else (*size[:dim], size[dim] // job.layout.tp, *size[dim + 1 :])

    def multiplied(self, name: str, size: tuple[int, ...], job: TrainingJob) -> tuple[int, ...]:
        if self.sums(name, job):  # kept whole, but a rank computes the one kv head that its query heads need
            return job.shape.head_dim, *size[1:]
        return self.weight(name, size, job)

    def attention_heads(self, heads: int, job: TrainingJob) -> int:
        return heads // job.layout.tp

    def splits(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        return () if self._split_dim(name, job) is None else ("tp",)

    def sums(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        return ("tp",) if _replicates_kv(job) and _is_kv(name) else ()

    def _split_dim(self, name: str, job: TrainingJob) -> int | None:
        return None if self.sums(name, job) else _split_dim_of(name)

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        if self.loss_parallel and job.has_head:
            # the logits minus their maximum, which live while their exponentials are summed over tp
            held = held | {"loss.shifted": held["loss.log_softmax"]}
        tp, num_kv_heads = job.layout.tp, job.shape.num_kv_heads
        # behind attention; of those behind the feed-forward backward reads none
        sums = float(job.num_layers * crossing_bytes(job) // job.layout.sequence_parts)
        held = held | {f"{RESULT}{SENT}sums": sums * job.layout.cp}  # sizes are those of all tokens until cp cuts them
        return {
            name: size_bytes / _ranks_sharing(name, tp, num_kv_heads, self.loss_parallel)
            for name, size_bytes in held.items()
        }

    def slack(self, job: TrainingJob) -> Iterable[Slack]:
        in_flight = sum(job.order.in_flight.values()) if job.order else 1
        stream = job.local_tokens * job.shape.hidden_size * job.compute_bytes
        yield Slack(float(in_flight * stream), "DTensor holds the residual stream of each micro-batch once more")
        if job.has_head and not self.loss_parallel and job.device == "cpu":  # the part of a rank, and all as they came
            logits = float(job.local_tokens * job.shape.vocab_size * job.compute_bytes)
            yield Slack(logits / job.layout.tp, "gathered logits that Gloo lets go late", logits)

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        forwards, tokens = job.gradient_accumulation_steps * job.has_head, job.local_tokens
        if not job.layout.sp:  # with it, the same places are crossed by other collectives: see sequence.py
            yield from crossing_traffic(job, "all_reduce", entering="backward_tp", leaving="forward_tp")
        if self.loss_parallel:
            # the softmax over split logits: the maximum, the sum of exponentials, and the logit of the label, which one
            # rank has; all in forward, in float32 at least
            calls = forwards * 3
            yield Traffic("tp", "all_reduce", calls, calls * tokens * max(4, job.compute_bytes), during="loss")
        else:
            # the head gathers its logits; in backward each rank cuts its part out of the gradient
            size_bytes = tokens * job.shape.vocab_size * job.compute_bytes
            yield Traffic("tp", "all_gather", forwards, forwards * size_bytes, during="loss")

    def forward_traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        if not job.layout.sp:
            # Recomputing a layer repeats its collectives but the last: nothing after `down` is needed for backward.
            calls = job.gradient_accumulation_steps * job.num_layers
            # out of attention
            yield Traffic("tp", "all_reduce", calls, calls * crossing_bytes(job), during="forward_tp")

    def phases(self, layout: ParallelLayout, each: str) -> Iterable[PhaseWords]:
        if not layout.sp:
            for way, what in (("Forward", "activations"), ("Backward", "gradients of activations")):
                yield slices_work_together(way, each, f"The parts that each slice gives of the {what} are summed")
        yield PhaseWords(
            "loss",
            "Loss: over the split vocabulary",
            f"once for {each}" + (", on the last stage" if layout.uses("pp") else ""),
            f"Each rank has the logits of 1/{layout.tp} of the vocabulary: of every token the largest logit, the sum "
            "of exponentials and the label's logit are put together",
        )
        yield PhaseWords(
            "sum_tp",
            "Gradients of what tp does not cut are summed",
            AFTER_BACKWARD,
            "Norms, and other weights that are whole on every rank of tp, have seen a part of the work on each",
        )

    def remarks(self, layout: ParallelLayout) -> Iterable[Remark]:
        tp, pp = layout.tp, layout.pp
        if not layout.sp:
            yield Remark(
                f"Without +sp, norms and residuals are kept whole on all {tp} ranks; with it they would be cut for as "
                "many bytes.",
                "Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2",
            )
        if pp > 1:
            yield Remark(
                f"tp{tp} x pp{pp} cut the model into {tp * pp} parts. Slices as far as a server reaches, then stages: "
                "a stage sends once a micro-batch what slices send several times in every layer.",
                "Narayanan et al. 2021, arXiv:2104.04473, section 3.2",
            )
        if layout.dp > 1:
            yield Remark(
                f"Each rank averages the gradients of its own slice, 1/{tp} of them; slices send in every "
                "micro-batch, copies once a step.",
                "Narayanan et al. 2021, arXiv:2104.04473, section 3.3.2",
            )
        if layout.dp > 1 and layout.shards_gradients:
            yield Remark(
                "Slices exchange activations, which computation waits for: they belong within a node. Shards exchange "
                "weights, which can be fetched ahead: they may go over the network.",
                "Zhao et al. 2023, arXiv:2304.11277, section 7.1.2",
            )

    def apply(self, assembly: Assembly) -> None:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            PrepareModuleInputOutput,
            RowwiseParallel,
            loss_parallel,
        )

        job = assembly.job
        # How the residual stream lies between the regions: whole on every rank, or cut along the sequence.
        outside = Shard(1) if job.layout.sp else Replicate()
        logits = Shard(-1) if self.loss_parallel else Replicate()
        kv = _key_value_style(job) if _replicates_kv(job) else ColwiseParallel()
        # The input is made a DTensor once per region, not once per projection: its gradient is then summed over q, k, v
        # (or gate and up) before it is reduced, in one collective where torch's bare styles would issue one for each.
        plan: dict[str, ParallelStyle] = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=outside),
            "layers.*.attention": PrepareModuleInput(
                input_layouts=(outside, None, None), desired_input_layouts=(Replicate(), None, None)
            ),
            "layers.*.attention.query": ColwiseParallel(),
            "layers.*.attention.key": kv,
            "layers.*.attention.value": kv,
            "layers.*.attention.output": RowwiseParallel(output_layouts=outside),
        }
        if not job.shape.has_experts:
            plan |= {
                "layers.*.feed_forward": PrepareModuleInput(
                    input_layouts=(outside,), desired_input_layouts=(Replicate(),)
                ),
                "layers.*.feed_forward.gate": ColwiseParallel(),
                "layers.*.feed_forward.up": ColwiseParallel(),
                "layers.*.feed_forward.down": RowwiseParallel(output_layouts=outside),
            }
        if job.shape.tied_embeddings:
            # The weight is the embedding's, cut already; only the activations are to be arranged.
            plan["head"] = PrepareModuleInputOutput(
                input_layouts=(outside,),
                desired_input_layouts=(Replicate(),),
                output_layouts=(Shard(-1),),
                desired_output_layouts=(logits,),
                use_local_output=not self.loss_parallel,
            )
        else:
            plan["head"] = ColwiseParallel(
                input_layouts=outside, output_layouts=logits, use_local_output=not self.loss_parallel
            )
        assembly.parallelize("tp", plan)
        if self.loss_parallel:
            assembly.contexts.append(loss_parallel)


def crossing_traffic(job: TrainingJob, op: str, entering: str, leaving: str) -> Iterator[Traffic]:
    """One collective at every edge of split regions, in the phase in which they are entered or that in which left.

    As many are entered as left, but for the model's ends.
    """
    every = crossings(job)
    entered = (every + job.has_head - job.embeds) // 2
    for during, times in ((entering, entered), (leaving, every - entered)):
        calls = job.gradient_accumulation_steps * times
        yield Traffic("tp", op, calls, calls * crossing_bytes(job), during=during)


def slices_work_together(way: str, each: str, what: str) -> PhaseWords:
    """The phase in which the regions of split weights send, ``Forward`` or ``Backward``."""
    return PhaseWords(f"{way.lower()}_tp", f"{way}: slices of weights work together", in_layers(each), what)


def crossings(job: TrainingJob) -> int:
    """How often a forward enters a region of split weights, and how often it leaves one, together.

    Entered are attention, feed-forward and the head; left are the embedding, attention and feed-forward. Experts are no
    such region: each is whole on one rank.
    """
    regions = 1 if job.shape.has_experts else 2
    return 2 * regions * job.num_layers + job.embeds + job.has_head


def crossing_bytes(job: TrainingJob) -> int:
    """The residual stream of one micro-batch: what each crossing sends.

    Without sequence parallelism, leaving sums the parts (one all_reduce in forward) and entering sums their gradients
    (one all_reduce in backward).
    """
    return job.local_tokens * job.shape.hidden_size * job.compute_bytes


@cache  # a plan asks for every name ten thousand times
def _ranks_sharing(name: str, tp: int, num_kv_heads: int, loss_parallel: bool) -> int:
    """Among how many ranks of tp an entry of :func:`clusterbench.job.activations` is cut."""
    if name.startswith("loss."):
        return tp if loss_parallel else 1
    if name in ("layer.attention.key", "layer.attention.value"):
        return min(tp, num_kv_heads)
    return tp if name in SPLIT_ACTIVATIONS else 1


def _replicates_kv(job: TrainingJob) -> bool:
    return job.shape.num_kv_heads < job.layout.tp


def _is_kv(name: str) -> bool:
    return name.endswith(("attention.key.weight", "attention.value.weight"))


@cache
def _split_dim_of(name: str) -> int | None:
    """The dimension in which a weight of this name is cut; None for one that is kept whole."""
    return next((dim for module, dim in SPLIT_DIM.items() if name.endswith(f"{module}.weight")), None)


def _key_value_style(job: TrainingJob) -> ParallelStyle:
    """A projection kept whole on every rank, of which each computes only the kv head its query heads need."""
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial
    from torch.distributed.tensor.parallel import ParallelStyle

    class ReplicatedKeyValue(ParallelStyle):
        def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
            head = device_mesh.get_local_rank() * job.shape.num_kv_heads // job.layout.tp
            rows = slice(head * job.shape.head_dim, (head + 1) * job.shape.head_dim)

            def forward(x: DTensor) -> Tensor:
                # Nothing else than this head reaches the loss on this rank, so both gradients are parts of the sum
                # over tp.
                local = x.to_local(grad_placements=[Partial()])
                weight: Tensor = module.weight  # type: ignore[assignment]
                product: Callable[[Tensor, Tensor], Tensor] = module.product  # type: ignore[assignment]
                return product(local, weight[rows].to(local.dtype))

            module.forward = forward
            return module

    return ReplicatedKeyValue()
