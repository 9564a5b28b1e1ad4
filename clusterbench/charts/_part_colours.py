"""One colour for each part of a step, the same in every chart and run."""

from __future__ import annotations

from collections.abc import Iterable

from clusterbench.cases.parts import named
from clusterbench.drawing.bars import Colour
from clusterbench.drawing.style import GRID, PALETTE
from clusterbench.formulas.attribution import BUBBLE, COMPUTE, IMBALANCE, REST, Part
from clusterbench.layout import GROUPS, UNKNOWN

_OF_PARTS: dict[str, Colour] = {
    COMPUTE: (PALETTE[0], 1.0),
    BUBBLE: (PALETTE[6], 1.0),
    IMBALANCE: (PALETTE[4], 1.0),
    REST: (GRID, 1.0),
}
_LEFT = [colour for colour in PALETTE if (colour, 1.0) not in _OF_PARTS.values()]
_SHADES = (1.0, 0.5, 0.25)
_OF_GROUPS: dict[str, Colour] = {
    group: (_LEFT[number % len(_LEFT)], _SHADES[number // len(_LEFT)]) for number, group in enumerate(GROUPS)
}
"""Of communication within a group of ranks: full ones first, then paler ones."""


def part_colours(parts: Iterable[Part]) -> dict[str, Colour]:
    """By what charts call each part; communication by its group."""
    return {named(part): _OF_PARTS.get(part[0]) or _OF_GROUPS.get(part[1], _OF_GROUPS[UNKNOWN]) for part in parts}
