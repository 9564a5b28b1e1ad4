"""What a step makes its host launch, and which of its collectives have to wait for one another."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from clusterbench.engine.compat import (
    COMMUNICATION_NAMESPACES,
    TorchDispatchMode,
    active_fake_mode,
    is_wrapper_type,
    tensors_in,
)
from clusterbench.engine.traffic import SILENT, TrafficCounter

_ALLOCATES = frozenset({"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::detach"})


@dataclass(frozen=True)
class _Link:
    """A collective, and the one before it in its chain."""

    axis: str
    length: int
    before: _Link | None


class Launches(TorchDispatchMode):
    """Counts operators that compute, and follows through storages which collective needs the result of which.

    Parameters
    ----------
    axes
        Name of a process group -> axis, as :meth:`clusterbench.engine.grid.Grid.names` has them.
    """

    def __init__(self, axes: Mapping[str, str]) -> None:
        super().__init__()
        self.operators = 0
        self._traffic = TrafficCounter(axes)
        self._behind: dict[int, _Link] = {}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._longest: _Link | None = None
        self._fake_mode: object | None = None

    def __enter__(self) -> Self:
        self._fake_mode = active_fake_mode()
        return super().__enter__()

    @property
    def chain(self) -> Mapping[str, int]:
        """How many collectives of the longest chain there are along each axis."""
        counts, link = Counter[str](), self._longest
        while link is not None:
            counts[link.axis] += 1
            link = link.before
        return dict(sorted(counts.items()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_wrapper_type(kind) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if active_fake_mode() is not self._fake_mode:  # DTensor asks for shapes
            return result
        inputs = [self._behind[key] for key in map(_key, tensors_in([args, kwargs])) if key in self._behind]
        link = max(inputs, key=lambda each: each.length, default=None)
        if getattr(func, "namespace", None) in COMMUNICATION_NAMESPACES:
            link = self._communicated(func, args, kwargs, result, link)
        elif _computes(func):
            self.operators += 1
        if link is not None:
            self._note(_results(func, args, kwargs, result), link)
        return result

    def _communicated(self, func: Any, args: Any, kwargs: Any, result: Any, before: _Link | None) -> _Link | None:
        if func._schema.name.split("::")[1] in SILENT:
            return before
        axis, _ = self._traffic.axis_of(args, kwargs)
        link = _Link(axis, 1 + (before.length if before else 0), before)
        if self._longest is None or link.length > self._longest.length:
            self._longest = link
        return link

    def _note(self, tensors: Iterator[Tensor], link: _Link) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = id(storage)  # the Python object of a storage lives as long as the storage
            if key not in self._alive:
                self._alive[key] = weakref.ref(storage, lambda _, key=key: self._forget(key))  # type: ignore[misc]
            if key not in self._behind or self._behind[key].length < link.length:
                self._behind[key] = link

    def _forget(self, key: int) -> None:
        self._alive.pop(key, None)
        self._behind.pop(key, None)


def _computes(func: Any) -> bool:
    """Whether an operator starts work on a device: not views, not allocations."""
    schema = getattr(func, "_schema", None)
    if schema is None or schema.name in _ALLOCATES or schema.name.startswith(("prim::", "profiler::", "fsdp::")):
        return False
    is_view = any(out.alias_info is not None and not out.alias_info.is_write for out in schema.returns)
    return not is_view


def _results(func: Any, args: Any, kwargs: Any, result: Any) -> Iterator[Tensor]:
    """What an operator has written to: its result, and arguments that it changes; of a collective all of them."""
    yield from tensors_in(result)
    schema = getattr(func, "_schema", None)
    if schema is None:
        return
    in_place = schema.name.startswith("c10d::")
    for argument, value in zip(schema.arguments, args, strict=False):
        if in_place or (argument.alias_info is not None and argument.alias_info.is_write):
            yield from tensors_in(value)
    for argument in schema.arguments:
        if argument.name in kwargs and argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(kwargs[argument.name])


def _key(tensor: Tensor) -> int:
    return id(tensor.untyped_storage())
