"""All checks, a line each."""

from __future__ import annotations

from clusterbench.doctor.catalogue import entries
from clusterbench.words import aligned, plural, short

_MOST_SOURCE = 60


def listing() -> str:
    """Number, name, severity, programs run, right needed, source and question of each check, by their numbers."""
    every = list(entries())
    rows = [
        (
            entry.number,
            entry.by or "-",
            entry.severity or "-",
            entry.programs or "none",
            entry.right or "-",
            short(entry.source or "-", _MOST_SOURCE),
            entry.question + (f" In logs: {', '.join(entry.in_logs)}" if entry.in_logs else ""),
        )
        for entry in every
    ]
    made = sum(bool(entry.by) for entry in every)
    lines = aligned(("number", "check", "severity", "program", "right", "source", "question"), rows)
    return "\n".join([f"# {plural(made, 'check')}; {len(every) - made} are not made yet", *lines])
