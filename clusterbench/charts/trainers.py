from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.faster import Faster, fastest_of, speed_of, won_by
from clusterbench.cases.names import names, titles
from clusterbench.cases.ranking import percent
from clusterbench.cases.trained import Trained, groups_of, groups_that_differ, said
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.bars import Bars
from clusterbench.job import OURS
from clusterbench.run_folder.attempts import History
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 3
TRAINER = "trainer"


@dataclass(frozen=True)
class ByTrainer:
    """Cases that differ in whose step is run alone, group by group; samples by case."""

    groups: list[list[Trained]]
    histories: Mapping[str, History]


class Trainers(Chart[ByTrainer]):
    """Throughput per rank, peak memory and traffic of the same step, run by one trainer and by another.

    How to read it
    --------------
    Bars side by side compute the same numbers from the same weights and tokens, as their first losses and norms show;
    what differs is the code: what it sends and when, what it keeps, and how long it takes between two operators. A
    trainer counts as faster where samples tell it from the other. On CPU ranks that talk over Gloo this says what each
    sends and keeps, and of speed nothing that holds on GPUs.
    """

    title: ClassVar[str] = "Trainers: the same step, run by different code"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "placements"

    def select(self, reading: Reading) -> ByTrainer | None:
        cases = [case for case in reading.trained if case.row.status != "refused"]
        groups = groups_that_differ(
            cases,
            lambda case: _trainer(case) if speed_of(case) else None,
            lambda case: (case.layout, case.row.num_nodes),
            frozenset({TRAINER}),
        )
        return ByTrainer(groups, reading.history_of) if groups else None

    def draw(self, data: ByTrainer) -> list[Panel]:
        alike = _panels(data)
        unders = titles(alike)
        return [panel for group, under in zip(alike[:MOST], unders, strict=False) for panel in _bars(group, under)]

    def answer(self, data: ByTrainer) -> str:
        found = [*fastest_of(data.groups, _trainer, data.histories)]
        comparisons = plural(len(found), "comparison")
        name = names((each.case.row for each in found), without=[TRAINER])
        parts = [
            f"trainer {trainer} is faster in {len(won):,} of {comparisons}, most in {name(most.case.row)}, where "
            f"{_trainer(most.second)} takes {percent(most.longer_by)} longer"
            for trainer, won in won_by(found)
            for most in [max(won, key=lambda each: each.longer_by)]
        ]
        left = sum(not each.is_told_apart for each in found)
        if not parts:
            parts = [f"in none of {comparisons} do samples tell one trainer from the other"]
        elif left:
            parts.append(f"{left:,} {'is' if left == 1 else 'are'} not told apart")
        text = "; ".join(filter(None, [*parts, _amounts(found)]))
        return f"{text[0].upper()}{text[1:]}."

    def left_out(self, data: ByTrainer) -> str:
        return curves_note(len(_panels(data)), MOST, "workloads")


def _trainer(case: Trained) -> str:
    return str(case.point.get(TRAINER, OURS))


def _panels(data: ByTrainer) -> list[list[Trained]]:
    """The cases of all layouts that do the same work on as many nodes."""
    shown = [case for group in data.groups for case in group]
    return groups_of(shown, lambda case: (case.row.num_nodes,), {TRAINER})


def _bars(group: Sequence[Trained], under: str) -> list[Panel]:
    name = names((case.row for case in group), without=[TRAINER])
    entries = [f"{name(case.row)}: {_trainer(case)}" for case in group]
    cases = [case.row.case for case in group]
    absent = {number: said(case.row.status) for number, case in enumerate(group) if not speed_of(case)}
    return [
        Bars(title + under, entries, {what: values}, unit, missing=absent, cases=cases).panel()
        for title, what, values, unit in (
            ("Throughput per rank", "throughput", [case.value("tokens_per_s_per_rank") for case in group], "tokens/s"),
            ("Peak memory, fullest rank", "peak memory", [case.whole_memory() for case in group], "B"),
            ("Traffic of a rank in a step", "traffic", [case.sent_bytes() for case in group], "B"),
        )
    ]


def _amounts(found: Sequence[Faster]) -> str:
    """What one of two trainers holds and sends, in what the other does, from the least to the most."""
    first, *others = sorted({_trainer(case) for each in found for case in (each.case, each.second)})
    if len(others) != 1:
        return ""
    held, sent = (_times(found, first, size) for size in (Trained.whole_memory, Trained.sent_bytes))
    holds = f"at its peak {first} holds {held} times what {others[0]} holds" if held else ""
    sends = f"{first} sends {sent} times what {others[0]} sends" if sent else ""
    return ", and ".join(filter(None, (holds, sends)))


def _times(found: Sequence[Faster], of: str, size: Callable[[Trained], float | None]) -> str:
    ratios = []
    for each in found:
        sizes = {_trainer(case): size(case) or 0.0 for case in (each.case, each.second)}
        own = sizes.pop(of)
        (other,) = sizes.values()
        if not own or not other:
            return ""
        ratios.append(own / other)
    return " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios))))
