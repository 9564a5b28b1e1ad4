"""Kinds of text that ``doctor --log`` reads: **one file, one kind**."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from clusterbench.discover import things
from clusterbench.doctor.said import HostText


@cache
def readers() -> Sequence[HostText]:
    """All kinds in the order of their files' names."""
    return tuple(kind() for kind in things(__name__, HostText).values())
