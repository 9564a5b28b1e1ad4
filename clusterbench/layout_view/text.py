"""A layout as text: its axes in a table, then each with its groups, the step's messages in their order, and the ranks
node by node."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from clusterbench.layout import AXES, RANK_ORDERS
from clusterbench.layout_view import AxisView, LayoutView, OrderView, group_words
from clusterbench.layout_view.step import Message, Phase
from clusterbench.terminal import WIDTH
from clusterbench.units import format_bytes
from clusterbench.words import aligned, plural

GROUPS_SHOWN = 16
MEMBERS_SHOWN = 16
FIGURES = "Bytes are those on the busiest link of the rank that sends most in a phase, all its calls together."


def layout_text(view: LayoutView, width: int = WIDTH, memory: Sequence[str] = ()) -> str:
    """For a terminal of so many columns; what crosses nodes has a ``*``.

    The answer comes first: what to beware of, the axes in a table, and ``memory``, the lines that say whether it fits.
    """
    about = [f"{view.layout}: {degrees_text(view)}, {order_text(view)}", job_text(view)]
    parts = [
        [line for text in filter(None, about) for line in _prose(text, width)],
        [line for finding in view.findings for line in _prose(f"warning: {finding}", width)],
        _axes_table(view),
        memory,
        *(_axis_text(view, axis, width) for axis in view.axes if not _is_idle(axis)),
        _mix_text(view, width),
        _step_text(view, width),
        _places(view),
    ]
    return "\n#\n".join("\n".join(lines) for lines in parts if lines)


def degrees_text(view: LayoutView) -> str:
    """``pp2 x tp2 = 4 ranks on 2 nodes x 2``: the ranks, on nodes times ranks of each."""
    layout = view.layout
    degrees = " x ".join(f"{axis}{layout.degree(axis)}" for axis in AXES if layout.degree(axis) > 1) or "one rank"
    ranks = "" if layout.world_size == 1 else f" = {layout.world_size} ranks"
    return f"{degrees}{ranks} on {plural(view.num_nodes, 'node')} x {view.ranks_per_node}"


def order_text(view: LayoutView) -> str:
    """Which ranks are neighbours, and by whom."""
    inner = ", ".join(RANK_ORDERS[view.rank_order])
    return f"in the order of {_names_of(view.rank_order)} ({inner} from the inside)"


def job_text(view: LayoutView) -> str:
    """What is trained, where a job was named."""
    job = view.job
    return "" if job is None else f"{job.shape.name}, seq_len {job.seq_len}, {job.dtype}: {job.equation}"


def _names_of(rank_order: str) -> str:
    """The order's name, and those under which others have the same."""
    alike = [name for name, axes in RANK_ORDERS.items() if axes == RANK_ORDERS[rank_order] and name != rank_order]
    return f"{rank_order} (as {', '.join(alike)})" if alike else rank_order


def members_text(axis: AxisView) -> str:
    """How many groups there are, of what."""
    of = "group" if len(axis.groups) == 1 else "groups"
    return f"{len(axis.groups)} {of} of {axis.degree} ranks that {axis.meaning.members}"


def gives_text(axis: AxisView) -> str:
    """What one wins by so many ranks along the axis."""
    return axis.meaning.gives.format(n=axis.degree)


def costs_text(view: LayoutView, axis: AxisView) -> str:
    """What one pays for them; of a pipeline whose micro-batches are known, how much."""
    costs = axis.meaning.costs.format(n=axis.degree)
    if axis.name != "pp" or view.job is None or (bubble := view.bubble) is None:
        return costs
    return f"{costs}; with {view.job.gradient_accumulation_steps} they idle {100 * bubble.value:.0f} %"


def orders_text(order: OrderView) -> str:
    """``In the order of llama3, picotron, calculon (tp, cp, pp, dp)``."""
    return f"In the order of {', '.join(order.names)} ({', '.join(order.inner)} from the inside)"


