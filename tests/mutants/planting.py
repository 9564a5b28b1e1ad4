"""A copy of the package with one defect in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from clusterbench.shape import SHAPES
from tests.mutants import PACKAGE, ROOT, Mutant, planted_in, sources

TINY: dict[str, dict[str, Any]] = {
    "llama-tiny-tied": {"tied_embeddings": True},
    "llama-tiny-mqa": {"num_kv_heads": 1},
    "llama-tiny-kv2": {"num_kv_heads": 2},
}
"""Shapes that the package lacks, and without which some defects are not reached: what differs from llama-tiny."""

# A builtin, so that a replacement needs no import. Each process notes once that it came by, with the log it writes to:
# of a worker that is the log of its start, and each start has one case.
_MARKER = '''"""Notes that a planted defect was executed, and adds small shapes without which some are not."""

import builtins
import os
from dataclasses import replace
from functools import cache

from clusterbench.shape import SHAPES

for _name, _changes in {tiny!r}.items():
    SHAPES[_name] = replace(SHAPES["llama-tiny"], name=_name, **_changes)


@cache
def _note(process: int) -> None:
    with open({executed!r}, "a") as executed:
        executed.write(os.path.basename(os.readlink("/proc/self/fd/2")) + "\\n")


def planted() -> bool:
    _note(os.getpid())
    return True


builtins.planted = planted
'''


def plant(mutant: Mutant | None, folder: Path) -> None:
    """Copies the package into a folder, with a mutant in it or healthy."""
    # Compiled files are valid in the copy, too: they go by time and size. Those of another process come and go.
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.pyc.*"))
    (copy / "planted.py").write_text(_MARKER.format(tiny=TINY, executed=str(folder / "executed")), encoding="utf-8")
    with (copy / "__init__.py").open("a", encoding="utf-8") as package:
        package.write("\nimport clusterbench.planted\n")
    if mutant is not None:
        path, text = planted_in(mutant, sources(copy))
        path.write_text(text, encoding="utf-8")


def plant_with_tests(mutant: Mutant | None, folder: Path) -> None:
    """The same, with the tests, their settings and what they read beside it."""
    plant(mutant, folder)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("docs", "reports", "suites"):
        (folder / name).symlink_to(ROOT / name)


def executed(folder: Path) -> set[str]:
    """Names of the logs of processes that executed the defect."""
    note = folder / "executed"
    return set(note.read_text(encoding="utf-8").split()) if note.exists() else set()


def environment(folder: Path) -> dict[str, str]:
    """In which Python finds the copy before every other package of its name."""
    return {**os.environ, "PYTHONPATH": str(folder)}


_reading = Lock()


@contextmanager
def with_tiny_shapes() -> Iterator[None]:
    """In which this process reads runs of a copy: the package it has itself lacks those shapes."""
    with _reading:
        SHAPES.update({name: replace(SHAPES["llama-tiny"], name=name, **changes) for name, changes in TINY.items()})
        try:
            yield
        finally:
            for name in TINY:
                del SHAPES[name]
