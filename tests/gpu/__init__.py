"""Half an hour of one GPU that tells everything: ``python3 -m tests.gpu``; docs/gpu.md says what, and what to do next.

It needs what the package itself needs, pytest, and the machine's own torch. A block is one process or several, each
with a limit; what it left on disk is read when it has ended, whichever way it did. Each figure stands beside what was
predicted of it before any run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

AS_PREDICTED, DIFFERS, FAILED, SHOWN = "as predicted", "differs", "failed", "no prediction"
BELOW, ABOVE = "below", "above"


@dataclass(frozen=True)
class Row:
    """One line of the table, as text. ``note`` says what the columns cannot."""

    name: str
    value: str
    predicted: str
    verdict: str
    note: str = ""


def failed(name: str, value: str, note: str = "", predicted: str = "") -> Row:
    return Row(name, value, predicted, FAILED, note)
