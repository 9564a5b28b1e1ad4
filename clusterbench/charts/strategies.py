from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names, sharing, titles
from clusterbench.cases.trained import Trained, change, groups_of, memory_parts, said
from clusterbench.charts import Chart, Section, curves_note, said_of_each
from clusterbench.charts._memory_colours import memory_colours
from clusterbench.drawing.bars import Bars

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, MOST_BARS = 4, 40
QUIET = ("schedule", "context")


class Strategies(Chart[list[list[Trained]]]):
    """Peak memory by category for every strategy on the same ranks, from the fullest to the leanest.

    How to read it
    --------------
    All bars train the same model on the same batch with the same number of ranks; plain data parallelism, which saves
    nothing, is the one to compare with. Parts are the most the fullest rank held of each category, from live
    storages, and a tick is where the formula expected the part to end. They peak at different moments: the diamond,
    and the figure, are all of them at the worst one. Memory is as on a GPU, whatever the ranks run on.
    """

    title: ClassVar[str] = "Memory of all strategies side by side"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "top_config"
    rests_on_times: ClassVar[bool] = False

    def select(self, reading: Reading) -> list[list[Trained]] | None:
        cases = [case for case in reading.trained_with("peak_memory") if case.row.status != "refused"]
        if len({case.layout.world_size for case in cases}) != 1:
            return None
        groups = [
            group
            for group in groups_of(cases, lambda case: (case.row.num_nodes,), sharing())
            if _is_a_comparison(group)
        ]
        return groups or None

    def draw(self, data: list[list[Trained]]) -> list[Panel]:
        return [_bars(group, under) for group, under in zip(data[:MOST], titles(data), strict=False)]

    def answer(self, data: list[list[Trained]]) -> str:
        return said_of_each(titles(data)[:MOST], map(_sentence, data))

    def left_out(self, data: list[list[Trained]]) -> str:
        return curves_note(len(data), MOST, "workloads") or curves_note(len(data[0]), MOST_BARS, "strategies")


def _is_a_comparison(group: Sequence[Trained]) -> bool:
    """Several ways of sharing, beside the one that shares nothing."""
    measured = [case for case in group if case.is_measured]
    return any(map(_is_plain, group)) and len({case.layout.axes for case in measured}) > 2 and len(measured) > 5


def _is_plain(case: Trained) -> bool:
    return case.layout.axes == ("dp",) and not case.layout.riders and case.point.get("recompute", "none") == "none"


def _bars(group: Sequence[Trained], under: str) -> Panel:
    shown = sorted(group, key=lambda case: -(case.whole_memory() or float("inf")))[:MOST_BARS]
    parts, name = memory_parts(shown), names((case.row for case in group), QUIET)
    held = {said(name): case_values for name in parts if any(case_values := [_held(case, name) for case in shown])}
    return Bars(
        f"Peak memory, fullest of {group[0].layout.world_size} ranks{under}",
        [name(case.row) for case in shown],
        held,
        "B",
        expected={said(name): [case.expected("peak_memory", name) for case in shown] for name in parts},
        markers=[case.whole_memory() for case in shown],
        marker_name="the whole",
        colours=memory_colours(parts),
        missing={number: said(case.row.status) for number, case in enumerate(shown) if not case.is_measured},
        cases=[case.row.case for case in shown],
    ).panel()


def _held(case: Trained, part: str) -> float | None:
    return case.value("peak_memory", part)


def _sentence(group: Sequence[Trained]) -> str:
    measured = [case for case in group if case.whole_memory()]
    if len(measured) < 2:
        return ""  # figures that are void are not ranked
    plain = next((case for case in measured if _is_plain(case)), None)
    fullest = plain or max(measured, key=lambda case: case.whole_memory() or 0.0)
    others = [case for case in measured if case is not fullest]
    leanest = min(others, key=lambda case: case.whole_memory() or 0.0)
    name = names((case.row for case in group), QUIET)
    if (leanest.whole_memory() or 0.0) >= (fullest.whole_memory() or 0.0):
        return f"None of {len(others)} strategies saves memory against {name(fullest.row)}."
    sentence = (
        f"Of {len(others)} strategies {name(leanest.row)} saves most against {name(fullest.row)}: it lowers peak "
        f"memory {change(fullest.whole_memory() or 1.0, leanest.whole_memory() or 0.0, 'B')}"
    )
    parts = []
    for part in ("optimizer_state", "activations"):
        held = [case for case in others if _held(case, part) is not None]
        least = min(held, key=lambda case: _held(case, part) or 0.0, default=None)
        if least and (before := _held(fullest, part)):
            share = 100 * (1 - (_held(least, part) or 0.0) / before)
            if share < 0.5:
                continue
            parts.append(f"of {said(part)} {name(least.row)} saves most, {share:.0f} %")
    return f"{sentence}{''.join(f'; {part}' for part in parts)}."
