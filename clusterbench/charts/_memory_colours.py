"""One colour for each category of memory, the same in every chart and run."""

from __future__ import annotations

from collections.abc import Iterable

from clusterbench.cases.trained import in_order, said
from clusterbench.drawing.bars import Colour
from clusterbench.drawing.style import PALETTE
from clusterbench.job.passes import CATEGORIES

_LEFT = PALETTE[len(CATEGORIES) :]


def memory_colours(categories: Iterable[str]) -> dict[str, Colour]:
    """By what charts call each category; those that this package does not know take the colours that are left."""
    unknown = in_order(set(categories) - set(CATEGORIES))
    known = {said(category): (PALETTE[number], 1.0) for number, category in enumerate(CATEGORIES)}
    return known | {said(category): (_LEFT[number % len(_LEFT)], 1.0) for number, category in enumerate(unknown)}