def crossing_text(order: OrderView) -> str:
    """Which axes leave a node under an order of ranks."""
    *others, last = order.crossing or ("no axis",)
    return f"{', '.join(others)} and {last} cross nodes" if others else f"{last} crosses nodes"


def link_text(axis: AxisView, mark: str = "") -> str:
    """Over which link a group's messages go."""
    if not axis.crossing:
        return "every group stays within a node"
    groups = "the group crosses" if len(axis.groups) == 1 else f"{axis.crossing} of {len(axis.groups)} groups cross"
    return f"{groups} nodes{mark}, up to {axis.nodes_per_group} of them: over the network"


def bytes_text(view: LayoutView, axis: AxisView) -> str:
    """What a rank sends along the axis in a step, behind a semicolon; nothing where no job was named."""
    if axis.ops is None:
        return ""
    if not axis.ops:
        return f"; {silence_text(view, axis)}"
    words = ", ".join(_sent_text(op, count, size) for op, count, size in axis.ops)
    return f"; each rank's busiest link carries {words} in a step"


def silence_text(view: LayoutView, axis: AxisView) -> str:
    """Why nothing passes along an axis in a step."""
    if axis.name == "dp" and view.layout.cp > 1:
        return "its messages go with those of cp, along dp_cp"
    return "it sends nothing in this step"


def phase_text(view: LayoutView, phase: Phase) -> str:
    """What passes in a phase, along which axes, and over which link.

    >>> from clusterbench.layout import ParallelLayout
    >>> from clusterbench.layout_view import view_layout
    >>> view = view_layout(ParallelLayout.parse("dp2-tp2+sp"), 2)
    >>> phase_text(view, view.phases[0])
    'tp2 within a node: all_gather, reduce_scatter'
    """
    by_axis: dict[str, list[str]] = {}
    for message in phase.messages:
        by_axis.setdefault(message.axis, []).append(_message(message))
    return "; ".join(f"{_along(view.axis(name))}: {', '.join(ops)}" for name, ops in by_axis.items()) or "no message"


def _along(axis: AxisView) -> str:
    return f"{axis.name}{axis.degree} {'over the network' if axis.crossing else 'within a node'}"


def _message(message: Message) -> str:
    if message.count is None or message.link_bytes is None:
        return message.op
    return _sent_text(message.op, message.count, message.link_bytes)


def _sent_text(op: str, count: int, size_bytes: float) -> str:
    """``8 x send (128KiB in all)``, ``1 x all_reduce (8B)``: bytes of many calls never look like those of one.

    They are what the busiest link carries, in whole bytes: for an all_reduce of 4 bytes over 16 ranks 7.5 in the mean.
    """
    size = format_bytes(ceil(size_bytes))
    return f"{calls_text(op, count)} ({size})" if count == 1 else f"{calls_text(op, count)} ({size} in all)"


def calls_text(op: str, count: int) -> str:
    return f"{count:,} x {op}"


def _axes_table(view: LayoutView) -> list[str]:
    """A line an axis: how many groups of how many ranks, over which link, and what a rank sends along it in a step."""
    rows = [
        [
            f"{axis.name}{axis.degree}",
            axis.meaning.title,
            len(axis.groups),
            "over the network" if axis.crossing else "within a node",
            *_sent_in_all(axis),
        ]
        for axis in view.axes
    ]
    sent = [] if view.job is None else ["calls", "sent in a step"]
    return aligned(["axis", "what it is", "groups", "link", *sent], rows) if rows else []


def _sent_in_all(axis: AxisView) -> list[str]:
    """How many calls, and the bytes of all of them; nothing where no job was named."""
    if axis.ops is None or axis.bytes_per_step is None:
        return []
    return (
        [f"{sum(count for _, count, _ in axis.ops):,}", format_bytes(ceil(axis.bytes_per_step))]
        if axis.ops
        else ["-", "-"]
    )


def _is_idle(axis: AxisView) -> bool:
    """Whether the ends of a pipeline have nothing to tell each other: a model whose embedding is not tied."""
    return axis.name == "ends" and axis.ops == ()


