"""Finds the things of a folder: one module, one thing, named by its file."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from types import ModuleType
from typing import TypeVar

Thing = TypeVar("Thing")


@cache
def things(package: str, base: type[Thing]) -> dict[str, type[Thing]]:
    """Every concrete subclass of ``base`` defined in a module of ``package``, by the module's name, alphabetically.

    A module holds exactly one; a second or none is a mistake of whoever added the file, and raises ``TypeError``.
    Modules whose name starts with an underscore are not things.
    """
    folder = importlib.import_module(package)
    names = sorted(info.name for info in pkgutil.iter_modules(folder.__path__) if not info.name.startswith("_"))
    return {name: _only(importlib.import_module(f"{package}.{name}"), base) for name in names}


def _only(module: ModuleType, base: type[Thing]) -> type[Thing]:
    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} must define exactly one {base.__name__}, not {len(found)}")
    return found[0]


def summary(thing: type) -> str:
    """The first line of a thing's docstring."""
    return (inspect.getdoc(thing) or "").split("\n", 1)[0]
