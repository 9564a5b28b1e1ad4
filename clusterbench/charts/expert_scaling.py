from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import titles
from clusterbench.cases.trained import Trained, are_most, groups_that_differ, said
from clusterbench.charts import Chart, Section, curves_note, said_of_each
from clusterbench.drawing.bars import Bars
from clusterbench.units import scale

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 3


class ExpertScaling(Chart[list[list[Trained]]]):
    """Time of a layer's experts by part, and the throughput of the step, against the ranks that share them.

    How to read it
    --------------
    First, where the forward passes of one step spend their time in the experts, with the device waited for around each
    part, so that nothing overlaps: deciding where tokens go and sending them there (dispatch), computing, sending them
    back (combine). Then the throughput of whole steps, in which parts may overlap; balanced routing forces an even
    load. How uneven the load is shows the chart of their load. On CPU ranks this shows the method: how long messages
    take there beside products says nothing about a GPU cluster.
    """

    title: ClassVar[str] = "Experts over ranks: dispatch, products, combine, and throughput"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "zero_stages"

    def select(self, reading: Reading) -> list[list[Trained]] | None:
        cases = reading.trained_with("expert_time", "expert_imbalance", "tokens_per_s_per_rank")
        mixtures = [case for case in cases if not case.is_measured or case.details("expert_time")]
        groups = groups_that_differ(
            mixtures,
            lambda case: case.layout.ep if case.is_measured else None,
            _base,
            frozenset({"routing", "expert_overlap"}),
        )
        return groups if groups and are_most(groups, cases) else None

    def draw(self, data: list[list[Trained]]) -> list[Panel]:
        groups = zip(data[:MOST], titles(data), strict=False)
        return [figure for group, under in groups for figure in _panels(group, under)]

    def answer(self, data: list[list[Trained]]) -> str:
        return said_of_each(titles(data)[:MOST], map(_sentence, data))

    def left_out(self, data: list[list[Trained]]) -> str:
        return curves_note(len(data), MOST, "workloads")


def _base(case: Trained) -> tuple[object, ...]:
    return *case.layout.apart_from("ep"), case.row.num_nodes


def _routing(case: Trained) -> str:
    return str(case.point.get("routing", "real"))


def _panels(group: Sequence[Trained], under: str) -> list[Panel]:
    shown = sorted(group, key=lambda case: (_routing(case) != "real", bool(case.point.get("expert_overlap"))))
    labels = [", ".join([f"ep{case.layout.ep}", *_words(case)]) for case in shown]
    missing = {number: said(case.row.status) for number, case in enumerate(shown) if not case.is_measured}
    parts = list(dict.fromkeys(part for case in shown for part in case.details("expert_time")))
    times = {said(part): [case.value("expert_time", part) for case in shown] for part in parts}
    speeds = [case.value("tokens_per_s_per_rank") for case in shown]
    cases = [case.row.case for case in shown]
    return [
        Bars(f"Forward of the experts, slowest rank{under}", labels, times, "s", missing=missing, cases=cases).panel(),
        Bars(
            f"Throughput per rank{under}", labels, {"throughput": speeds}, "tokens/s", missing=missing, cases=cases
        ).panel(),
    ]


def _words(case: Trained) -> list[str]:
    return [_routing(case), *(["overlap"] if case.point.get("expert_overlap") else [])]


def _sentence(group: Sequence[Trained]) -> str:
    own = [case for case in group if case.details("expert_time") and not case.point.get("expert_overlap")]
    real = {case.layout.ep: case for case in own if _routing(case) == "real"} or {case.layout.ep: case for case in own}
    if len(real) < 2:
        return ""
    first, last = real[min(real)], real[max(real)]
    before, after = _travel(first), _travel(last)
    of = scale("s", [before[0], after[0]])
    sentence = (
        f"From ep{first.layout.ep} to ep{last.layout.ep} dispatch and combine go from {of.text(before[0], 3)} to "
        f"{of.text(after[0], 3)} {of.unit}, "
        f"{100 * after[1]:.0f} % of the time in the experts (ep{first.layout.ep}: {100 * before[1]:.0f} %)"
    )
    imbalance = last.value("expert_imbalance", "ranks")
    if imbalance:
        sentence += f"; the fullest rank gets {imbalance:.2f} times the mean rank's rows"
    even = [case for case in own if _routing(case) == "balanced" and case.layout.ep == last.layout.ep]
    fast, slow = (case.value("tokens_per_s_per_rank") if case else None for case in (even[0] if even else None, last))
    if fast and slow:
        by = f"{100 * abs(fast / slow - 1):.0f} %"
        brings = "as much" if by == "0 %" else f"{by} {'more' if fast > slow else 'less'}"
        sentence += f", and an even load brings {brings} throughput"
    return f"{sentence}."


def _travel(case: Trained) -> tuple[float, float]:
    """Seconds of dispatch and combine, and their share."""
    parts = {part: case.value("expert_time", part) or 0.0 for part in case.details("expert_time")}
    travel = parts.get("dispatch", 0.0) + parts.get("combine", 0.0)
    return travel, travel / (sum(parts.values()) or 1.0)