def _places(view: LayoutView) -> list[str]:
    used = view.layout.axes or ("tp",)
    shown = min(view.layout.world_size, GROUPS_SHOWN * 4)
    rows = [
        [rank, view.node(rank), *(view.layout.coordinates(rank, view.rank_order)[axis] for axis in used)]
        for rank in range(shown)
    ]
    lines = aligned(["rank", "node", *used], rows)
    if shown < view.layout.world_size:
        lines.append(f"# and {plural(view.layout.world_size - shown, 'more rank')}")
    return lines


def _axis_text(view: LayoutView, axis: AxisView, width: int) -> list[str]:
    meaning = axis.meaning
    lines = _prose(f"{axis.name}{axis.degree}, {meaning.title}: {members_text(axis)}.", width)
    lines += _prose(f"What passes: {meaning.passes}.", width)
    if meaning.gives:
        lines += _prose(f"It gives: {gives_text(axis)}. It costs: {costs_text(view, axis)}.", width)
    lines += _prose(f"Link: {link_text(axis, ' (*)')}{bytes_text(view, axis)}.", width)
    lines += _prose(f"Source: {meaning.source}.", width)
    lines += _groups_text(view, axis, width)
    if len(axis.groups) > GROUPS_SHOWN:
        lines.append(f"# and {plural(len(axis.groups) - GROUPS_SHOWN, 'more group')}")
    return lines


def _groups_text(view: LayoutView, axis: AxisView, width: int) -> list[str]:
    """Members on the left, what is said of them on the right; below them where they fill the line."""
    shown = axis.groups[:GROUPS_SHOWN]
    groups = [_group(view, group) for group in shown]
    column = min(max(map(len, groups)), width // 2)
    lines = []
    for group, members in zip(shown, groups, strict=True):
        left = textwrap.wrap(members, width - 6, initial_indent="    ", subsequent_indent="      ")
        indent = column + 6 if len(members) <= column else 10
        right = textwrap.wrap(group_words(view, axis, group), max(24, width - indent - 1))
        if len(members) <= column:
            left = [f"    {members:<{column}}  {right.pop(0)}"]
        lines += left + [" " * indent + line for line in right]
    return lines


def _mix_text(view: LayoutView, width: int) -> list[str]:
    lines = _prose(f"Together. {view.mix.title}.", width)
    for remark in view.mix.remarks:
        lines += _prose(f"- {remark.text} ({remark.source})", width, "  ")
    if view.num_nodes > 1:
        for order in view.orders:
            lines += _prose(f"- {orders_text(order)}: {crossing_text(order)}.", width, "  ")
    return lines


def _step_text(view: LayoutView, width: int) -> list[str]:
    figures = "" if view.job is None else f" {FIGURES}"
    lines = _prose(f"One step, in order.{figures}", width)
    for number, phase in enumerate(view.phases, start=1):
        lines += _prose(f"{number:2}. {phase.words.title}, {phase.words.when}. {phase.words.what}.", width, "    ")
        lines += _prose(f"    {phase_text(view, phase)}", width, "    ")
    return lines


def _group(view: LayoutView, group: Sequence[int]) -> str:
    """Members, with a bar where the next is on another node; of many the first and the last."""
    crosses = len({view.node(rank) for rank in group}) > 1
    shown = group if len(group) <= MEMBERS_SHOWN else group[: MEMBERS_SHOWN // 2]
    words = [str(shown[0])]
    for before, rank in pairwise(shown):
        words.append(f"{'| ' if view.node(before) != view.node(rank) else ''}{rank}")
    if len(group) > len(shown):
        words.append(f"... {group[-1]} ({len(group)} ranks)")
    return " ".join(words) + (" *" if crosses else "")


def _prose(text: str, width: int, indent: str = "") -> list[str]:
    """Comment lines of at most so many columns."""
    start = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text.lstrip(),
        width,
        initial_indent=f"# {start}",
        subsequent_indent=f"# {indent}",
        break_long_words=False,
        break_on_hyphens=False,
    )
