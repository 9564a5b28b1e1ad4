"""The parts of a training step as charts name and order them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterbench.formulas.attribution import EXPOSED, PARTS, Part
from clusterbench.rows import Row


def parts_of(rows: Iterable[Row], metric: str) -> dict[str, dict[Part, float]]:
    """Case -> seconds of each part of this metric."""
    parts_by_case: dict[str, dict[Part, float]] = {}
    for row in rows:
        if row.metric != metric or row.value is None:
            continue
        part = row.detail.get("part", "")
        if part in PARTS:
            parts_by_case.setdefault(row.case, {})[part, row.detail.get("axis", "")] = row.value
    return parts_by_case


def in_order(cases: Iterable[Mapping[Part, float]]) -> list[Part]:
    """Every part that any case has some of: computing first, the rest last, and what is lost between."""
    parts = {part for case in cases for part, seconds in case.items() if seconds}
    return sorted(parts, key=lambda part: (PARTS.index(part[0]), part[1]))


def named(part: Part) -> str:
    """As a reader knows it.

    >>> named(("exposed_communication", "tp")), named(("bubble", ""))
    ('exposed tp', 'bubble')
    """
    name, axis = part
    return f"exposed {axis}".strip() if name == EXPOSED else name


def told(part: Part) -> str:
    """Within a sentence.

    >>> told(("exposed_communication", "tp")), told(("rest", ""))
    ('exposed tp communication', 'the rest')
    """
    name, axis = part
    if name == EXPOSED:
        return " ".join(filter(None, ["exposed", axis, "communication"]))
    return {"compute": "computing", "bubble": "pipeline bubble", "rest": "the rest"}.get(name, name)
