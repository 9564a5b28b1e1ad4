"""What a layout means on so many nodes: every group of every axis, what passes in it, how much, and over which link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from clusterbench.errors import SuiteError
from clusterbench.layout import AXES, RANK_ORDERS, ParallelLayout
from clusterbench.parallel import active_in, expected_traffic, from_options, objection_to, part_of
from clusterbench.tables import aligned, comment
from clusterbench.training.job import TrainingJob
from clusterbench.units import format_bytes

GROUPS_SHOWN = 16


@dataclass(frozen=True)
class Meaning:
    """An axis or a view in plain words: who is in one group, what passes between its members, and where it is from."""

    title: str
    members: str
    passes: str
    source: str


MEANINGS = {
    "tp": Meaning(
        "tensor parallelism",
        "hold slices of the same layers and compute the same tokens together",
        "activations, in every layer, forward and backward: the most, and nothing hides it",
        "Shoeybi et al. 2019, arXiv:1909.08053",
    ),
    "cp": Meaning(
        "context parallelism",
        "hold the same weights and each a part of every sequence",
        "keys and values, in every attention; gradients once a step",
        "Liu et al. 2023, arXiv:2310.01889; Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2",
    ),
    "dp": Meaning(
        "data parallelism",
        "hold the same weights, or share them out as ZeRO says, and see other sequences",
        "gradients once a step, and with ZeRO weights; computation can hide it",
        "Li et al. 2020, arXiv:2006.15704; Rajbhandari et al. 2019, arXiv:1910.02054",
    ),
    "pp": Meaning(
        "pipeline parallelism",
        "hold one after the other's layers of the same model",
        "activations from stage to stage, and their gradients back: the least",
        "Narayanan et al. 2021, arXiv:2104.04473",
    ),
    "dp_cp": Meaning(
        "all copies of the dense weights",
        "hold the same dense weights: dp and cp together",
        "gradients of dense weights once a step",
        "Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2",
    ),
    "ep": Meaning(
        "expert parallelism",
        "share one set of experts, each holding some of them",
        "tokens to their experts and back, in every layer with experts",
        "Lepikhin et al. 2020, arXiv:2006.16668",
    ),
    "edp": Meaning(
        "copies of the same experts",
        "hold the same experts",
        "gradients of experts once a step",
        "Megatron-Core, expert data parallelism",
    ),
    "ends": Meaning(
        "first and last stage",
        "both hold a tied embedding",
        "its gradient once a step, where embedding and head share weights",
        "Narayanan et al. 2021, arXiv:2104.04473",
    ),
}


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

    @property
    def bytes_per_step(self) -> float | None:
        return None if self.ops is None else sum(size for _, _, size in self.ops)


@dataclass(frozen=True)
class LayoutView:
    """A layout on nodes. Ranks are numbered node by node, ``ranks_per_node`` on each."""

    layout: ParallelLayout
    rank_order: str
    num_nodes: int
    ranks_per_node: int
    axes: tuple[AxisView, ...]
    findings: tuple[str, ...]
    job: TrainingJob | None = None

    def node(self, rank: int) -> int:
        return rank // self.ranks_per_node


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
            f"{layout.world_size / num_nodes:.4g}. Say --num-nodes with a divisor of {layout.world_size}."
        )
    each = layout.world_size // num_nodes
    sent = None if job is None else _sent(job)
    axes = tuple(
        _axis(name, layout, rank_order, each, None if sent is None else sent.get(name, {}))
        for name in (*(axis for axis in reversed(AXES) if layout.uses(axis)), *layout.views)
    )
    view = LayoutView(layout, rank_order, num_nodes, each, axes, (), job)
    return LayoutView(layout, rank_order, num_nodes, each, axes, tuple(_findings(view)), job)


def _axis(
    name: str, layout: ParallelLayout, rank_order: str, each: int, sent: dict[str, tuple[int, float]] | None
) -> AxisView:
    groups = tuple(tuple(group) for group in layout.groups(name, rank_order))
    nodes = [len({rank // each for rank in group}) for group in groups]
    ops = None if sent is None else tuple((op, count, size) for op, (count, size) in sent.items())
    return AxisView(name, groups, sum(count > 1 for count in nodes), max(nodes), ops)


def _sent(job: TrainingJob) -> dict[str, dict[str, tuple[int, float]]]:
    """Calls and bytes of one step by axis and op, the most over the stages."""
    active = active_in(job.layout, from_options({}))
    if objection := objection_to(job, active):
        raise SuiteError(f"layout '{job.layout}' cannot train {job.shape.name} so: {objection}.")
    most: dict[str, dict[str, tuple[int, float]]] = {}
    for stage in range(job.layout.pp):
        for one in expected_traffic(active, part_of(job, active, stage)):
            size = one.bytes_on_link(job.layout)
            if size > most.setdefault(one.axis, {}).get(one.op, (0, -1.0))[1]:
                most[one.axis][one.op] = one.count, size
    return most


def _findings(view: LayoutView) -> Iterator[str]:
    layout, each = view.layout, view.ranks_per_node
    inner = layout.tp * layout.cp
    by_name = {axis.name: axis for axis in view.axes}
    if layout.tp > 1 and by_name["tp"].crossing:
        yield (
            f"tp{layout.tp} leaves a node of {each} ranks: what it sends in every layer goes over the network. Keep tp "
            f"at {each} or below, and use pp or dp for the rest."
        )
    elif layout.cp > 1 and by_name["cp"].crossing:
        yield (
            f"tp{layout.tp} x cp{layout.cp} = {inner} leaves a node of {each} ranks, so keys and values of every "
            "attention go over the network. That is right for sequences that fit no other way, and slow otherwise."
        )
    if layout.ep > 1 and by_name["ep"].crossing:
        yield (
            f"ep{layout.ep} leaves a node of {each} ranks: every token may go to another node twice in each layer with "
            "experts."
        )


# As text.


def layout_text(view: LayoutView) -> str:
    """For the terminal: ranks node by node, then every axis with its groups; what crosses nodes has a ``*``."""
    lines = comment(f"{view.layout}: {degrees_text(view)}, {order_text(view)}")
    if view.job is not None:
        job = view.job
        lines += comment(f"{job.shape.name}, seq_len {job.seq_len}, {job.dtype}: {job.equation}")
    lines += ["#", *_places(view)]
    for axis in view.axes:
        lines += ["#", *_axis_text(view, axis)]
    if view.findings:
        lines += ["#", *(line for finding in view.findings for line in comment(f"warning: {finding}"))]
    return "\n".join(lines)


def degrees_text(view: LayoutView) -> str:
    """``pp2 x tp2 = 4 ranks on 2 x 2``: the ranks, on nodes times ranks of each."""
    layout = view.layout
    degrees = " x ".join(f"{axis}{layout.degree(axis)}" for axis in AXES if layout.degree(axis) > 1) or "one rank"
    return f"{degrees} = {layout.world_size} ranks on {view.num_nodes} x {view.ranks_per_node}"


def order_text(view: LayoutView) -> str:
    """Which ranks are neighbours, and by whom."""
    inner = ", ".join(RANK_ORDERS[view.rank_order])
    return f"in the order of {_names_of(view.rank_order)} ({inner} from the inside)"


def _names_of(rank_order: str) -> str:
    """The order's name, and those under which others have the same."""
    alike = [name for name, axes in RANK_ORDERS.items() if axes == RANK_ORDERS[rank_order] and name != rank_order]
    return f"{rank_order} (as {', '.join(alike)})" if alike else rank_order


