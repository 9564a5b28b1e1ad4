"""Planted defects: ``python -m tests.mutants`` shows which of them today's checks find, and which they let through.

A mutant is a text of the package and what stands in its place, so it survives a move of the module. The replacement
calls ``planted()``, which returns True and notes that the defect was executed: a mutant whose line never ran says
nothing. Two kinds, whose tallies are never added:

``step``
    In how ranks share a step: parallel, training, engine. Only a run through the command line counts: an outcome
    ``wrong``, or an error that a diagnosis found.
``shared``
    In code that the layout and the one rank it is compared with both run, and in formulas. No comparison of the two can
    see these; tests against an independent implementation or a published number have to.

A file of this folder with a tuple ``MUTANTS`` is a subject. Adding a mutant is adding it there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import clusterbench

ROOT = Path(__file__).parents[2]
PACKAGE = Path(clusterbench.__file__).parent
DTYPES = ("float32", "bfloat16")
"""Those of the CPU suites and of the GPU suites."""

ROUNDING = {"bfloat16": "it rounds once more, which is below what bfloat16 leaves on one rank"}
"""Why some survive."""


@dataclass(frozen=True)
class Mutant:
    """One defect.

    Attributes
    ----------
    wrong
        What the program does, in a sentence.
    text
        What it replaces: stands exactly once in the package.
    instead
        Calls ``planted()`` where the defect is, and not where one rank alone comes by.
    cases
        Of a defect in the step: the layouts, each with its options, that execute it: ``cp2 context=ring``.
    tests
        Of a defect in shared code: the test files that should fail, by the end of their path.
    dtypes
        In which the step computes something else: not float32 where the defect is rounding to it.
    survives
        In which of them nothing finds it today, and why; a survivor still counts as one.
    """

    code: str
    wrong: str
    text: str
    instead: str
    cases: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    survives: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def kind(self) -> str:
        return "shared" if self.tests else "step"


def mutants() -> dict[str, Mutant]:
    """All mutants by code, subject by subject."""
    every: dict[str, Mutant] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name != "__main__":
            for mutant in getattr(importlib.import_module(f"{__name__}.{module.name}"), "MUTANTS", ()):
                assert mutant.code not in every, f"two mutants are called {mutant.code}"
                every[mutant.code] = mutant
    return every


def sources(package: Path = PACKAGE) -> dict[Path, str]:
    """Text of every module."""
    return {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}


def planted_in(mutant: Mutant, texts: Mapping[Path, str]) -> tuple[Path, str]:
    """The module in which the mutant's text stands, and what becomes of it.

    Raises
    ------
    LookupError
        If it stands nowhere, or more than once.
    """
    places = [path for path, text in texts.items() for _ in range(text.count(mutant.text))]
    if len(places) != 1:
        names = ", ".join(path.name for path in places) or "nowhere"
        raise LookupError(f"{mutant.code}: its text stands {len(places)} times in the package: {names}")
    return places[0], texts[places[0]].replace(mutant.text, mutant.instead)
