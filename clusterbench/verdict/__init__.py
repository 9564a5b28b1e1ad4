"""What a run shows, in three statements: what was measured, what was proven, and how the machine is.

Each stands by itself. A run that measured everything may have done so on a sick machine, and on a healthy one it may
have proven nothing. ``docs/verdict.md`` has the table of words, conditions and exit codes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer
from clusterbench.types import FAIL_ON, FAIL_ON_BY_DEFAULT
from clusterbench.verdict.machine import machine_statement
from clusterbench.verdict.measured import measured_statement
from clusterbench.verdict.proven import proven_statement
from clusterbench.verdict.statement import ALWAYS_FAILS, Statement, Tone
from clusterbench.words import few


@dataclass(frozen=True)
class Verdict:
    """The three statements, and on what the exit code depends; a wrong result counts always."""

    measured: Statement
    proven: Statement
    machine: Statement
    fail_on: tuple[str, ...]

    @property
    def statements(self) -> tuple[Statement, Statement, Statement]:
        return self.measured, self.proven, self.machine

    @property
    def conditions(self) -> tuple[str, ...]:
        """All that hold, whether they count or not."""
        held = {condition for statement in self.statements for condition in statement.conditions}
        return tuple(condition for condition in (ALWAYS_FAILS, *FAIL_ON) if condition in held)

    @property
    def failing(self) -> tuple[str, ...]:
        """Those that count."""
        return tuple(name for name in self.conditions if name == ALWAYS_FAILS or name in self.fail_on)

    @property
    def exit_code(self) -> int:
        return 1 if self.failing else 0

    @property
    def tone(self) -> Tone:
        """That of the statement that matters most."""
        order: tuple[Tone, ...] = ("bad", "suspect", "imported", "open", "good")
        return min((statement.tone for statement in self.statements), key=order.index)

    @property
    def words(self) -> str:
        """``COMPLETE, NOT PROVEN, SUSPECT``."""
        return ", ".join(statement.word for statement in self.statements)

    @property
    def ends_with(self) -> str:
        """``exit code 1: suspect``, and what else holds and does not count."""
        others = [name for name in self.conditions if name not in self.failing]
        passing = f"; {few(others, len(others))} {'does' if len(others) == 1 else 'do'} not count" if others else ""
        return f"exit code {self.exit_code}" + (f": {', '.join(self.failing)}" if self.failing else "") + passing

    def text(self) -> str:
        """For a terminal: a line for each statement, and one for the exit code."""
        width = max(len(statement.word) for statement in self.statements)
        lines = [f"{said.about:<8}  {said.word:<{width}}  {said.sentence}" for said in self.statements]
        return "\n".join([*lines, self.ends_with])

    def as_json(self) -> str:
        """What ``verdict.json`` holds."""
        statements = {statement.about: statement.as_json() for statement in self.statements}
        about = {"fail_on": [*self.fail_on], "failing": [*self.failing], "conditions": [*self.conditions]}
        return json.dumps({**statements, **about, "exit_code": self.exit_code}, indent=1) + "\n"


def verdict(reading: Reading, answers: Mapping[str, Answer], fail_on: Sequence[str] | None = None) -> Verdict:
    """The verdict on a run.

    Parameters
    ----------
    answers
        Of every diagnosis, see :func:`clusterbench.diagnoses.examine`.
    fail_on
        Conditions that make the exit code 1; by default ``incomplete`` and ``suspect``, and what the suite adds.
    """
    if fail_on is None:
        fail_on = [name for name in FAIL_ON if name in FAIL_ON_BY_DEFAULT or name in reading.plan.fail_on]
    return Verdict(
        measured_statement(reading, answers),
        proven_statement(reading),
        machine_statement(reading, answers),
        tuple(fail_on),
    )
