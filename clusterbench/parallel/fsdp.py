"""ZeRO stages 2 and 3: gradients, and parameters too, are sharded over the ranks that would repeat them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from clusterbench.job import Chunk, TrainingJob, backward, is_spread_expert
from clusterbench.job.backward import Sharding
from clusterbench.layout import REPLICA, SHARD, ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Parallelism, Traffic, held_sizes, without
from clusterbench.parallel._words import PhaseWords, Remark
from clusterbench.parallel.data import AVERAGED
from clusterbench.shape import ModelShape
from clusterbench.torch_release import adds_up_in_parameters, holds_gathered_before
from clusterbench.words import Word

if TYPE_CHECKING:
    from torch import nn

    from clusterbench.model.assembly import Assembly, Weight


@dataclass(frozen=True, kw_only=True)
class FullySharded(Parallelism):
    """Shards gradients (stage 2) and parameters (stage 3) over dp and cp (torch's FSDP2, ``fully_shard``).

    Notes
    -----
    Each layer is a group of its own, and so are embedding and head; the last norm is alone in that of the whole model.
    A tied table, which is both, is in it, too, and so are embedding, norm and head of a pipeline's stages, which have
    no more than one end of the model each.

    FSDP2 keeps parameters sharded between steps in both stages, where the paper's stage 2 keeps them whole: in stage 2
    what was gathered for forward stays until backward is through with it, in stage 3 it is freed after each layer and
    gathered again, which makes 1.5 times the traffic. An embedding that is a group of its own is freed after forward in
    both, and not gathered again, as its backward reads no weights. Gradients are reduced in every micro-batch, so that
    they are never all whole on a rank.

    Source
    ------
    Rajbhandari et al. 2019, arXiv:1910.02054, sections 5 and 7. Zhao et al. 2023, arXiv:2304.11277.
    """

    phase: ClassVar[str] = "shard"
    axis: ClassVar[str] = "dp"
    speaks: ClassVar[str] = "in every layer, but ahead of need"
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "FSDP",
            "Fully sharded data parallel: PyTorch's ZeRO stage 3. Zhao et al., arXiv:2304.11277.",
            r"fsdp\d*|FSDP\d+",
        ),
        Word(
            "HSDP", "Hybrid sharded data parallel: FSDP within groups of ranks, with copies of the model across them."
        ),
    )

    offload: bool = option(
        False, "keep parameters, gradients and optimizer states in host memory (zero2, zero3)", alters="nothing"
    )
    shard_group_size: int = option(
        0,
        "ranks that share one copy of the weights, while others replicate it (HSDP; zero2, zero3); 0 is all of them",
        unit="ranks",
        minimum=0,
        maximum=2**20,
        label="groups of {}",
        alters="nothing",
    )

    @property
    def ranks_of(self) -> Mapping[str, int]:
        return {SHARD: self.shard_group_size} if self.shard_group_size else {}

    def active(self, layout: ParallelLayout) -> bool:
        return layout.shards_gradients

    def objection(self, job: TrainingJob) -> str | None:
        layout, ranks, size = job.layout, job.layout.degree("dp_cp"), self.shard_group_size
        if ranks == 1:
            return f"+zero{layout.zero} shards over ranks that hold the same weights, but dp and cp are 1"
        if size and (ranks % size or size in (1, ranks)):
            return (
                f"shard_group_size {size} has to be a divisor of the {ranks} ranks of dp x cp, more than 1 and fewer "
                "than all"
            )
        if size and layout.spreads_experts:
            return f"shard_group_size {size} and +ep{layout.ep}: the expert grid has its own copies, of another size"
        if self.offload and layout.spreads_experts and layout.degree("edp") == 1:
            return (
                f"offload and +ep{layout.ep}: each expert is on one rank alone, so FSDP does not shard it, and nothing "
                "would bring it from host memory to the card; with a smaller ep FSDP shards it"
            )
        if job.gradient_bytes != job.master_bytes and layout.uses("pp"):
            return (
                f"gradient_dtype {job.gradient_dtype} and +zero{layout.zero} in a pipeline: FSDP then adds up whole "
                "gradients over micro-batches, and in what dtype no formula here follows; +zero1 does not"
            )
        return None

    def keeps_on_host(self, job: TrainingJob) -> bool:
        return self.offload and job.device == "cuda"  # on CPUs all of a step is in host memory

    def hides_total(self, job: TrainingJob) -> str:
        if self.keeps_on_host(job):
            return "offload moves states to the host and back, and the formula does not say when"
        if job.layout.uses("pp"):  # measured is up to 4 % more or less, dry runs hold up to 12 % less
            return "FSDP gathers and reduces stages of a pipeline one after the other, which no formula follows"
        return ""

    def _sharers(self, job: TrainingJob) -> int:
        return self.shard_group_size or job.layout.degree("dp_cp")

    def _shards(self, name: str, job: TrainingJob) -> int:
        """Among how many ranks a weight is shared."""
        return job.layout.degree("edp") if is_spread_expert(name, job) else self._sharers(job)

    def weight(self, name: str, size: tuple[int, ...], job: TrainingJob) -> tuple[int, ...]:
        return (-(-size[0] // self._shards(name, job)), *size[1:])

    def lacking(self, size: tuple[int, ...], job: TrainingJob, place: int) -> int:
        """Elements of a dense weight that a rank has less of than the first of those that share it.

        Parameters
        ----------
        size
            Of what they share.
        place
            Of the rank, among all with the same dense weights.
        """
        ranks = self._sharers(job)
        share = -(-size[0] // ranks)
        own = min(share, max(0, size[0] - place % ranks * share))
        return (share - own) * prod(size[1:])

    def multiplied(self, name: str, size: tuple[int, ...], job: TrainingJob) -> tuple[int, ...]:
        return size  # gathered by then

    def splits(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        if is_spread_expert(name, job):
            return ("edp",) if job.layout.degree("edp") > 1 else ()
        return (SHARD,) if self.shard_group_size else (job.layout.data_axis,)

    def gathered(self, states: dict[str, float], job: TrainingJob, active: Sequence[Parallelism]) -> dict[str, float]:
        if job.layout.uses("pp"):
            return states | self._gathered_by_stages(states, job)
        layer, num_layers, root, embedding, head = self._groups(job, *job.held)
        of_layer = sum(group.padded for group in layer)
        of_forward = num_layers * of_layer + head.padded if job.layout.zero == 2 else max(of_layer, head.padded)
        at_once = root.padded + max(embedding.padded, of_forward)
        # A head that is a group of its own is reduced at once; in the root its gradient is there first, and waits for
        # all others of it. Shares add up meanwhile; from the second micro-batch on all are there from the start.
        shares = (num_layers * sum(group.share for group in layer) + head.share) * job.master_bytes
        at_root = (root.whole + embedding.whole) * job.compute_bytes
        if any(each.fuses_loss for each in active) and _widens_table(job):
            at_root += job.shape.vocab_size * job.shape.hidden_size * (job.gradient_bytes - job.compute_bytes)
        if job.gradient_accumulation_steps > 1:
            in_layers = root.behind_layers + max(group.whole for group in layer)
            most = max(in_layers, head.whole) * job.compute_bytes
            gradients = states["gradients"] + max(most, at_root)
        else:
            reduced = (root.share + embedding.share) * job.master_bytes
            never_sharded = states["gradients"] - shares - reduced
            # the gradient of the last weight is let go after the share of all has been made
            last = reduced + (embedding.last or root.last) * job.compute_bytes
            beside = root.behind_layers * job.compute_bytes + _beside_shares(layer, job)
            gradients = never_sharded + shares + max(beside, at_root, last)
        return states | {
            "parameters": states["parameters"] + at_once * job.compute_bytes,
            "gradients": gradients,
        }

    def _gathered_by_stages(self, states: dict[str, float], job: TrainingJob) -> dict[str, float]:
        """With pipeline stages: a schedule gathers for backward, and lets go at a stage's end, when it reduces."""
        groups = {chunk.stage: self._groups(job, chunk) for chunk in job.held}
        gathered = {stage: of.total(lambda group: group.padded) * job.compute_bytes for stage, of in groups.items()}
        around = {stage: of.root.padded * job.compute_bytes for stage, of in groups.items()}
        whole = {stage: of.total(lambda group: group.whole) * job.master_bytes for stage, of in groups.items()}
        if job.order is None:  # naive: one stage, reduced after each micro-batch and added to what is there
            return {
                "parameters": states["parameters"] + sum(gathered.values()),
                "gradients": states["gradients"] + sum(whole.values()),
            }
        shares = {stage: of.total(lambda group: group.share) * job.master_bytes for stage, of in groups.items()}
        begin = {stage: first for stage, (first, _) in job.order.backwards.items()}
        end = {stage: last for stage, (_, last) in job.order.backwards.items()}
        kept_from = begin if job.layout.zero == 3 else dict.fromkeys(begin, 0)
        # experts that are spread over all copies: they are whole, from the first backward of their stage on
        alone = states["gradients"] - sum(shares.values())
        layers = {stage: of.num_layers for stage, of in groups.items()}
        never_sharded = {stage: alone * number / sum(layers.values()) for stage, number in layers.items()}
        at_once, gradients = 0.0, 0.0
        for stage, over in end.items():
            layer, root = groups[stage].layer, groups[stage].root  # the root is reduced first, while all is there
            # its share comes when all of its gradients but the last have gone
            reducing = max(0, root.share - (root.whole - root.last)) * job.master_bytes
            # What accumulates is in the precision of the reduction; a layer's gradients are rounded beside it, and
            # those of norm and head until backward is through.
            is_rounded = job.compute_bytes != job.master_bytes and not adds_up_in_parameters()
            rounding = max(root.behind_layers + max(group.whole for group in layer), root.whole) * job.compute_bytes
            kept = sum(gathered[other] for other in end if kept_from[other] <= over <= end[other])
            # what is around the layers a forward leaves as it is, before any backward of its stage
            at_once = max(at_once, kept + sum(around[other] for other in end if over < kept_from[other]))
            # also while another stage, which is over before this one, is not reduced yet
            for at in [over, *(before for before in end.values() if begin[stage] < before < over)]:
                beside = max(is_rounded * rounding, reducing * (at == over))
                unreduced = sum(whole[other] for other in end if begin[other] <= at <= end[other])
                reduced = sum(shares[other] for other in end if end[other] < at)
                whole_for_good = sum(never_sharded[other] for other in end if begin[other] <= at)
                gradients = max(gradients, unreduced + reduced + whole_for_good + beside)
        return {"parameters": states["parameters"] + at_once, "gradients": gradients}

    def sharding(self, job: TrainingJob, chunk: Chunk) -> Sharding:
        """How the weights of a chunk come and go, in bytes."""
        groups = self._groups(job, chunk)

        def in_bytes(group: Group) -> backward.Group:
            packed = group.padded * job.gradient_bytes
            whole = group.whole * job.compute_bytes
            return backward.Group(
                gathered=group.padded * job.compute_bytes,
                gradients=whole,
                packed=packed,
                reduced=group.share * job.gradient_bytes,
                share=group.share * job.master_bytes,
                last=group.last * job.compute_bytes,
            )

        return Sharding(
            layer=[*map(in_bytes, groups.layer)],
            root=in_bytes(groups.root),
            embedding=in_bytes(groups.embedding),
            head=in_bytes(groups.head),
            frees=job.layout.zero == 3,
            holds_before=holds_gathered_before(),
            copies=job.device == "cpu",
            by_stage=job.layout.uses("pp"),
            in_parameters=adds_up_in_parameters(),
            growth=job.master_bytes / job.compute_bytes,
            widens_table=_widens_table(job),
            replicates=self.shard_group_size > 0,
        )

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        for chunk in job.held:
            gathers, reductions = self._rounds(job, chunk.stage)
            layer, num_layers, *around = self._groups(job, chunk)
            of_layers = ((group, num_layers * gathers, num_layers * reductions) for group in layer)
            for group, gathers_of_all, calls in (*of_layers, *((group, reductions, reductions) for group in around)):
                if not group.padded:
                    continue
                gathered, sent = (
                    gathers_of_all * group.padded * job.compute_bytes,
                    calls * group.padded * job.gradient_bytes,
                )
                yield Traffic(group.axis, "all_gather", gathers_of_all, gathered, group.ranks, during="gather")
                yield Traffic(group.axis, "reduce_scatter", calls, sent, group.ranks, during="reduce")
                if self.shard_group_size:
                    replicas = job.layout.degree("dp_cp") // self.shard_group_size
                    yield Traffic(REPLICA, "all_reduce", calls, sent // group.ranks, replicas, during="reduce")

    def phases(self, layout: ParallelLayout, each: str) -> Iterable[PhaseWords]:
        copies = layout.degree("dp_cp")
        until = " and again in backward" if layout.zero == 3 else "; they stay until backward is through with them"
        yield PhaseWords(
            "gather",
            "ZeRO: weights are gathered",
            "before a stage computes, where they are not still there"
            if layout.uses("pp")
            else f"before every layer, for {each}, in forward{until}",
            f"Each rank keeps 1/{copies} of every weight it computes with, and gets the rest from the others",
        )
        yield PhaseWords(
            "reduce",
            "Gradients are averaged and cut",
            f"for {each}, while backward runs",
            f"{AVERAGED}, and each keeps 1/{copies} of them",
        )

    def remarks(self, layout: ParallelLayout) -> Iterable[Remark]:
        copies, stage_3 = layout.degree("dp_cp"), layout.zero == 3
        what = "optimizer states, gradients and weights" if stage_3 else "optimizer states and gradients"
        more = " at 1.5 times the traffic" if stage_3 else ""
        if copies > 1:
            yield Remark(
                f"ZeRO {layout.zero} shares {what} among the {copies} ranks that would hold the same{more}.",
                "Rajbhandari et al. 2019, arXiv:1910.02054, sections 5 and 7",
            )

    def keeps(self, layout: ParallelLayout) -> str:
        return f"{'weights, gradients' if layout.zero == 3 else 'gradients'} and optimizer states"

    def _rounds(self, job: TrainingJob, stage: int) -> tuple[int, int]:
        """How often the weights of a layer are gathered in a step, and how often its gradients are reduced.

        What is around the layers is gathered as often as it is reduced.
        """
        stage_3, forwards = job.layout.zero == 3, job.gradient_accumulation_steps
        if job.order is None:
            return (2 * forwards if stage_3 else forwards), forwards
        # torch's schedules reduce once, after the last backward. What a backward has gathered stays for what comes
        # next; in stage 3 a forward frees it.
        return (job.order.behind_forwards[stage] if stage_3 else 1), 1

    def _groups(self, job: TrainingJob, chunk: Chunk) -> Groups:
        """What of a chunk is gathered at once."""
        layer, around = _groups(self, job.shape, job.layout, chunk.first, chunk.last)
        return Groups(layer, len(chunk.layers), *around)

    def apply(self, assembly: Assembly) -> None:
        import torch
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        from clusterbench.engine.compat import let_groups_return_views
        from clusterbench.model.assembly import COMPUTE_DTYPES, gradient_dtype, master_dtype

        job, grid = assembly.job, assembly.grid
        mesh = grid.shards(self.shard_group_size) if self.shard_group_size else grid.line(job.layout.data_axis)
        gathered, kept = COMPUTE_DTYPES[job.dtype], master_dtype(job)
        policy = (
            MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=gradient_dtype(job))
            if gathered != kept
            else MixedPrecisionPolicy()
        )
        on_cuda = assembly.device.type == "cuda"
        options: dict[str, Any] = {
            "mp_policy": policy,
            "offload_policy": CPUOffloadPolicy(pin_memory=on_cuda) if self.offload else OffloadPolicy(),
        }
        for decoder in assembly.decoders:
            ignored: set[nn.Parameter] = set()
            for layer in decoder.layers.values():
                if job.layout.spreads_experts:
                    mixture: Any = layer.feed_forward
                    experts = mixture.experts
                    if job.layout.degree("edp") > 1:
                        mixture.gathered = True
                        fully_shard(
                            experts, mesh=grid.line("edp"), reshard_after_forward=job.layout.zero == 3, **options
                        )
                        # Tokens of all ranks meet here: their gradients are summed, and averaged over as many ranks as
                        # those of other weights. A sum, because Gloo has no reduction that scales.
                        experts.set_gradient_divide_factor(float(job.layout.degree("dp_cp")))
                        experts.set_force_sum_reduction_for_comms(True)
                    else:
                        ignored |= set(experts.parameters())
                fully_shard(
                    layer, mesh=mesh, reshard_after_forward=job.layout.zero == 3, ignored_params=ignored, **options
                )
            if ends_are_apart(job.shape, job.layout):
                assert decoder.embedding is not None
                assert decoder.head is not None
                embedding = fully_shard(decoder.embedding, mesh=mesh, reshard_after_forward=True, **options)
                embedding.set_unshard_in_backward(False)  # which reads no weights of it
                fully_shard(decoder.head, mesh=mesh, reshard_after_forward=False, **options)  # backward begins with it
            fully_shard(decoder, mesh=mesh, reshard_after_forward=False, ignored_params=ignored, **options)
        if job.layout.uses("tp"):  # what DTensor leaves of itself is a view
            let_groups_return_views()
        assembly.fresh_views = True
        if self.offload:
            assembly.home = torch.device("cpu")
        for weight in assembly.weights:
            if not (is_spread_expert(weight.name, job) and job.layout.degree("edp") == 1):
                axis = "edp" if is_spread_expert(weight.name, job) else self.splits(weight.name, job)[0]
                _take_share(weight, grid.rank(axis), self._shards(weight.name, job))
                weight.scale = 1.0


@dataclass(frozen=True)
class Group:
    """Weights that are gathered and reduced at once; sizes in elements.

    Attributes
    ----------
    padded
        What travels: every weight is padded so that its first dimension comes out even.
    whole
        Without the padding.
    behind_layers
        Of it, norm and head: a tied one where nothing is looked up.
    last
        Of it, the weight that comes last, where its gradient is there until the group is reduced.
    """

    axis: str
    ranks: int
    padded: int
    whole: int
    behind_layers: int
    last: int

    @property
    def share(self) -> int:
        """Of what travels, that of one rank."""
        return self.padded // self.ranks


class Groups(NamedTuple):
    """Of a chunk: the groups of each of its layers, in order, before its experts, and what is around the layers.

    Embedding and head are empty where they are in the root.
    """

    layer: Sequence[Group]
    num_layers: int
    root: Group
    embedding: Group
    head: Group

    def total(self, size: Callable[[Group], int]) -> int:
        return self.num_layers * sum(map(size, self.layer)) + size(self.root) + size(self.embedding) + size(self.head)


@lru_cache(
    maxsize=4096
)  # a plan asks for the chunks of every stage, and those between the first and the last are alike
def _groups(
    sharded: FullySharded, shape: ModelShape, layout: ParallelLayout, first: bool, last: bool
) -> tuple[Sequence[Group], Sequence[Group]]:
    """Those of one layer, and those around the layers: root, embedding and head."""
    job = TrainingJob(shape, layout, 1, 1, 1, chunks=(Chunk(0, range(1), first, last),))
    weights = {name: size for name, size, _ in held_sizes(without(FullySharded, layout), job)}
    experts_on = layout.degree("edp")

    def group(sizes: Mapping[str, tuple[int, ...]], axis: str, ranks: int) -> Group:
        padded = sum(-(-size[0] // ranks) * ranks * prod(size[1:]) for size in sizes.values())
        # in the last stage of a pipeline the table of a tied head is there, too
        before = ("layers.", "embedding.") if first else ("layers.",)
        behind = sum(prod(size) for name, size in sizes.items() if not name.startswith(before))
        numels = [*map(prod, sizes.values())]
        last = numels[-1] if numels and not adds_up_in_parameters() else 0
        return Group(axis, ranks, padded, sum(numels), behind, last)

    in_layer = {name: size for name, size in weights.items() if name.startswith("layers.")}
    experts = {name: size for name, size in in_layer.items() if is_spread_expert(name, job)}
    axis, sharers = SHARD if sharded.shard_group_size else layout.data_axis, sharded._sharers(job)
    layer = [group({name: size for name, size in in_layer.items() if name not in experts}, axis, sharers)]
    if experts and experts_on > 1:
        layer.append(group(experts, "edp", experts_on))
    around = {name: size for name, size in weights.items() if name not in in_layer}
    alone = ("embedding.weight", "head.weight")
    apart = [{name: around.pop(name)} if ends_are_apart(shape, layout) else {} for name in alone]
    return layer, [group(sizes, axis, sharers) for sizes in (around, *apart)]


def ends_are_apart(shape: ModelShape, layout: ParallelLayout) -> bool:
    """Whether embedding and head are groups of their own.

    A pipeline's schedule has several forwards before a backward, each of which would gather the embedding again.
    """
    return not (shape.tied_embeddings or layout.uses("pp"))


def _widens_table(job: TrainingJob) -> bool:
    """Whether the gradient that a loss in chunks makes of a tied table is in the dtype of the reduction from then on.

    Such a loss is behind what FSDP takes for the model, so that it does not know yet that backward has begun.
    """
    return adds_up_in_parameters() and job.shape.tied_embeddings and job.gradient_bytes > job.compute_bytes


def _beside_shares(layer: Sequence[Group], job: TrainingJob) -> float:
    """Bytes of a layer's whole gradients at most, while it is reduced behind all others, less its shares not there yet.

    Experts, the second group of a layer, are reduced before the rest of it.
    """
    most, missing = 0.0, 0.0
    for group in layer:
        share = group.share * job.master_bytes
        most = max(most, group.whole * job.compute_bytes - share - missing, group.last * job.compute_bytes - missing)
        missing += share
    return most


def _take_share(weight: Weight, rank: int, ranks: int) -> None:
    """Narrows a weight's place to the rows that FSDP leaves this rank, which may be none."""
    rows = weight.place[0]
    share = -(-(rows.stop - rows.start) // ranks)
    start = min(rows.start + rank * share, rows.stop)
    weight.place = (slice(start, min(start + share, rows.stop)), *weight.place[1:])
