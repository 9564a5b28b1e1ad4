"""A copy of the package with one defect in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.mutants import PACKAGE, ROOT, Mutant, source_of

# A builtin, so that a replacement needs no import. Each process notes once that it came by, with the log it writes to:
# of a worker that is the log of its start, and each start has one case.
_MARKER = '''"""Notes that a planted defect was executed, and adds small shapes with which some are reached."""

import builtins
import os
from dataclasses import replace
from functools import cache

from clusterbench.shape import SHAPES

_TINY = SHAPES["llama-tiny"]
for _name, _changes in {{
    "llama-tiny-tied": {{"tied_embeddings": True}},
    "llama-tiny-mqa": {{"num_kv_heads": 1}},
    "llama-tiny-kv2": {{"num_kv_heads": 2}},
}}.items():
    SHAPES[_name] = replace(_TINY, name=_name, **_changes)


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
    (copy / "planted.py").write_text(_MARKER.format(executed=str(folder / "executed")), encoding="utf-8")
    with (copy / "__init__.py").open("a", encoding="utf-8") as package:
        package.write("\nimport clusterbench.planted\n")
    if mutant is not None:
        path = source_of(mutant, copy)
        path.write_text(path.read_text(encoding="utf-8").replace(mutant.text, mutant.instead), encoding="utf-8")


def plant_with_tests(mutant: Mutant | None, folder: Path) -> None:
    """The same, with the tests and their settings beside it."""
    plant(mutant, folder)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def executed(folder: Path) -> set[str]:
    """Names of the logs of processes that executed the defect."""
    note = folder / "executed"
    return set(note.read_text(encoding="utf-8").split()) if note.exists() else set()


def environment(folder: Path) -> dict[str, str]:
    """In which Python finds the copy before every other package of its name."""
    return {**os.environ, "PYTHONPATH": str(folder)}
