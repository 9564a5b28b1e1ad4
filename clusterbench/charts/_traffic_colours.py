"""Colours of traffic: those that memory has no category for, as charts of both stand on one page."""

from __future__ import annotations

from collections.abc import Sequence

from clusterbench.drawing.bars import Colour
from clusterbench.drawing.style import PALETTE
from clusterbench.job.passes import CATEGORIES

_LEFT = PALETTE[len(CATEGORIES) :]
_SHADES = (1.0, 0.5, 0.25)


def traffic_colours(names: Sequence[str]) -> dict[str, Colour]:
    """By what charts call the bytes of each axis, or of all: full ones first, then paler ones."""
    colours = [(colour, shade) for shade in _SHADES for colour in reversed(_LEFT)]
    return {name: colours[number % len(colours)] for number, name in enumerate(names)}
