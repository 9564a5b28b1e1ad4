"""What a person sees while a run takes its time: one line a case, on stderr; on a terminal a bar below them."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

from rich.text import Text

from clusterbench.launch.conductor import Progress
from clusterbench.launch.executions import Execution
from clusterbench.types import Outcome
from clusterbench.units import duration


def describe(outcome: Outcome) -> str:
    """``ok 1.2 s``, or what went wrong."""
    reason = f": {outcome.reason}" if outcome.reason else ""
    return f"{outcome.status} {outcome.elapsed_s:.1f} s{reason}"


class _Clock:
    """Elapsed time, and what is left if the rest takes as long per case as what is done."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def text(self, done: int, total: int) -> str:
        elapsed_s = time.monotonic() - self._start
        left = f", about {duration(elapsed_s / done * (total - done))} left" if 0 < done < total else ""
        return f"{duration(elapsed_s)} elapsed{left}"


class Lines:
    """Two plain lines a case, for logs and pipes: what begins, so that a hang has a name, and how it ended."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._clock = _Clock()
        self._number = self._total = 0

    def begin(self, number: int, total: int, execution: Execution) -> None:
        self._number, self._total = number, total
        print(f"[{number}/{total}] {_name(execution)}", file=self._stream, flush=True)

    def end(self, outcome: Outcome) -> None:
        text = self._clock.text(self._number, self._total)
        print(f"[{self._number}/{self._total}] {describe(outcome)} ({text})", file=self._stream, flush=True)

    def close(self) -> None:
        pass


class Bar:
    """A line for each finished case and a live one for the running case."""

    def __init__(self, stream: TextIO) -> None:
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
        self._clock = _Clock()
        self._task = self._progress.add_task("", total=None, left="")
        self._name = ""
        self._number = self._total = 0
        self._progress.start()

    def begin(self, number: int, total: int, execution: Execution) -> None:
        self._name, self._number, self._total = _name(execution), number, total
        self._progress.update(self._task, description=self._name, total=total, completed=number - 1)

    def end(self, outcome: Outcome) -> None:
        style = "green" if outcome.status == "ok" else "bold red"
        count = Text(f"[{self._number}/{self._total}] ", "dim")
        self._console.print(count, self._name, " ", Text(outcome.status, style), f" {outcome.elapsed_s:.1f} s", sep="")
        if outcome.reason:
            self._console.print(Text(f"    {outcome.reason}"))
        left = self._clock.text(self._number, self._total).partition(", ")[2]
        self._progress.update(self._task, completed=self._number, left=left)

    def close(self) -> None:
        self._progress.stop()


class ClosingProgress(Progress, Protocol):
    def close(self) -> None: ...


def progress_on(stream: TextIO = sys.stderr) -> ClosingProgress:
    """A bar on a terminal, plain lines anywhere else."""
    return Bar(stream) if stream.isatty() else Lines(stream)


def _name(execution: Execution) -> str:
    case = execution.case
    of = f" of {case.repeats}" if execution.repeat < case.repeats else ""  # else it goes on for a time
    repeat = f" repeat {execution.repeat + 1}{of}" if case.repeats > 1 or not of else ""
    attempt = f" attempt {execution.attempt}" if execution.attempt > 1 else ""
    return f"{case.id}{repeat}{attempt}"
