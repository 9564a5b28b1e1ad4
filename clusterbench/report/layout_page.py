"""A layout as one self-contained page: its groups drawn over the nodes, axis by axis, and the messages on their way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from clusterbench import __version__
from clusterbench.layout_view import AxisView, LayoutView, bytes_text, degrees_text, order_text

MOST_RANKS_DRAWN = 512
_COLOURS = 8
_STEP, _MARGIN, _HEAD = 58, 16, 30
_MOST_COLUMNS = 4
_NODES_IN_A_ROW = 4
_HERE = Path(__file__).parent

_CSS = """
svg.layout { display: block; max-width: none; }
.node { fill: var(--raised); stroke: var(--grid); }
.name { fill: var(--muted); font: 11px system-ui, sans-serif; }
.rank { fill: var(--paper); font: 600 11px system-ui, sans-serif; text-anchor: middle; }
.way { fill: none; stroke-width: 2.5; opacity: .75; stroke-dasharray: 6 4; animation: flow 1.6s linear infinite; }
.way.crosses { stroke-width: 3; stroke-dasharray: 2 5; }
@keyframes flow { to { stroke-dashoffset: -40; } }
@media (prefers-reduced-motion: reduce), print { .way { animation: none; } }
"""


def layout_page(view: LayoutView) -> str:
    """The page as HTML; ranks beyond :data:`MOST_RANKS_DRAWN` are left out of the drawings, whole nodes at a time."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    nodes = list(_nodes(view))
    return environment.from_string((_HERE / "layout.html").read_text()).render(
        layout=str(view.layout),
        equation=degrees_text(view),
        order=order_text(view),
        job="" if view.job is None else f"{view.job.shape.name}, seq_len {view.job.seq_len}: {view.job.equation}",
        axes=[_axis(view, axis, len(nodes)) for axis in view.axes],
        findings=view.findings,
        nodes=nodes,
        width=max(node["x"] + node["width"] for node in nodes) + 2,
        height=max(node["y"] + node["height"] for node in nodes) + 2,
        version=__version__,
        css=Markup((_HERE / "page.css").read_text()),
        own_css=Markup(_CSS),
    )


def _nodes(view: LayoutView) -> Iterator[dict[str, Any]]:
    """The boxes that are drawn."""
    each = view.ranks_per_node
    columns = min(each, _MOST_COLUMNS)
    width, height = columns * _STEP + _MARGIN, -(-each // columns) * _STEP + _HEAD + _MARGIN // 2
    for number in range(min(view.num_nodes, max(1, MOST_RANKS_DRAWN // each))):
        row, column = divmod(number, _NODES_IN_A_ROW)
        yield {
            "number": number,
            "x": 1 + column * (width + 12),
            "y": 1 + row * (height + 12),
            "width": width,
            "height": height,
        }


def _place(view: LayoutView, rank: int) -> tuple[int, int]:
    """The middle of a rank's circle."""
    node, slot = divmod(rank, view.ranks_per_node)
    columns = min(view.ranks_per_node, _MOST_COLUMNS)
    width = columns * _STEP + _MARGIN
    height = -(-view.ranks_per_node // columns) * _STEP + _HEAD + _MARGIN // 2
    row, column = divmod(node, _NODES_IN_A_ROW)
    down, right = divmod(slot, columns)
    return (
        1 + column * (width + 12) + _MARGIN // 2 + right * _STEP + _STEP // 2,
        1 + row * (height + 12) + _HEAD + down * _STEP + _STEP // 2,
    )


def _axis(view: LayoutView, axis: AxisView, num_nodes: int) -> dict[str, Any]:
    drawn = num_nodes * view.ranks_per_node
    group_of = {rank: number for number, group in enumerate(axis.groups) for rank in group}
    ranks = [
        {
            "number": rank,
            "x": x,
            "y": y,
            "fill": f"--series-{group_of[rank] % _COLOURS}" if rank in group_of else "--muted",
            "where": f"group {group_of[rank]}" if rank in group_of else "in none of these groups",
        }
        for rank in range(min(drawn, view.layout.world_size))
        for x, y in [_place(view, rank)]
    ]
    lines = [
        {
            "path": _way(_place(view, one), _place(view, other)),
            "colour": number % _COLOURS,
            "crosses": view.node(one) != view.node(other),
        }
        for number, group in enumerate(axis.groups)
        for one, other in pairwise(group)
        if max(one, other) < drawn
    ]
    left_out = view.layout.world_size - drawn
    where = (
        f"{axis.crossing} of {len(axis.groups)} groups cross nodes, up to {axis.nodes_per_group} of them"
        if axis.crossing
        else "Every group stays within a node"
    )
    return {
        "name": axis.name,
        "size": len(axis.groups[0]),
        "count": len(axis.groups),
        "title": axis.meaning.title,
        "members": axis.meaning.members,
        "passes": axis.meaning.passes,
        "source": axis.meaning.source,
        "link": f"{where}{bytes_text(axis)}.",
        "alt": f"{len(axis.groups)} groups of {axis.name}: {_listed(axis)}",
        "groups": _listed(axis),
        "ranks": ranks,
        "lines": lines,
        "more": f"{left_out} more ranks are not drawn." if left_out > 0 else "",
    }


def _way(one: tuple[int, int], other: tuple[int, int]) -> str:
    """A line that bows, so that those of one row do not lie on each other."""
    (x, y), (to_x, to_y) = one, other
    bow = min(44, 8 + (abs(to_x - x) + abs(to_y - y)) // 7)
    return f"M{x} {y}Q{(x + to_x) // 2 + (bow if x == to_x else 0)} {(y + to_y) // 2 - bow} {to_x} {to_y}"


def _listed(axis: AxisView) -> str:
    shown = [f"[{' '.join(map(str, group))}]" for group in axis.groups[:256]]
    return " ".join(shown) + (f" and {len(axis.groups) - 256} more" if len(axis.groups) > 256 else "")
