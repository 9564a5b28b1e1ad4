"""A layout as one self-contained page: a step's messages on a clock, and the groups of every axis over the nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from markupsafe import Markup

from clusterbench.cluster import Accelerator
from clusterbench.expected.fits import NOT_SEEN, fit, fit_words
from clusterbench.expected.memory import TOTAL
from clusterbench.job import TrainingJob
from clusterbench.layout import RANK_ORDERS
from clusterbench.layout_view import AxisView, LayoutView, group_words, rank_words
from clusterbench.layout_view.memory import (
    StageMemory,
    gigabytes,
    limits_of,
    memory_of_stages,
    no_total_text,
    other_totals,
)
from clusterbench.layout_view.step import Phase
from clusterbench.layout_view.text import (
    FIGURES,
    bytes_text,
    calls_text,
    costs_text,
    crossing_text,
    degrees_text,
    gives_text,
    job_text,
    link_text,
    members_text,
    order_text,
    orders_text,
    phase_text,
    silence_text,
)
from clusterbench.own_copy import version
from clusterbench.parallel import from_options
from clusterbench.parallel.recompute import KINDS
from clusterbench.report.template import css, template
from clusterbench.units import format_bytes
from clusterbench.words import plural

MOST_RANKS_DRAWN = 512
MOST_GROUPS_LISTED = 256
_MEMBERS_LISTED = 64
_COLOURS = 8
_STEP, _MARGIN, _HEAD = 58, 16, 30
_MOST_COLUMNS = 4
_NODES_IN_A_ROW = 4
_HERE = Path(__file__).parent


def layout_page(view: LayoutView, card: Accelerator | None = None) -> str:
    """The page as HTML; ranks beyond :data:`MOST_RANKS_DRAWN` are left out of the drawings, whole nodes at a time.

    Parameters
    ----------
    card
        Whether the memory of a rank fits it is told; of none whether it fits those that most have.
    """
    nodes = list(_nodes(view))
    drawn = len(nodes) * _drawn_of_node(view)
    left_out = view.layout.world_size - drawn
    ranks = [
        {"number": rank, "x": x, "y": y, "words": rank_words(view, rank)}
        for rank in range(drawn)
        for x, y in [_place(view, rank)]
    ]
    return template(_HERE / "layout.html").render(
        layout=str(view.layout),
        equation=degrees_text(view),
        order=order_text(view),
        job=job_text(view),
        mix=view.mix,
        memory=None if view.job is None else _memory(view.job, card),
        nesting=list(_nesting(view)),
        orders=[(orders_text(order), crossing_text(order)) for order in view.orders] if view.num_nodes > 1 else [],
        phases=list(_phases(view)),
        figures_of="" if view.job is None else f"{FIGURES} The longer its bar, the more bytes a phase has. ",
        step_alt=f"{plural(drawn, 'rank')} on {plural(len(nodes), 'node')}; the list of phases says what passes",
        ranks=ranks,
        more=f"{plural(left_out, 'more rank')} not drawn." if left_out else "",
        axes=[_axis(view, axis, drawn) for axis in view.axes],
        findings=view.findings,
        nodes=nodes,
        width=max(node["x"] + node["width"] for node in nodes) + 2,
        height=max(node["y"] + node["height"] for node in nodes) + 2,
        version=version(),
        css=css(),
        own_css=css(_HERE / "layout.css"),
        js=Markup((_HERE / "layout.js").read_text(encoding="utf-8")),
        data=_data(view, drawn),
    )


def _memory(job: TrainingJob, card: Accelerator | None) -> dict[str, Any]:
    """Whether it fits, a bar and a row for each stage, and what other lengths and recomputation would take."""
    every = from_options({})
    stages, limits = memory_of_stages(job, every), limits_of(card)
    totals = [stage.total for stage in stages if stage.total is not None]
    most = max(totals, default=0.0)
    above = [limit for limit in limits.values() if limit >= most]
    end = max(most, min(above, default=0.0))
    return {
        "fits": [f"{name[0].upper()}{name[1:]}: {fit_words(most, limit)}." for name, limit in limits.items()],
        "unknown": "" if totals else no_total_text(job, every),
        "not_seen": NOT_SEEN,
        "bars": [_bar(stage, stage.total, end) for stage in stages if stage.total is not None],
        "limits": [
            {"name": f"{limit / 1e9:g} GB", "percent": f"{100 * limit / end:.2f}"}
            for limit in limits.values()
            if limit <= end
        ],
        "categories": [name.replace("_", " ").replace(TOTAL, "all at one moment") for name in stages[0].held],
        "stages": [
            {"name": stage.name, "sizes": [gigabytes(size) for size in stage.held.values()], "when": stage.when}
            for stage in stages
        ],
        "ways": KINDS,
        "others": [
            {
                "seq_len": seq_len,
                "is_own": seq_len == job.seq_len,
                "cells": [(gigabytes(total), _verdict(total, card)) for total in of_ways],
            }
            for seq_len, of_ways in other_totals(job)
        ]
        if totals
        else [],
        "is_judged": card is not None,
    }


def _bar(stage: StageMemory, total: float, end: float) -> dict[str, Any]:
    """What is always there, and what comes and goes beside it when most is held: parts that add up to the total."""
    at_rest = stage.at_rest
    parts = [
        ("parameters", at_rest["parameters"]),
        ("optimizer state", at_rest["optimizer_state"]),
        ("gradients, activations and what is gathered", total - sum(at_rest.values())),
    ]
    words = "; ".join(f"{name} {gigabytes(size)} GB" for name, size in parts)
    return {
        "name": stage.name,
        "words": f"{stage.name}: {gigabytes(total)} GB at most, of which {words}",
        "total": gigabytes(total),
        "parts": [{"name": name, "percent": f"{100 * size / end:.2f}"} for name, size in parts],
    }


def _verdict(total: float | None, card: Accelerator | None) -> str:
    """What is wrong with a size, in a word or two; nothing where it fits, or where no card is named."""
    if total is None or card is None or card.memory_bytes is None:
        return ""
    return {"fits": "", "close, measure it": "close", "does not fit": "too much"}[fit(total, card.memory_bytes)]


def _data(view: LayoutView, drawn: int) -> Markup:
    """What layout.js plays: places of ranks, groups of axes as far as they are drawn, and who speaks in each phase.

    Numbers, and words of this package: nothing in it could end the script element.
    """
    groups = {axis.name: [[rank for rank in group if rank < drawn] for group in axis.groups] for axis in view.axes}
    phases = [
        {
            "title": phase.words.title,
            "messages": [
                {"axis": axis, "flow": phase.words.flow}
                for axis in dict.fromkeys(message.axis for message in phase.messages)
            ],
        }
        for phase in view.phases
    ]
    data = {
        "places": [_place(view, rank) for rank in range(drawn)],
        "ranksPerNode": view.ranks_per_node,
        "groups": {name: [group for group in members if len(group) > 1] for name, members in groups.items()},
        "phases": phases,
    }
    return Markup(json.dumps(data, separators=(",", ":")))


def _phases(view: LayoutView) -> Iterator[dict[str, Any]]:
    """Each in words, and with a bar for each of its axes that carries bytes, against the longest."""
    carried = [_carried(phase) for phase in view.phases]
    most = max((size for of_axis in carried for size in of_axis.values()), default=0.0)
    for phase, of_axis in zip(view.phases, carried, strict=True):
        words = phase.words
        yield {
            "title": words.title,
            "when": words.when,
            "what": words.what,
            "figures": phase_text(view, phase),
            "bars": [
                {"is_far": bool(view.axis(name).crossing), "percent": f"{100 * size / most:.1f}"}
                for name, size in of_axis.items()
            ],
        }


def _carried(phase: Phase) -> dict[str, float]:
    """Bytes along each axis in a phase; nothing where no job was named."""
    of_axis: dict[str, float] = {}
    for message in phase.messages:
        if message.link_bytes:
            of_axis[message.axis] = of_axis.get(message.axis, 0.0) + message.link_bytes
    return of_axis


def _nesting(view: LayoutView) -> Iterator[dict[str, Any]]:
    """Axes from the inside, and the expert grid behind them."""
    inner = [axis for axis in RANK_ORDERS[view.rank_order] if view.layout.uses(axis)]
    for name in (*inner, *view.layout.views):
        axis = view.axis(name)
        yield {
            "name": name,
            "size": axis.degree,
            "title": axis.meaning.title,
            "apart": axis.apart,
            "link": "network" if axis.crossing else "within a node",
            "calls": ", ".join(calls_text(op, count) for op, count, _ in axis.ops or ()) or silence_text(view, axis),
            "bytes": format_bytes(ceil(axis.bytes_per_step)) if axis.bytes_per_step else "",
        }


def _drawn_of_node(view: LayoutView) -> int:
    """Ranks of a node; of a node with more than can be drawn, which is the only one then, some."""
    return min(view.ranks_per_node, MOST_RANKS_DRAWN)


def _nodes(view: LayoutView) -> Iterator[dict[str, Any]]:
    """The boxes that are drawn."""
    ranks_per_node = _drawn_of_node(view)
    columns = min(ranks_per_node, _MOST_COLUMNS)
    width, height = (columns * _STEP + _MARGIN, -(-ranks_per_node // columns) * _STEP + _HEAD + _MARGIN // 2)
    for number in range(min(view.num_nodes, max(1, MOST_RANKS_DRAWN // ranks_per_node))):
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
    height = -(-_drawn_of_node(view) // columns) * _STEP + _HEAD + _MARGIN // 2
    row, column = divmod(node, _NODES_IN_A_ROW)
    down, right = divmod(slot, columns)
    return (
        1 + column * (width + 12) + _MARGIN // 2 + right * _STEP + _STEP // 2,
        1 + row * (height + 12) + _HEAD + down * _STEP + _STEP // 2,
    )


def _axis(view: LayoutView, axis: AxisView, drawn: int) -> dict[str, Any]:
    group_of = {rank: number for number, group in enumerate(axis.groups) for rank in group}
    ranks = [
        {
            "number": rank,
            "x": x,
            "y": y,
            "fill": f"--series-{group_of[rank] % _COLOURS}" if rank in group_of else "--muted",
            "where": f"group {group_of[rank]}" if rank in group_of else "in none of these groups",
        }
        for rank in range(drawn)
        for x, y in [_place(view, rank)]
    ]
    lines = [
        {
            "path": _way(_place(view, rank), _place(view, next_rank)),
            "colour": number % _COLOURS,
            "crosses": view.node(rank) != view.node(next_rank),
        }
        for number, group in enumerate(axis.groups)
        for rank, next_rank in pairwise(group)
        if max(rank, next_rank) < drawn
    ]
    left_out, unlisted = (view.layout.world_size - drawn, len(axis.groups) - MOST_GROUPS_LISTED)
    meaning, link = axis.meaning, link_text(axis)
    return {
        "name": axis.name,
        "size": axis.degree,
        "title": meaning.title,
        "members": members_text(axis),
        "passes": meaning.passes,
        "gives": gives_text(axis),
        "costs": costs_text(view, axis),
        "source": meaning.source,
        "link": f"{link}{bytes_text(view, axis)}.",
        "alt": f"{members_text(axis)}; {link}",
        "groups": [_group(view, axis, group) for group in axis.groups[:MOST_GROUPS_LISTED]],
        "left_out": f"and {plural(unlisted, 'more group')}" if unlisted > 0 else "",
        "ranks": ranks,
        "lines": lines,
        "more": f"{plural(left_out, 'more rank')} not drawn." if left_out else "",
    }


def _group(view: LayoutView, axis: AxisView, group: tuple[int, ...]) -> dict[str, str]:
    nodes = sorted({view.node(rank) for rank in group})
    return {"ranks": _listed(group), "nodes": _listed(nodes), "words": group_words(view, axis, group)}


def _listed(numbers: tuple[int, ...] | list[int]) -> str:
    """All of them, or of many the first and the last."""
    shown = numbers[:_MEMBERS_LISTED]
    more = f" ... {numbers[-1]} ({len(numbers)} in all)" if len(numbers) > len(shown) else ""
    return " ".join(map(str, shown)) + more


def _way(start: tuple[int, int], end: tuple[int, int]) -> str:
    """A line that bows, so that those of one row do not lie on each other."""
    (x, y), (to_x, to_y) = start, end
    bow = min(44, 8 + (abs(to_x - x) + abs(to_y - y)) // 7)
    return f"M{x} {y}Q{(x + to_x) // 2 + (bow if x == to_x else 0)} {(y + to_y) // 2 - bow} {to_x} {to_y}"
