from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.cases.trained import Trained, are_most, changes, groups_that_differ, memory_parts, said
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.charts._memory_colours import memory_colours
from clusterbench.drawing.bars import Bars
from clusterbench.parallel.recompute import KINDS
from clusterbench.units import format_value

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 4


class Recompute(Chart[list[list[Trained]]]):
    """Memory that recomputation saves, the speed it costs, and the arithmetic it adds.

    How to read it
    --------------
    Memory is the most a rank held of each category, a tick what was expected of it, the diamond and the figure all of
    them at one moment; only activations can shrink. Beside it is what that costs in throughput. MFU counts what the
    mathematics needs, HFU also what is computed a second time: where recomputation costs arithmetic, the two part.
    Selective recomputation repeats cheap operators only, which neither counts. What the operators that ran come to is
    the executed rate: how well the device is used, whatever is computed twice. Memory is as on a GPU; speed on CPU
    ranks says nothing about one.
    """

    title: ClassVar[str] = "Recomputation: memory saved, speed paid"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "strategies"

    def select(self, reading: Reading) -> list[list[Trained]] | None:
        cases = reading.trained_with("peak_memory", "tokens_per_s_per_rank", "mfu", "hfu")
        groups = groups_that_differ(
            cases,
            lambda case: _kind(case) if case.is_measured else None,
            lambda case: (case.layout, case.row.num_nodes),
            frozenset({"recompute"}),
        )
        return groups if groups and are_most(groups, cases) else None

    def draw(self, data: list[list[Trained]]) -> list[Panel]:
        return [figure for group in data[:MOST] for figure in _panels(group, _title(group, data))]

    def answer(self, data: list[list[Trained]]) -> str:
        return "\n".join(filter(None, (_sentence(group, _title(group, data)) for group in data[:MOST])))

    def left_out(self, data: list[list[Trained]]) -> str:
        return curves_note(len(data), MOST, "layouts and workloads")


def _kind(case: Trained) -> str:
    return str(case.point.get("recompute", "none"))


def _title(group: Sequence[Trained], data: Sequence[Sequence[Trained]]) -> str:
    return names((case.row for case, *_ in data), without=("recompute",))(group[0].row)


def _panels(group: Sequence[Trained], title: str) -> Iterator[Panel]:
    shown = sorted(group, key=lambda case: KINDS.index(_kind(case)) if _kind(case) in KINDS else len(KINDS))
    labels = [_kind(case) for case in shown]
    missing = {number: said(case.row.status) for number, case in enumerate(shown) if not case.is_measured}
    cases = [case.row.case for case in shown]
    parts = memory_parts(shown)
    yield Bars(
        f"Peak memory per rank\n{title}",
        labels,
        {said(name): [case.value("peak_memory", name) for case in shown] for name in parts},
        "B",
        expected={said(name): [case.expected("peak_memory", name) for case in shown] for name in parts},
        markers=[case.whole_memory() for case in shown],
        marker_name="the whole",
        colours=memory_colours(parts),
        missing=missing,
        cases=cases,
    ).panel()
    speeds = [case.value("tokens_per_s_per_rank") for case in shown]
    yield Bars(
        f"Throughput per rank\n{title}", labels, {"throughput": speeds}, "tokens/s", missing=missing, cases=cases
    ).panel()
    peak = next((peak for peak in ("datasheet", "measured") if any(_mfu(case, "mfu", peak) for case in shown)), None)
    if peak:
        needed = [_mfu(case, "mfu", peak) for case in shown]
        executed = [_mfu(case, "hfu", peak) for case in shown]
        again = [None if a is None or b is None else max(b - a, 0.0) for a, b in zip(needed, executed, strict=True)]
        yield Bars(
            f"Share of the {peak} peak\n{title}",
            labels,
            {"MFU": needed, "computed again": again},
            "fraction",
            markers=executed,
            marker_name="HFU",
            missing=missing,
            cases=cases,
        ).panel()
    rates = [case.value("executed_flops_per_s_per_rank") for case in shown]
    if any(rates):
        yield Bars(
            f"Executed FLOP/s per rank\n{title}", labels, {"executed": rates}, "FLOP/s", missing=missing, cases=cases
        ).panel()


def _mfu(case: Trained, metric: str, peak: str) -> float | None:
    return case.value(metric, "palm", peak)


def _sentence(group: Sequence[Trained], name: str) -> str:
    """What each kind of recomputation saves and costs against none."""
    kinds = {_kind(case): case for case in group}
    if "none" not in kinds or not (whole := kinds["none"].whole_memory()):
        return ""
    before, parts = kinds["none"].value("tokens_per_s_per_rank"), []
    for kind in ("selective", "full"):
        case = kinds.get(kind)
        if case is None or not (left := case.whole_memory()):
            continue
        speed = case.value("tokens_per_s_per_rank")
        cost = ""
        if before and speed:
            by = f"{100 * abs(1 - speed / before):.0f} %"
            cost = " for as much" if by == "0 %" else f" for {by} {'less' if speed < before else 'more'}"
            cost += f" throughput ({format_value(speed, 'tokens/s')} per rank)"
        of_memory = changes("peak memory", whole, left, "B")
        parts.append(f"{kind} recomputation {of_memory},{cost or ' speed unknown'}")
    return f"With {name}, {'; '.join(parts)}." if parts else ""
