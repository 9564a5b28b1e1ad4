from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names, titles
from clusterbench.cases.trained import Trained, are_most, changes, groups_that_differ, memory_parts, said
from clusterbench.charts import Chart, Section, curves_note, said_of_each
from clusterbench.charts._memory_colours import memory_colours
from clusterbench.charts._traffic_colours import traffic_colours
from clusterbench.drawing.bars import Bars
from clusterbench.job.passes import STATES

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 3


class ZeroStages(Chart[list[list[Trained]]]):
    """Memory by category at rest and at its peak, and traffic, for each ZeRO stage.

    How to read it
    --------------
    At rest: what a rank keeps between two steps, from live storages; a tick is the formula. ZeRO 1 shares the
    optimizer's states, ZeRO 3 everything. PyTorch's FSDP keeps parameters sharded at rest in stage 2 as well, where
    the paper's stage 2 keeps them whole: the two differ at their peak, in the middle. What is gathered and freed
    is only there. Right: the bytes each stage moves for that, with the formula as a diamond. Memory and traffic are as
    on a GPU, whatever the ranks run on.
    """

    title: ClassVar[str] = "ZeRO stages: memory at rest, memory at its peak, traffic"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "pipeline_bubble"
    rests_on_times: ClassVar[bool] = False

    def select(self, reading: Reading) -> list[list[Trained]] | None:
        cases = reading.trained_with("memory_at_rest", "peak_memory", "traffic_bytes")
        groups = groups_that_differ(
            cases,
            lambda case: case.layout.zero if case.is_measured else None,
            _base,
            frozenset({"offload", "shard_group_size"}),
            fewest=3,
        )
        if not groups or len({_base(case)[1:-1] for case in cases}) != 1:  # the same mix of all else, on any nodes
            return None
        return groups if are_most(groups, cases) else None

    def draw(self, data: list[list[Trained]]) -> list[Panel]:
        groups = zip(data[:MOST], titles(data), strict=False)
        return [figure for group, under in groups for figure in _panels(group, under)]

    def answer(self, data: list[list[Trained]]) -> str:
        return said_of_each(titles(data)[:MOST], map(_sentence, data))

    def left_out(self, data: list[list[Trained]]) -> str:
        return curves_note(len(data), MOST, "workloads")


def _base(case: Trained) -> tuple[object, ...]:
    return case.layout.world_size, *case.layout.apart_from("dp", "zero"), case.row.num_nodes


def _panels(group: Sequence[Trained], under: str) -> list[Panel]:
    name = names(case.row for case in group)
    labels = [name(case.row) for case in group]
    missing = {number: said(case.row.status) for number, case in enumerate(group) if not case.is_measured}
    cases = [case.row.case for case in group]
    figures = []
    for title, metric, categories in (
        ("At rest", "memory_at_rest", STATES),
        ("At its peak", "peak_memory", memory_parts(group)),
    ):
        held = {said(name): [case.value(metric, name) for case in group] for name in categories}
        planned = {said(name): [case.expected(metric, name) for case in group] for name in categories}
        held = {name: sizes for name, sizes in held.items() if any(sizes)}
        if held:
            whole = [case.whole_memory() for case in group] if metric == "peak_memory" else ()
            title = f"{title}, fullest of {group[0].layout.world_size} ranks{under}"
            figures.append(
                Bars(
                    title,
                    labels,
                    held,
                    "B",
                    expected=planned,
                    markers=whole,
                    marker_name="the whole",
                    colours=memory_colours(categories),
                    missing=missing,
                    cases=cases,
                ).panel()
            )
    axes = sorted({axis for case in group for axis in case.details("traffic_bytes")})
    if axes:
        sent = {f"along {axis}": [case.value("traffic_bytes", axis) for case in group] for axis in axes}
        formula = [_sum(case.expected("traffic_bytes", axis) for axis in axes) for case in group]
        title = f"Traffic of one of {group[0].layout.world_size} ranks in a step{under}"
        colours = traffic_colours(list(sent))
        figures.append(
            Bars(title, labels, sent, "B", markers=formula, missing=missing, cases=cases, colours=colours).panel()
        )
    return figures


def _sum(values: object) -> float | None:
    known = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return sum(known) if known else None


def _sent(case: Trained) -> float:
    return sum(case.value("traffic_bytes", axis) or 0.0 for axis in case.details("traffic_bytes"))


def _kept(case: Trained) -> float:
    return sum(case.value("memory_at_rest", name) or 0.0 for name in STATES)


def _sentence(group: Sequence[Trained]) -> str:
    """What each stage alone leaves at rest and at its peak, and how much more it sends than the first with a figure."""
    plain = {case.layout.zero: case for case in reversed(group) if case.is_measured and _kept(case)}
    first, *others = sorted(plain) or [0]
    parts = [f"ZeRO {stage} {_against(plain[stage], plain[first])}" for stage in others]
    against = f", against ZeRO {first}," if first else ""
    return f"On {plain[first].layout.world_size} ranks{against} {'; '.join(parts)}." if parts else ""


def _against(case: Trained, first: Trained) -> str:
    words = changes("memory at rest", _kept(first), _kept(case), "B")
    peak, at_peak, sent = first.whole_memory(), case.whole_memory(), _sent(first)
    if peak and at_peak:
        less = 100 * (1 - at_peak / peak)
        verb = "lowers" if less > 0 else "raises"
        words += f", {'' if words.startswith(verb) else f'{verb} '}the peak by {abs(less):.0f} %"
    if sent:
        times = f"{_sent(case) / sent:.2g}"
        words += f", and sends {'as many' if times == '1' else f'{times} times the'} bytes"
    return words
