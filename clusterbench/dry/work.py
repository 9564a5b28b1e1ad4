"""FLOPs and bytes of a step by module and kind of operator."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from torch import Tensor

from clusterbench.engine.compat import COMMUNICATION_NAMESPACES, tensors_in
from clusterbench.engine.flops import name_of
from clusterbench.engine.launches import argument_of, computes, written_arguments
from clusterbench.engine.memory import OPTIMIZER
from clusterbench.job.dry import COPIES, ELEMENTWISE, LOOK_UPS, NORMS, SHARDS, UPDATE, Work

_KINDS = (
    (SHARDS, re.compile(r"^fsdp::")),
    (LOOK_UPS, re.compile(r"embedding|index|gather|scatter|take|sort|topk|bincount")),
    (NORMS, re.compile(r"rms_norm|layer_norm")),
    (COPIES, re.compile(r"copy|clone|contiguous|(?:_|::)cat$|stack|_pad|::fill_|zero|ones|_full|::full|arange")),
)
_TAKES_ROWS = re.compile(r"embedding$|index$|index_select$|gather$")
"""Of the table they read as much as they give."""

_CHANGES_ROWS = re.compile(r"^(?:index_put|index_add|index_copy|scatter|scatter_add)_$")
"""Of what they write to they touch as much as they are given."""

_READS_NOTHING = re.compile(r"^new_|_like$|^zero_$|^fill_$")
_OVERWRITES = re.compile(r"copy_(?!\w)|fill_|zero_|copy_out|split_with_sizes_copy|all_gather_copy_in|chunk_cat")
"""What they write to, they have not read."""


class WorkTable:
    """Adds up what operators compute and move, by where they run."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    def saw(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        result: Any,
        multiplied: tuple[str, int] | None,
        where: Callable[[], tuple[str, str]],
    ) -> None:
        """Takes in one operator.

        Parameters
        ----------
        multiplied
            Its kind and FLOPs, if it multiplies matrices.
        where
            Says in which module, and whether in forward or in backward.
        """
        if getattr(func, "namespace", None) in COMMUNICATION_NAMESPACES or not computes(func):
            return
        module, during = where()
        kind, flops = multiplied or (UPDATE if module == OPTIMIZER else kind_of(func), 0)
        read_bytes, written_bytes = moved_by(func, args, kwargs, result)
        total = self._sums[block_of(module), during, kind]
        for index, value in enumerate((1, flops, read_bytes, written_bytes)):
            total[index] += value

    def rows(self) -> list[Work]:
        """What was added up; layers that do the same are one row."""
        alike: dict[tuple[str, str, str, tuple[int, ...]], list[str]] = defaultdict(list)
        for (block, during, kind), total in self._sums.items():
            layer, name = _layer_of(block)
            alike[name, during, kind, tuple(total)].append(layer)
        return [
            Work(
                _named(name, layers),
                during,
                kind,
                *(len(layers) * value for value in total),
            )
            for (name, during, kind, total), layers in alike.items()
        ]


@cache
def block_of(module: str) -> str:
    """The part of a model that a module belongs to: of a layer its norm, attention or feed-forward.

    >>> block_of("layers.3.attention.query"), block_of("layers.3"), block_of("head")
    ('layers.3.attention', 'layers.3', 'head')
    """
    return ".".join(module.split(".")[:3])


def _layer_of(block: str) -> tuple[str, str]:
    """The number of its layer, empty for what is in none, and the same block of any layer."""
    parts = block.split(".")
    if parts[0] != "layers" or len(parts) < 2:
        return "", block
    return parts[1], ".".join(["layers", "*", *parts[2:]])


def _named(name: str, layers: Iterable[str]) -> str:
    numbers = list(layers)
    return name.replace("*", numbers[0]) if len(numbers) == 1 and numbers[0] else name


@cache
def kind_of(func: Any) -> str:
    """Of an operator that multiplies no matrices."""
    name = name_of(func)
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), ELEMENTWISE)


def moved_by(func: Any, args: Any, kwargs: Any, result: Any) -> tuple[int, int]:
    """Bytes that an operator reads and writes: each operand and each result once, as if no cache held anything."""
    name = name_of(func)
    if own := _OWN.get(name):
        return own(args)
    name = name.partition("::")[2]
    written = tensors_in([argument_of(args, kwargs, each) for each in written_arguments(func)])
    own_results = [tensor for tensor in tensors_in(result) if not _is_among(tensor, written)]
    read = [] if _READS_NOTHING.search(name) else tensors_in([args, kwargs])
    if _TAKES_ROWS.search(name):
        read = [*read[1:], *own_results]
    if _CHANGES_ROWS.search(name):
        given = [*map(_bytes, read[1:])]
        rows = max(given, default=0)
        return sum(given) + rows, rows
    if _OVERWRITES.search(name):
        read = [tensor for tensor in read if not _is_among(tensor, written)]
    return sum(map(_bytes, read)), sum(map(_bytes, [*written, *own_results]))


def _is_among(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    return any(tensor is other for other in others)


def _copied_in(args: Any) -> tuple[int, int]:
    """FSDP's shares of several weights, into one buffer of which a part is this rank's."""
    size_bytes = sum(map(_bytes, tensors_in(args[0])))
    return size_bytes, size_bytes


def _updated(args: Any) -> tuple[int, int]:
    """Adam reads weights, gradients, both moments and step counts, and writes all but the gradients."""
    weights, gradients, *moments = (sum(map(_bytes, tensors_in(each))) for each in args[:6])
    return weights + gradients + sum(moments), weights + sum(moments)


_OWN: dict[str, Callable[[Any], tuple[int, int]]] = {
    "fsdp::all_gather_copy_in": _copied_in,
    "aten::_fused_adamw_": _updated,
}
"""Operators that do not say what they write."""


def _bytes(tensor: Tensor) -> int:
    """What lies behind a tensor; that of an expanded one is there once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
