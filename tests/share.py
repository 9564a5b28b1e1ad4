"""Which cells of large matrices, and of tests that take long, run: all, or a share of them, drawn by the commit.

Each commit draws others, so that all have run after some, and a defect in one does not stay; ``tox -e every`` runs all.
"""

from __future__ import annotations

import hashlib
import math
import subprocess
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

Cell = TypeVar("Cell")
OF_TESTS_IN_TURN = 4
"""Times the share of cells: there are fewer of these tests, and each stands for itself."""

_ROOT = Path(__file__).parents[1]

share, seed = Fraction(1), ""
"""Set before tests are collected; ranks that import a module of tests see all of its cells."""


def choose(text: str) -> None:
    """Has that share run.

    Raises
    ------
    ValueError
        If it is none.
    """
    global share, seed
    share = _parsed(text)
    seed = commit() if share < 1 else ""


def _parsed(text: str) -> Fraction:
    try:
        of_all = Fraction(text)
    except (ValueError, ZeroDivisionError):
        of_all = Fraction(0)
    if not 0 < of_all <= 1:
        raise ValueError(f"must be above 0 and at most 1, as 1/3, not {text!r}")
    return of_all


def commit() -> str:
    """The hash of what is checked out."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()


def some_of(cells: Sequence[Cell], name: Callable[[Cell], str]) -> list[Cell]:
    """The cells of one matrix that run, in their order: at least one."""
    chosen = first_drawn(cells, name, share, seed) if share < 1 else cells
    names = {*map(name, chosen)}
    return [cell for cell in cells if name(cell) in names]


def number_of(examples: int) -> int:
    """How many examples of a test that draws them anew each time."""
    return math.ceil(share * examples)


def left_out(tests: Iterable[str]) -> set[str]:
    """Of tests with cells, each named ``function[cell]``, those that do not run; of each function one does."""
    by_function: dict[str, list[str]] = {}
    for name in tests:
        by_function.setdefault(name.partition("[")[0], []).append(name)
    return {name for cells in by_function.values() for name in {*cells} - {*some_of(cells, str)}}


def left_out_in_turn(tests: Sequence[str]) -> set[str]:
    """Of tests that run in turn those that do not."""
    return {*tests} - {*first_drawn(tests, str, min(Fraction(1), OF_TESTS_IN_TURN * share), seed)}


def first_drawn(cells: Sequence[Cell], name: Callable[[Cell], str], of_all: Fraction, by: str) -> list[Cell]:
    """A share of them, drawn by a text: the same text draws the same ones on every machine."""

    def drawn(cell: Cell) -> bytes:
        return hashlib.blake2b(f"{by}/{name(cell)}".encode()).digest()

    return sorted(cells, key=drawn)[: math.ceil(of_all * len(cells))]


def told() -> str:
    """What the end of the tests' output says of it."""
    if share == 1:
        return ""
    in_turn = min(Fraction(1), OF_TESTS_IN_TURN * share)
    of_tests = f" and {in_turn} of the tests that run in turn" if in_turn < 1 else ""
    return f"{share} of the cells of large matrices{of_tests} ran, drawn by commit {seed[:12]}; --share 1 runs all"
