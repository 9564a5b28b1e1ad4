from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.faster import speed_of
from clusterbench.cases.names import names
from clusterbench.cases.ranking import noise, percent
from clusterbench.cases.trained import Trained, groups_of, said
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.bars import Bars
from clusterbench.job.passes import TOKEN_READ, TOKEN_WAIT
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from clusterbench.units import scale

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 24
TOKENS, OF_THE_FILE = "tokens", ("path", "file_size")
READ = "read"


@dataclass(frozen=True)
class Fed:
    """Cases that read their tokens, each behind the one that is fed the same from memory, where there is one."""

    groups: list[list[Trained]]
    histories: Mapping[str, History]


class InputPipeline(Chart[Fed]):
    """Step time with tokens that are in memory and with tokens that are read, and what a step waits for them.

    How to read it
    --------------
    A step that reads its tokens trains on other ones in each step, from random places of a file that the host's memory
    does not hold; the one beside it has its tokens where it computes. A thread reads ahead, so a step waits only where
    reading takes longer than the steps before it, or takes cores and memory that the step needs. The second figure has
    what a step waits and how long a thread reads for it: with more than a step's time it cannot keep up. Waiting is a
    part of the step time, reading is beside it.
    """

    title: ClassVar[str] = "Input pipeline: whether a step waits for its tokens"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "trainers"

    def select(self, reading: Reading) -> Fed | None:
        cases = [case for case in reading.trained if case.row.status != "refused"]
        if not any(case.value(TOKEN_WAIT) is not None for case in cases):
            return None
        groups = groups_of(cases, lambda case: (case.layout, case.row.num_nodes), {TOKENS, *OF_THE_FILE})
        return Fed([sorted(group, key=_is_read) for group in groups if any(map(_is_read, group))], reading.history_of)

    def draw(self, data: Fed) -> list[Panel]:
        shown = _all(data)[:MOST]
        name = names((case.row for case in _all(data)), without=["file_size"])
        read = [case for case in shown if _is_read(case)]
        return [
            _bars("Step time", shown, name, "step", "step_time"),
            _bars("Of it waiting for tokens", read, name, "waiting", TOKEN_WAIT),
            _bars("Reading the tokens of a step, beside other steps", read, name, "reading", TOKEN_READ),
        ]

    def answer(self, data: Fed) -> str:
        found = [
            (case, group) for group in data.groups for case in group if _is_read(case) and _waits(case) is not None
        ]
        if not found:
            return ""
        case, group = max(found, key=lambda each: _waits(each[0]) or 0.0)
        name = names((case.row for case in _all(data)), without=[TOKENS, "file_size"])(case.row)
        of = f"Of {len(found)} steps that read their tokens {name} waits most for them" if len(found) > 1 else ""
        waits = f"{of or f'A step of {name} waits for the tokens that it reads'}: {_share(_waits(case))} of its time"
        return " ".join(filter(None, (f"{waits}{_reading(case)}.", _beside_memory(case, group, data.histories))))

    def left_out(self, data: Fed) -> str:
        return curves_note(len(_all(data)), MOST, "cases")


def _is_read(case: Trained) -> bool:
    return case.point.get(TOKENS) == READ


def _all(data: Fed) -> list[Trained]:
    return [case for group in data.groups for case in group]


def _waits(case: Trained) -> float | None:
    """Share of a step."""
    wait_s, step_s = case.value(TOKEN_WAIT), case.value("step_time")
    return wait_s / step_s if wait_s is not None and step_s else None


def _share(of: float | None) -> str:
    """``0.3 %``, ``less than 0.1 %``."""
    return "less than 0.1 %" if of is not None and of < 1e-3 else percent(of or 0.0)


def _time(seconds: float) -> str:
    of = scale("s", [seconds])
    return f"{of.text(seconds, 3)} {of.unit}"


def _reading(case: Trained) -> str:
    """How near reading is to what it can do."""
    read_s, step_s = case.value(TOKEN_READ), case.value("step_time")
    if not read_s or not step_s:
        return ""
    if read_s > step_s:
        return f"; reading them takes {_time(read_s)}, longer than a step"
    return f"; reading them takes {_time(read_s)} beside a step of {_time(step_s)}"


def _beside_memory(case: Trained, group: Sequence[Trained], histories: Mapping[str, History]) -> str:
    """Whether it is slower than a step that has its tokens."""
    resident = next((other for other in group if not _is_read(other) and speed_of(other)), None)
    if resident is None or not speed_of(case):
        return ""
    fast, slow = sorted((resident, case), key=speed_of, reverse=True)
    told, _ = noise(fast, slow, histories)
    if told is None:
        return ""
    if not told:
        return "Samples do not tell it from a step with the same batch in memory."
    by = percent(speed_of(fast) / speed_of(slow) - 1)
    return f"It takes {by} {'longer' if slow is case else 'less'} than a step with the same batch in memory."


def _bars(title: str, cases: Sequence[Trained], name: Callable[[Row], str], what: str, metric: str) -> Panel:
    values = {what: [case.value(metric) for case in cases]}
    missing = {number: said(case.row.status) for number, case in enumerate(cases) if case.value("step_time") is None}
    labels, ids = [name(case.row) for case in cases], [case.row.case for case in cases]
    return Bars(title, labels, values, "s", missing=missing, cases=ids).panel()
