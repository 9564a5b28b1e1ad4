"""What can be wrong with a cluster or a run: one file a diagnosis, found by its name.

A diagnosis is a pure function of what was read from a run, so the same run gives the same findings on any machine. It
must stay silent on health. Its docstring has the four headings of :data:`HEADINGS`, which the report prints beside its
findings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from clusterbench.cases import Reading
from clusterbench.discover import things
from clusterbench.words import Word

Severity = Literal["error", "warning", "note"]
"""``error``: a figure is missing or void, and the run fails. ``warning``: likely a loss. ``note``: worth knowing."""

HEADINGS = ("What it looks for", "Why it matters", "How to confirm", "What usually fixes it")


@dataclass(frozen=True)
class Finding:
    """Something wrong: where it is, what it is, and the figures that show it.

    ``where`` is a case, a rank, a host or a GPU, as narrow as the evidence allows; ``log`` is a file of the run's
    folder.
    """

    where: str
    what: str
    severity: Severity
    evidence: str = ""
    log: str = ""


class Diagnosis(ABC):
    """One thing that can be wrong, and what to do about it.

    Attributes
    ----------
    glossary
        Words of the field that it brings.
    """

    glossary: ClassVar[tuple[Word, ...]] = ()

    @abstractmethod
    def findings(self, reading: Reading) -> list[Finding]:
        """What is wrong, the worst first; empty on health."""


def diagnoses() -> Mapping[str, type[Diagnosis]]:
    """All diagnoses by name."""
    return things("clusterbench.diagnoses", Diagnosis)


def examine(reading: Reading) -> dict[str, list[Finding]]:
    """What every diagnosis found, by its name; those that found nothing are left out."""
    found = {name: kind().findings(reading) for name, kind in diagnoses().items()}
    return {name: findings for name, findings in found.items() if findings}
