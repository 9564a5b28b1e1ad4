"""What a layout means on so many nodes: every group of every axis, what passes in it, how much, and over which link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from clusterbench.errors import SuiteError
from clusterbench.expected.bubble import expected_bubble
from clusterbench.formulas.collectives import RECV
from clusterbench.formulas.pipeline import layers_by_stage
from clusterbench.formulas.schedules.timeline import Bubble
from clusterbench.job import TrainingJob
from clusterbench.layout import RANK_ORDERS, ParallelLayout
from clusterbench.layout_view.meanings import MEANINGS, Mix, mix_of
from clusterbench.layout_view.step import Phase, phases_of
from clusterbench.parallel import active_in, expected_traffic, from_options, part_of
from clusterbench.parallel._words import Meaning
from clusterbench.units import quotient

ENOUGH_MICRO_BATCHES = 4  # for each stage, by GPipe
PEERS_SHOWN = 16


@dataclass(frozen=True)
class AxisView:
    """One axis or view in use.

    Attributes
    ----------
    groups
        Ranks, group by group.
    crossing
        How many of the groups have members on more than one node.
    nodes_per_group
        The most nodes that one group touches.
    ops
        What one rank sends in a step: (op, calls, bytes on the busiest link); None where no job was named.
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    crossing: int
    nodes_per_group: int
    ops: tuple[tuple[str, int, float], ...] | None = None

    @property
    def meaning(self) -> Meaning:
        return MEANINGS[self.name]

    @cached_property
    def group_by_rank(self) -> dict[int, tuple[int, ...]]:
        """The group of every rank that is in one."""
        return {rank: group for group in self.groups for rank in group}

    @property
    def degree(self) -> int:
        """Ranks in a group."""
        return len(self.groups[0])

    @property
    def apart(self) -> int:
        """How far in rank numbers the first two of a group are from each other."""
        return self.groups[0][1] - self.groups[0][0]

    @property
    def bytes_per_step(self) -> float | None:
        return None if self.ops is None else sum(size for _, _, size in self.ops)


@dataclass(frozen=True)
class OrderView:
    """An order of ranks: under which names it goes, axes from the inside, and which axes in use then cross nodes."""

    names: tuple[str, ...]
    inner: tuple[str, ...]
    crossing: tuple[str, ...]


