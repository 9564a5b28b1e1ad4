"""Finds the things of a folder: one module, one thing, named by its file."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import TypeVar

Thing = TypeVar("Thing")


@cache
def things(package: str, base: type[Thing]) -> Mapping[str, type[Thing]]:
    """Every concrete subclass of ``base`` defined in a module of ``package``, by the module's name, alphabetically.

    A module is imported when its thing is asked for. It holds exactly one; a second or none is a mistake in that file,
    and raises ``TypeError``. Modules whose name starts with an underscore are not things.
    """
    folder = importlib.import_module(package)
    names = sorted(info.name for info in pkgutil.iter_modules(folder.__path__) if not info.name.startswith("_"))
    return _Things(package, base, tuple(names))


class _Things(Mapping[str, type[Thing]]):
    def __init__(self, package: str, base: type[Thing], names: tuple[str, ...]) -> None:
        self._package, self._base, self._names = package, base, names
        self._found: dict[str, type[Thing]] = {}

    def __getitem__(self, name: str) -> type[Thing]:
        if name not in self._found:
            if name not in self._names:
                raise KeyError(name)
            self._found[name] = _only(importlib.import_module(f"{self._package}.{name}"), self._base)
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _only(module: ModuleType, base: type[Thing]) -> type[Thing]:
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]
    if len(classes) != 1:
        raise TypeError(f"{module.__name__} must define exactly one {base.__name__}, not {len(classes)}")
    return classes[0]


def summary(thing: type) -> str:
    """The first line of a thing's docstring."""
    return (inspect.getdoc(thing) or "").split("\n", 1)[0]