def _places(view: LayoutView) -> list[str]:
    used = [axis for axis in AXES if view.layout.uses(axis)] or ["tp"]
    shown = min(view.layout.world_size, GROUPS_SHOWN * 4)
    rows = [
        [rank, view.node(rank), *(view.layout.coordinates(rank, view.rank_order)[axis] for axis in used)]
        for rank in range(shown)
    ]
    lines = aligned(["rank", "node", *used], rows)
    if shown < view.layout.world_size:
        lines += comment(f"and {view.layout.world_size - shown} more ranks")
    return lines


def _axis_text(view: LayoutView, axis: AxisView) -> list[str]:
    meaning = axis.meaning
    size = len(axis.groups[0])
    lines = comment(f"{axis.name}{size}, {meaning.title}: {len(axis.groups)} groups of ranks that {meaning.members}.")
    lines += comment(f"What passes: {meaning.passes}. {meaning.source}.")
    if axis.crossing:
        where = f"{axis.crossing} of {len(axis.groups)} groups cross nodes (*), up to {axis.nodes_per_group} of them"
    else:
        where = "every group stays within a node"
    lines += comment(f"Link: {where}{bytes_text(axis)}.")
    lines += [f"    {_group(view, group)}" for group in axis.groups[:GROUPS_SHOWN]]
    if len(axis.groups) > GROUPS_SHOWN:
        lines += comment(f"and {len(axis.groups) - GROUPS_SHOWN} more groups")
    return lines


def bytes_text(axis: AxisView) -> str:
    """What a rank sends along the axis in a step, behind a semicolon; nothing where no job was named."""
    if axis.ops is None:
        return ""
    if not axis.ops:
        return "; it sends nothing in this step"
    words = ", ".join(f"{count} {op} of {format_bytes(size)} in all" for op, count, size in axis.ops)
    return f"; each rank's busiest link carries {words} in a step"


def _group(view: LayoutView, group: Sequence[int]) -> str:
    """Members, with a bar where the next is on another node."""
    words = [str(group[0])]
    for before, rank in pairwise(group):
        words.append(f"{'| ' if view.node(before) != view.node(rank) else ''}{rank}")
    crosses = len({view.node(rank) for rank in group}) > 1
    return " ".join(words) + (" *" if crosses else "")
