"""What a step makes its host launch, and which of its collectives have to wait for one another."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from clusterbench.engine.compat import COMMUNICATION_NAMESPACES, TorchDispatchMode, is_wrapper_type, tensors_in
from clusterbench.engine.traffic import SILENT, TrafficCounter

_LAUNCHES_NOTHING = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::detach",
        "aten::_unsafe_view",
        "aten::_reshape_alias",
    }
)

_READS_BACK = frozenset({"aten::_local_scalar_dense", "aten::equal"})
"""Give a number to the host, which waits for it."""


@dataclass(frozen=True)
class _Link:
    """A collective, and the one before it in its chain."""

    axis: str
    length: int
    before: _Link | None


def count_operators(step: Callable[[], object]) -> int:
    """Operators that a step launches: those that compute. Of compiled functions none are seen."""
    counter = _OperatorCounter()
    with counter:
        step()
    return counter.count


class _OperatorCounter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_wrapper_type(kind) for kind in types):
            return NotImplemented  # a DTensor's own operators follow
        if getattr(func, "namespace", None) not in COMMUNICATION_NAMESPACES and computes(func):
            self.count += 1
        return func(*args, **(kwargs or {}))


class Launches:
    """Counts operators that compute, and follows through storages which collective needs the result of which.

    Parameters
    ----------
    traffic
        Knows the axis of a collective.
    """

    def __init__(self, traffic: TrafficCounter) -> None:
        self.operators = 0
        self._traffic = traffic
        self._behind: dict[int, _Link] = {}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._longest: _Link | None = None

    @property
    def chain(self) -> Mapping[str, int]:
        """How many collectives of the longest chain there are along each axis."""
        counts, link = Counter[str](), self._longest
        while link is not None:
            counts[link.axis] += 1
            link = link.before
        return dict(sorted(counts.items()))

    def saw(self, func: Any, args: Any, kwargs: Any, result: Any, *, on_host: bool = False) -> None:
        """Takes in one operator; one that the host computes itself is not launched."""
        inputs = [self._behind[key] for key in map(_key, tensors_in([args, kwargs])) if key in self._behind]
        link = max(inputs, key=lambda each: each.length, default=None)
        if getattr(func, "namespace", None) in COMMUNICATION_NAMESPACES:
            link = self._communicated(func, args, kwargs, link)
        elif computes(func) and not on_host:
            self.operators += 1
        if link is not None:
            self._note(_results(func, args, kwargs, result), link)

    def _communicated(self, func: Any, args: Any, kwargs: Any, before: _Link | None) -> _Link | None:
        if func._schema.name.split("::")[1] in SILENT:
            return before
        axis, _ = self._traffic.axis_of(args, kwargs)
        link = _Link(axis, 1 + (before.length if before else 0), before)
        if self._longest is None or link.length > self._longest.length:
            self._longest = link
        return link

    def _note(self, tensors: Iterable[Tensor], link: _Link) -> None:
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


@cache
def computes(func: Any) -> bool:
    """Whether an operator starts work on a device: not views, not allocations, not questions about a tensor."""
    schema = getattr(func, "_schema", None)
    if schema is None or schema.name in _LAUNCHES_NOTHING or schema.name.startswith(("prim::", "profiler::")):
        return False
    if any(out.alias_info is not None and not out.alias_info.is_write for out in schema.returns):
        return False
    makes_tensors = any("Tensor" in str(out.type) for out in schema.returns)
    return makes_tensors or schema.name in _READS_BACK or bool(written_arguments(func))


def _results(func: Any, args: Any, kwargs: Any, result: Any) -> list[Tensor]:
    """What an operator has written to: its result, and arguments that it changes; of a collective all of them."""
    return tensors_in([result, [argument_of(args, kwargs, each) for each in written_arguments(func)]])


@cache
def written_arguments(func: Any) -> Sequence[tuple[int, str]]:
    """The arguments to which an operator writes, each by its place and its name."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return ()
    in_place = schema.name.startswith("c10d::")
    return [
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if in_place or (argument.alias_info is not None and argument.alias_info.is_write)
    ]


def argument_of(args: Any, kwargs: Any, place_and_name: tuple[int, str]) -> Any:
    """One argument of a call, given by place or by name."""
    place, name = place_and_name
    return args[place] if place < len(args) else kwargs.get(name)


def _key(tensor: Tensor) -> int:
    return id(tensor.untyped_storage())
