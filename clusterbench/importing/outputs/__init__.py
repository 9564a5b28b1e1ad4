"""Kinds of text that ``clusterbench import`` reads: **one file, one kind**."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from clusterbench.discover import things
from clusterbench.importing.output import Output


@cache
def outputs() -> Sequence[Output]:
    """All kinds in the order of their files' names."""
    return tuple(kind() for kind in things(__name__, Output).values())
