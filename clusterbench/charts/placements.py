from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.faster import fastest_of, speed_of, won_by
from clusterbench.cases.names import names, titles
from clusterbench.cases.ranking import percent
from clusterbench.cases.trained import Trained, are_most, groups_of, groups_that_differ, said
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.bars import Bars
from clusterbench.layout import RANK_ORDERS
from clusterbench.run_folder.attempts import History
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 4
ORDER = "rank_order"


@dataclass(frozen=True)
class Placed:
    """Cases that differ in the place of their ranks alone, group by group; samples by case."""

    groups: list[list[Trained]]
    histories: Mapping[str, History]


class Placements(Chart[Placed]):
    """Throughput per rank of the same layout, with its ranks placed in one order and in another.

    How to read it
    --------------
    Bars of one panel compute and send the same; what differs is which ranks are in one node, and so which axis crosses
    the network. Gradients cross once a step, activations of a pipeline in every micro-batch, so that the number of
    micro-batches decides, too. An order counts as faster where samples tell it from the other. On one host, and on CPU
    ranks that talk over Gloo, all orders send over the same links.
    """

    title: ClassVar[str] = "Orders of ranks: which axis leaves the node"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "best_by_size"

    def select(self, reading: Reading) -> Placed | None:
        trained = reading.trained_with("tokens_per_s_per_rank")
        cases = [case for case in trained if case.row.status != "refused" and case.point.get(ORDER) in RANK_ORDERS]
        groups = groups_that_differ(
            cases,
            lambda case: case.point.get(ORDER) if speed_of(case) else None,
            lambda case: (case.layout, case.row.num_nodes),
            frozenset({ORDER}),
        )
        return Placed(groups, reading.history_of) if groups and are_most(groups, cases) else None

    def draw(self, data: Placed) -> list[Panel]:
        alike = _panels(data)
        unders = titles(alike)
        return [_bars(group, under) for group, under in zip(alike[:MOST], unders, strict=False)]

    def answer(self, data: Placed) -> str:
        return _sentence(data)

    def left_out(self, data: Placed) -> str:
        return curves_note(len(_panels(data)), MOST, "workloads")


def _panels(data: Placed) -> list[list[Trained]]:
    """The cases of all layouts that do the same work on as many nodes."""
    shown = [case for group in data.groups for case in group]
    return groups_of(shown, lambda case: (case.row.num_nodes,), {ORDER})


def _bars(group: Sequence[Trained], under: str) -> Panel:
    name = names(case.row for case in group)
    return Bars(
        f"Throughput per rank{under}",
        [f"{name(case.row)}: {_crossing(case)}" for case in group],
        {"throughput": [case.value("tokens_per_s_per_rank") for case in group]},
        "tokens/s",
        missing={number: said(case.row.status) for number, case in enumerate(group) if not speed_of(case)},
        cases=[case.row.case for case in group],
    ).panel()


def _crossing(case: Trained) -> str:
    """``pp leaves the node``; of one node that none does."""
    ranks_per_node, order = max(1, case.layout.world_size // case.row.num_nodes), str(case.point.get(ORDER))
    axes = [
        axis
        for axis in case.layout.axes
        if any(len({rank // ranks_per_node for rank in group}) > 1 for group in case.layout.groups(axis, order))
    ]
    if not axes:
        return "none leaves the node"
    return f"{' and '.join(axes)} {'leaves' if len(axes) == 1 else 'leave'} the node"


def _order(case: Trained) -> str:
    return str(case.point.get(ORDER))


def _sentence(data: Placed) -> str:
    found = [*fastest_of(data.groups, _order, data.histories)]
    layouts = plural(len(found), "comparison")
    won = won_by(found)
    if not won:
        return f"In none of {layouts} do samples tell one order of ranks from the other."
    name = names((each.case.row for each in found), without=[ORDER])
    parts = []
    for order, cases in won:
        most = max(cases, key=lambda each: each.longer_by)
        crossing = Counter(_crossing(each.case) for each in cases).most_common(1)[0][0]
        parts.append(
            f"ranks as {order} are faster in {len(cases):,} of {layouts}, most in {name(most.case.row)}, where "
            f"{crossing} and the other order takes {percent(most.longer_by)} longer"
        )
    left = sum(not each.is_told_apart for each in found)
    rest = f"; {left:,} {'is' if left == 1 else 'are'} not told apart" if left else ""
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}{rest}."
