"""One colour for each part of a step, the same in every chart and run."""

from __future__ import annotations

from collections.abc import Iterable

from clusterbench.cases.parts import named
from clusterbench.drawing.bars import Colour
from clusterbench.drawing.style import GRID, PALETTE
from clusterbench.formulas.attribution import BUBBLE, COMPUTE, IMBALANCE, REST, Part

_PALE = 0.5
_OF_PARTS: dict[str, Colour] = {
    COMPUTE: (PALETTE[0], 1.0),
    BUBBLE: (PALETTE[6], 1.0),
    IMBALANCE: (PALETTE[4], 1.0),
    REST: (GRID, 1.0),
}
_OF_AXES: dict[str, Colour] = {
    "tp": (PALETTE[1], 1.0),
    "dp": (PALETTE[2], 1.0),
    "pp": (PALETTE[3], 1.0),
    "cp": (PALETTE[5], 1.0),
    "ep": (PALETTE[7], 1.0),
    "dp_cp": (PALETTE[2], _PALE),
    "edp": (PALETTE[7], _PALE),
    "shard": (PALETTE[3], _PALE),
    "replica": (PALETTE[5], _PALE),
    "ends": (PALETTE[4], _PALE),
}
"""Groups that hold the same weights have the pale colour of the axis that they are made of."""

_OTHER: Colour = (PALETTE[1], _PALE)


def part_colours(parts: Iterable[Part]) -> dict[str, Colour]:
    """By what charts call each part; communication by its axis."""
    return {named(part): _OF_PARTS.get(part[0]) or _OF_AXES.get(part[1], _OTHER) for part in parts}
