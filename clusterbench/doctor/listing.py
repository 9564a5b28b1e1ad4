"""All checks, a line each."""

from __future__ import annotations

from clusterbench.checks import checks
from clusterbench.words import aligned


def listing() -> str:
    """Number, name, question, severity, source and the right that each check needs, by their numbers."""
    kinds = sorted(checks().items(), key=lambda item: item[1].number)
    rows = [(kind.number, name, kind.severity, kind.right or "-", kind.source, kind.question) for name, kind in kinds]
    return "\n".join(aligned(("number", "check", "severity", "right", "source", "question"), rows))
