from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.trained import said
from clusterbench.charts import Chart, Section, bars_note
from clusterbench.drawing.bars import Bars
from clusterbench.drawing.panel import Entry
from clusterbench.run_folder.attempts import FAULTS, History
from clusterbench.words import few, plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST_BARS = 12
ENDS_NO_CASE = ("none", "slow")
"""Drills that end well: nothing is planted, or a slow rank, which the findings name."""
_NAMED = 4


@dataclass(frozen=True)
class Drilled:
    """Cases with a fault in them, and those without one that were to run after the first of these."""

    planted: list[History]
    after: list[History]


class PlantedFaults(Chart[Drilled]):
    """How soon each planted fault was on record, and which rank was named.

    How to read it
    --------------
    A bar is the time from the start of a case until its end was on record, its processes' start included. Beside its
    name stands how it ended and the rank that was named. A rank that hangs or is stopped is named when its case's
    time_limit_s is over. On top stand faults that did not come to light as they should, then those that took longest;
    of many twelve are drawn, and the table behind the bars has all, and the cases without a fault that came after.
    A slow rank ends no case and does not count here: findings name it.
    """

    title: ClassVar[str] = "How planted faults came to light"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "ways"
    rests_on_times: ClassVar[bool] = False

    def select(self, reading: Reading) -> Drilled | None:
        histories = reading.histories
        planted = [history for history in histories if _is_planted(history)]
        if 2 * len(planted) <= len(histories):
            return None  # a run about something else
        first = histories.index(planted[0])
        after = [history for history in histories[first:] if not _is_planted(history)]
        return Drilled(planted, after)

    def draw(self, data: Drilled) -> list[Panel]:
        shown = sorted(data.planted, key=lambda history: (not _flaw(history), -_elapsed_s(history)))
        first = f"\n{MOST_BARS} of {len(shown):,}" if len(shown) > MOST_BARS else ""
        panel = Bars(
            f"Until a fault was on record{first}",
            [f"{_name(history)}: {_end(history)}" for history in shown],
            {"time": [_elapsed_s(history) or None for history in shown]},
            "s",
            cases=[history.case.id for history in shown],
            most=MOST_BARS,
        ).panel()
        others = (Entry((f"{each.case.id}, no fault: {each.status}", None, ""), each.case.id) for each in data.after)
        return [replace(panel, entries=(*panel.entries, *others))]

    def answer(self, data: Drilled) -> str:
        return f"{_came_to_light(data.planted)} {_ran(data.after)}".strip()

    def left_out(self, data: Drilled) -> str:
        return bars_note([len(data.planted)], MOST_BARS, "slowest", "")


def _is_planted(history: History) -> bool:
    case = history.case
    return case.benchmark == "fault_drill" and case.point.get("fault", "none") not in ENDS_NO_CASE


def _flaw(history: History) -> str:
    """What a fault did in any repeat instead of coming to light as it should; empty where it came to light."""
    case = history.case
    ends = {outcome.status for outcome in history.deciding}
    culprit = min(int(case.point.get("rank", 0)), case.world_size - 1)
    if "ok" in ends:
        return "not noticed"
    if not ends or not ends.issubset(FAULTS):
        return "not run"
    if any(outcome.rank != culprit for outcome in history.deciding):
        return f"rank {culprit} not named"
    return "" if ends.issubset(case.expected_outcomes or FAULTS) else "not the end that the suite expects"


def _name(history: History) -> str:
    """``1n4/kill-in-run``."""
    return history.case.id.removeprefix("fault_drill/")


def _elapsed_s(history: History) -> float:
    return history.outcome.elapsed_s if history.outcome else 0.0


def _end(history: History) -> str:
    """``failed, rank 1``, ``ok, not noticed``."""
    rank = history.outcome.rank if history.outcome else None
    return ", ".join(filter(None, [said(history.status), "" if rank is None else f"rank {rank}", _flaw(history)]))


def _came_to_light(planted: Sequence[History]) -> str:
    flaws: dict[str, list[str]] = {}
    for history in planted:
        flaws.setdefault(_flaw(history), []).append(_name(history))
    number = len(flaws.pop("", ()))
    others = "".join(f"; {flaw}: {few(names, _NAMED)}" for flaw, names in flaws.items())
    return f"{number:,} of {plural(len(planted), 'planted fault')} came to light with the right rank named{others}."


def _ran(after: Sequence[History]) -> str:
    if not after:
        return ""
    lost = [f"{history.case.id} ({said(history.status)})" for history in after if history.pooled is None]
    others = f"; not: {few(lost, _NAMED)}" if lost else ""
    return f"{len(after) - len(lost):,} of {plural(len(after), 'case')} after them without a fault ran{others}."
