"""What a person sees while a run takes its time: one line a case, on stderr; on a terminal a bar below them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from rich.padding import Padding
from rich.text import Text

from clusterbench.launch.conductor import Progress
from clusterbench.launch.executions import Execution
from clusterbench.run_folder.rounds import so_far
from clusterbench.types import Case, Observation, Outcome
from clusterbench.units import duration

Shows = Callable[[Case, Observation], str]
"""What a case measured, in a few words."""


def _silent(case: Case, observation: Observation) -> str:
    return ""


class _Clock:
    """Elapsed time, and what is left if the rest takes as long per case as what is done.

    Of a list that is run again and again for a time: how much of that is over. A round says nothing of what is left.
    """

    def __init__(self, for_s: float, spent_s: float) -> None:
        self._start = time.monotonic()
        self._for_s, self._spent_s = for_s, spent_s

    def add(self, outcome: Outcome) -> None:
        self._spent_s += outcome.elapsed_s

    def text(self, done: int, total: int) -> str:
        left = self.left(done, total)
        if self._for_s:
            return left
        elapsed = f"{duration(time.monotonic() - self._start)} elapsed"
        return f"{elapsed}, {left}" if left else elapsed

    def left(self, done: int, total: int) -> str:
        if self._for_s:
            return so_far(self._spent_s, self._for_s)
        elapsed_s = time.monotonic() - self._start
        return f"about {duration(elapsed_s / done * (total - done))} left" if 0 < done < total else ""


_DOING = {
    "spawned": "starting the ranks",
    "rendezvous": "preparing",
    "prepared": "checking the result",
    "checked": "warming up, then timing",
}
"""What ranks do that have a phase behind them."""


class Lines:
    """Two plain lines a case, for logs and pipes: what begins, so that a hang has a name, and how it ended.

    Each has the name of its case, so that a search of the log finds both.
    """

    def __init__(self, stream: TextIO, clock: _Clock, shows: Shows = _silent) -> None:
        self._stream = stream
        self._clock = clock
        self._shows = shows

    def begin(self, number: int, total: int, execution: Execution) -> None:
        self._number, self._total, self._execution = number, total, execution
        print(f"[{number}/{total}] {_name(execution)} ...", file=self._stream, flush=True)

    def reach(self, phase: str) -> None:
        pass

    def end(self, outcome: Outcome, observation: Observation | None) -> None:
        self._clock.add(outcome)
        figures = _figures(self._execution, outcome, observation, self._shows)
        said = ": ".join(filter(None, [outcome.status, figures or " ".join(outcome.reason.split())]))
        clock = f"{outcome.elapsed_s:.1f} s; {self._clock.text(self._number, self._total)}"
        print(
            f"[{self._number}/{self._total}] {_name(self._execution)} {said} ({clock})", file=self._stream, flush=True
        )

    def close(self) -> None:
        pass


class Bar:
    """A line for each finished case, and live ones for the running case and what its ranks do."""

    def __init__(self, stream: TextIO, clock: _Clock, shows: Shows = _silent) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._console = Console(file=stream, highlight=False, markup=False)
        self._progress = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=self._console,
            transient=True,
            refresh_per_second=2,  # it is drawn beside the case that is timed
        )
        self._clock = clock
        self._shows = shows
        self._said = {""}
        self._task = self._progress.add_task("", total=None, left="")
        self._progress.start()

    def begin(self, number: int, total: int, execution: Execution) -> None:
        self._number, self._total, self._execution = number, total, execution
        self._progress.update(self._task, description=_name(execution), total=total, completed=number - 1)

    def reach(self, phase: str) -> None:
        lines = filter(None, (_name(self._execution), _DOING.get(phase)))
        self._progress.update(self._task, description="\n    ".join(lines))

    def end(self, outcome: Outcome, observation: Observation | None) -> None:
        style = "green" if outcome.status == "ok" else "bold red"
        count = Text(f"[{self._number}/{self._total}] ", "dim")
        figures = Text(_figures(self._execution, outcome, observation, self._shows), "bold")
        line = Text.assemble(count, _name(self._execution), " ", (outcome.status, style), " " * bool(figures), figures)
        took = Text(f" ({outcome.elapsed_s:.1f} s)", "dim")
        has_room = line.cell_len + took.cell_len <= self._console.width  # what was measured says more
        self._console.print(line + took if has_room else line)
        if outcome.reason not in self._said:  # every repeat of a skipped case has the same
            self._console.print(Padding(Text(outcome.reason), (0, 0, 0, 4), expand=False))
        self._said.add(outcome.reason)
        self._clock.add(outcome)
        left = self._clock.left(self._number, self._total)
        self._progress.update(self._task, completed=self._number, left=left)

    def close(self) -> None:
        self._progress.stop()


class ClosingProgress(Progress, Protocol):
    def close(self) -> None: ...


def progress_on(
    stream: TextIO = sys.stderr, for_s: float = 0.0, spent_s: float = 0.0, shows: Shows = _silent
) -> ClosingProgress:
    """A bar on a terminal, plain lines anywhere else.

    Parameters
    ----------
    for_s, spent_s
        How long the list is run again and again, and how much of that an earlier part of the run has taken.
    shows
        What a case measured, said as soon as it has ended.
    """
    clock = _Clock(for_s, spent_s)
    return Bar(stream, clock, shows) if stream.isatty() else Lines(stream, clock, shows)


def _figures(execution: Execution, outcome: Outcome, observation: Observation | None, shows: Shows) -> str:
    return shows(execution.case, observation) if outcome.status == "ok" and observation is not None else ""


def _name(execution: Execution) -> str:
    case = execution.case
    of = f" of {case.repeats}" if execution.repeat < case.repeats else ""  # else it goes on for a time
    repeat = f" repeat {execution.repeat + 1}{of}" if case.repeats > 1 or not of else ""
    attempt = f" attempt {execution.attempt}" if execution.attempt > 1 else ""
    return f"{case.id}{repeat}{attempt}"
