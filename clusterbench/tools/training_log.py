"""What logs of training programs share: steps with their figures, how many were asked for, and what stopped a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterbench.types import Status

_STOPS: Mapping[Status, re.Pattern[str]] = {
    "out_of_memory": re.compile(
        r"OutOfMemoryError|(?:CUDA|HIP) out of memory|DefaultCPUAllocator: (?:can't|not enough)|oom[-_]kill|OOM Killed"
    ),
    "timeout": re.compile(r"Watchdog caught collective operation timeout|CANCELLED AT .* DUE TO TIME LIMIT"),
    "failed": re.compile(
        r"Traceback \(most recent call last\)|ChildFailedError|Segmentation fault|Bus error|CUDA error:"
        r"|(?:srun|slurmstepd): error:"
        r"|\(SIG[A-Z]+\) received|Signals\.SIG"
    ),
}
"""How a run ended -> the words that say so; the first kind that is found says most.

Source: pytorch/pytorch, c10/core/impl/alloc_cpu.cpp; SchedMD/slurm, src/slurmd/slurmstepd (its errors begin so).
"""
_MOST_WORDS = 200


@dataclass(frozen=True)
class Step:
    """One printed step, or the mean of all since the step that was printed before; None is what is not printed."""

    line: int
    number: int
    time_s: float | None = None
    tokens_per_s_per_rank: float | None = None
    flops_per_s_per_rank: float | None = None
    mfu: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Stop:
    """The outcome of a run that ended early, and the line that says it."""

    line: int
    status: Status
    words: str


@dataclass(frozen=True)
class TrainingLog:
    """One run.

    Attributes
    ----------
    total
        Steps that were asked for.
    first_line
        Of the first step that was printed: it holds the start of the program, and may not be among ``steps``.
    about
        The case: layout, batch, sequence, shape, as far as they are said.
    world_size
        None where the text does not say it.
    peak_bytes
        By kind, ``allocated`` or ``reserved``: the most that any rank in the text had.
    stop
        None where it reached its last step, or nothing says what stopped it.
    wrong
        Why its figures are of no training.
    notes
        What was left out.
    tokens_per_step
        Of all ranks; 0 where it is not said.
    """

    steps: tuple[Step, ...]
    total: int
    about: Mapping[str, Any]
    world_size: int | None
    first_line: int = 0
    peak_bytes: Mapping[str, float] = field(default_factory=dict)
    stop: Stop | None = None
    wrong: str = ""
    notes: tuple[str, ...] = ()
    tokens_per_step: int = 0


def stop_behind(lines: Sequence[str], last: int) -> Stop | None:
    """What stopped a run behind line ``last``, that of its last step; None where nothing says it."""
    behind = list(enumerate(lines[last:], last + 1))
    for status, words in _STOPS.items():
        if found := next((each for each in behind if words.search(each[1])), None):
            return Stop(found[0], status, found[1].strip()[:_MOST_WORDS])
    return None