@dataclass(frozen=True)
class LayoutView:
    """A layout on nodes. Ranks are numbered node by node, ``ranks_per_node`` on each.

    Attributes
    ----------
    axes
        The axes in use, tp first, and the views behind them.
    orders
        Every order of ranks that has a name, this one first.
    phases
        The messages of one step in their order.
    mix
        What the axes are together.
    """

    layout: ParallelLayout
    rank_order: str
    num_nodes: int
    ranks_per_node: int
    axes: tuple[AxisView, ...]
    orders: tuple[OrderView, ...]
    phases: tuple[Phase, ...]
    mix: Mix
    job: TrainingJob | None = None
    findings: tuple[str, ...] = field(default=())

    @property
    def bubble(self) -> Bubble | None:
        """Idle share of a step under 1F1B; None without a pipeline or a job."""
        return expected_bubble(active_in(self.layout, from_options({})), self.job) if self.job else None

    def node(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def group_of(self, axis: str, rank: int) -> tuple[int, ...]:
        """The group along an axis or a view that a rank is in."""
        return self.axis(axis).group_by_rank[rank]

    def axis(self, name: str) -> AxisView:
        """The view of an axis that is in use."""
        return next(axis for axis in self.axes if axis.name == name)


def view_layout(
    layout: ParallelLayout, num_nodes: int, rank_order: str = "megatron", job: TrainingJob | None = None
) -> LayoutView:
    """Everything about a layout that its numbers say.

    Parameters
    ----------
    job
        With it, bytes per step of each axis are told: of a rank of the stage that sends most.

    Raises
    ------
    SuiteError
        If the ranks do not fill the nodes evenly, or the job cannot be shared so.
    """
    if layout.world_size % num_nodes:
        raise SuiteError(
            f"layout '{layout}' has {layout.world_size} ranks, which {num_nodes} nodes do not share evenly: "
            f"{quotient(layout.world_size, num_nodes)}. Say --num-nodes with a divisor of {layout.world_size}."
        )
    each = layout.world_size // num_nodes
    phases = phases_of(layout, job)
    sent = None if job is None else _sent(job)
    axes = tuple(
        _axis(name, layout, rank_order, each, None if sent is None else sent.get(name, {}))
        for name in (*reversed(layout.axes), *layout.views)
    )
    orders = tuple(_orders(layout, rank_order, each))
    view = LayoutView(layout, rank_order, num_nodes, each, axes, orders, phases, mix_of(layout, rank_order), job)
    return replace(view, findings=tuple(_findings(view)))


def _axis(
    name: str, layout: ParallelLayout, rank_order: str, each: int, sent: dict[str, tuple[int, float]] | None
) -> AxisView:
    groups = tuple(tuple(group) for group in layout.groups(name, rank_order))
    nodes = [len({rank // each for rank in group}) for group in groups]
    ops = None if sent is None else tuple((op, count, size) for op, (count, size) in sent.items())
    return AxisView(name, groups, sum(count > 1 for count in nodes), max(nodes), ops)


def _orders(layout: ParallelLayout, rank_order: str, each: int) -> Iterator[OrderView]:
    mine = RANK_ORDERS[rank_order]
    for inner in sorted(set(RANK_ORDERS.values()), key=lambda order: (order != mine, order)):
        names = tuple(name for name, order in RANK_ORDERS.items() if order == inner)
        used = [axis for axis in inner if layout.uses(axis)]
        crossing = (axis for axis in used if _axis(axis, layout, names[0], each, None).crossing)
        yield OrderView(names, inner, tuple(crossing))


def _sent(job: TrainingJob) -> dict[str, dict[str, tuple[int, float]]]:
    """Calls and bytes of one step by axis and op, the most over the stages."""
    active = active_in(job.layout, from_options({}))
    most: dict[str, dict[str, tuple[int, float]]] = {}
    for stage in range(job.layout.pp):
        for sent in expected_traffic(active, part_of(job, active, stage)):
            if sent.op == RECV:  # the other side of a send
                continue
            size = sent.bytes_on_link(job.layout)
            if size > most.setdefault(sent.axis, {}).get(sent.op, (0, -1.0))[1]:
                most[sent.axis][sent.op] = sent.count, size
    return most


def _findings(view: LayoutView) -> Iterator[str]:
    layout, each = view.layout, view.ranks_per_node
    inner = layout.tp * layout.cp
    if layout.tp > 1 and view.axis("tp").crossing:
        yield (
            f"tp{layout.tp} leaves a node of {each} ranks: what it sends in every layer goes over the network. Keep tp "
            f"at {each} or below, and use pp or dp for the rest (Narayanan et al. 2021, arXiv:2104.04473, section 3.2)."
        )
    elif layout.cp > 1 and view.axis("cp").crossing:
        yield (
            f"tp{layout.tp} x cp{layout.cp} = {inner} leaves a node of {each} ranks, so keys and values of every "
            "attention go over the network. That is right for sequences that fit no other way, and slow otherwise."
        )
    if layout.spreads_experts and view.axis("ep").crossing:
        yield (
            f"ep{layout.ep} leaves a node of {each} ranks: every token may go to another node twice in each layer with "
            "experts."
        )
    if view.job is not None and layout.pp > 1:
        stages, micro_batches = layout.pp, view.job.gradient_accumulation_steps
        bubble = view.bubble
        if bubble is not None and micro_batches < ENOUGH_MICRO_BATCHES * stages:
            yield (
                f"{micro_batches} micro-batches for pp{stages}: stages idle {100 * bubble.value:.0f} % of the step "
                f"while the pipeline fills and drains ({bubble.basis}). With {ENOUGH_MICRO_BATCHES * stages} or more "
                "it hardly matters (Huang et al. 2019, arXiv:1811.06965, section 2.3)."
            )


# What ranks hold, in words.


def group_words(view: LayoutView, axis: AxisView, group: Sequence[int]) -> str:
    """What the members of one group have in common and what each has for itself.

    >>> view = view_layout(ParallelLayout.parse("pp2-tp2"), 1)
    >>> group_words(view, view.axis("tp"), [2, 3])
    'slices 0 and 1 of stage 1, the same tokens'
    >>> group_words(view, view.axis("pp"), [1, 3])
    'stages 0 and 1 of slice 1, one after the other'
    """
    layout, numbers = (view.layout, f"0 {'and' if len(group) == 2 else 'to'} {len(group) - 1}")
    at = layout.coordinates(group[0], view.rank_order)
    stage, slice_ = _stage(view, at["pp"]), f"slice {at['tp']}" if layout.tp > 1 else ""
    weights = " of ".join(filter(None, [slice_, stage])) if layout.tp * layout.pp > 1 else "weights"
    data = " ".join(f"{name}{at[name]}" for name in ("dp", "cp") if layout.degree(name) > 1)
    match axis.name:
        case "tp":
            return f"slices {numbers} of {stage}, the same tokens{f' ({data})' if data else ''}"
        case "cp":
            of = f" of dp{at['dp']}" if layout.dp > 1 else ""
            return f"parts {numbers} of each sequence{of}, the same {weights}"
        case "dp" | "dp_cp":
            active = active_in(layout, from_options({})) if axis.name == layout.data_axis else ()
            kept = [
                f"; each keeps 1/{len(group)} of {what}"
                for parallelism in active
                if (what := parallelism.keeps(layout))
            ]
            return f"the same {weights}, other tokens{''.join(kept)}"
        case "pp":
            of = ", ".join(filter(None, [slice_, data]))
            return f"stages {numbers}{f' of {of}' if of else ''}, one after the other"
        case "ep":
            return f"all experts of {stage}, each {_experts(view)}; other tokens"
        case "edp":
            return f"the same {_experts_of(view, group[0])} of {stage}, other tokens"
        case _:
            return f"both ends of the pipeline of {', '.join(filter(None, [slice_, data])) or 'the model'}"


def rank_words(view: LayoutView, rank: int) -> str:
    """Where a rank is, what it has, and which other ranks have or pass what.

    >>> rank_words(view_layout(ParallelLayout.parse("pp2-dp2-tp2"), 2), 5)
    'rank 5 on node 1: slice 1 of stage 1, sequences of dp0; the same weights: 7; slices beside it: 4; other stages: 1'
    """
    layout, at = view.layout, view.layout.coordinates(rank, view.rank_order)
    held = [f"slice {at['tp']} of {_stage(view, at['pp'])}" if layout.tp > 1 else _stage(view, at["pp"])]
    if layout.spreads_experts:
        held.append(_experts_of(view, rank))
    if layout.cp > 1:
        held.append(f"part {at['cp']} of each sequence")
    if layout.dp > 1:
        held.append(f"sequences of dp{at['dp']}")
    peers = [f"{what}: {others}" for what, others in _peers(view, rank)]
    return "; ".join([f"rank {rank} on node {view.node(rank)}: {', '.join(held)}", *peers])


def _peers(view: LayoutView, rank: int) -> Iterator[tuple[str, str]]:
    layout = view.layout
    words = {
        layout.data_axis: "the same weights",
        "tp": "slices beside it",
        "pp": "other stages",
        "ep": "other experts",
    }
    for name, what in words.items():
        if layout.degree(name) > 1:
            others = [other for other in view.group_of(name, rank) if other != rank]
            listed = " ".join(map(str, others[:PEERS_SHOWN]))
            yield what, listed + (f" and {len(others) - PEERS_SHOWN} more" if len(others) > PEERS_SHOWN else "")


def _stage(view: LayoutView, pp: int) -> str:
    if view.layout.pp == 1:
        return "the model"
    if view.job is None:
        return f"stage {pp}"
    layers = layers_by_stage(view.job.shape.num_layers, view.layout.pp)[pp]
    return f"stage {pp} (layers {layers[0]} to {layers[-1]})" if len(layers) > 1 else f"stage {pp} (layer {layers[0]})"


def _experts(view: LayoutView) -> str:
    """What one rank has of the experts of a layer."""
    if view.job is None:
        return f"1/{view.layout.ep} of them"
    return f"{view.job.shape.num_experts // view.layout.ep} of {view.job.shape.num_experts}"


def _experts_of(view: LayoutView, rank: int) -> str:
    place = view.group_of("ep", rank).index(rank)
    if view.job is None:
        return f"experts' share {place}"
    each = view.job.shape.num_experts // view.layout.ep
    return f"expert {place}" if each == 1 else f"experts {place * each} to {(place + 1) * each - 1}"
