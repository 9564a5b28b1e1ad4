"""Selective recomputation by operator: what a forward keeps of its results, and what its repetition takes of them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, create_selective_checkpoint_contexts

from clusterbench.engine.compat import StorageWeakRef, TorchDispatchMode, is_wrapper_type, tensors_in
from clusterbench.engine.launches import argument_of, written_arguments

_PRODUCTS = ("mm", "addmm", "bmm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm")
_PRODUCT = tuple(f"aten::{name}" for name in _PRODUCTS)
_OF_MESSAGES = "_c10d_functional::"
_SENDS = tuple(f"{_OF_MESSAGES}{verb}" for verb in ("all_", "reduce_scatter", "broadcast"))
"""The others of that name wait for what arrives, or wrap it: it stays where it is."""
_ATTENTION = "aten::_scaled_dot_product"
_aten = torch.ops.aten
_KEEPS_NOTHING = frozenset(
    (_aten.add.Tensor, _aten.cat.default, _aten._to_copy.default, _aten.clone.default, _aten._unsafe_view.default)
)
"""Operators of which autograd keeps no operand, as it keeps none of a view's or a message's."""


def selective_contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """What :func:`torch.utils.checkpoint.checkpoint` enters around a forward, and around its repetition in backward.

    Results of products, attention and messages are kept, and not made again. Of them go, when the forward is over,
    those that nothing in backward reads: a product that is only summed over ranks, as the sum is kept; and what is
    only added to the stream that leaves. In their place the repetition has memory of the same size with nothing in it.

    A compiler finds that out itself, from the graph: it gets torch's own contexts.
    """
    if torch.compiler.is_compiling():
        keeping, repeating = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]
        return keeping, repeating
    kept: dict[Any, deque[_Result]] = defaultdict(deque)
    return _Keeping(kept), _Repeating(kept)


def _policy(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if _costs(operator) else CheckpointPolicy.PREFER_RECOMPUTE


def _costs(operator: Any) -> bool:
    name: str = operator.name()
    return name.startswith((*_PRODUCT, _OF_MESSAGES, _ATTENTION))


@dataclass(eq=False)
class _Result:
    """Of one operator in forward.

    Attributes
    ----------
    value
        Its tensors, without their history; when they are let go, others of their size with nothing in them.
    is_read
        Whether something in backward reads it, or what was made of it.
    is_gone
        Whether it was let go.
    """

    value: Any
    is_read: bool
    is_gone: bool = False

    def mark_read(self, by: str) -> None:
        if self.is_gone:
            raise RuntimeError(f"{by} reads what selective recomputation let go of when it was sent")
        self.is_read = True

    def let_go(self) -> None:
        if not self.is_read:
            self.value = tree_map_only(Tensor, _without_data, self.value)
            self.is_gone = True


class _Role(Enum):
    """What an operator does with results that it takes.

    Attributes
    ----------
    STAYS
        They stay in their memory: it gives a view of them, or waits until they have arrived.
    PASSES_ON
        It makes others of them, and autograd keeps none.
    SENDS
        What arrives is kept in their place.
    READS
        Autograd may keep them for backward.
    """

    STAYS = auto()
    PASSES_ON = auto()
    SENDS = auto()
    READS = auto()


class _Kind(NamedTuple):
    """What there is to know of an operator."""

    role: _Role
    name: str
    is_kept: bool
    is_attention: bool
    writes: bool


@cache
def _kind_of(operator: Any) -> _Kind:
    name: str = operator.name()
    if operator in _KEEPS_NOTHING:
        role = _Role.PASSES_ON
    elif name.startswith(_SENDS):
        role = _Role.SENDS
    else:
        stays = operator in SAC_IGNORED_OPS or operator.is_view or name.startswith(_OF_MESSAGES)
        role = _Role.STAYS if stays else _Role.READS
    # of operators of c10d torch does not say what they write to
    writes = operator.namespace != "c10d" and bool(written_arguments(operator))
    is_kept = operator not in SAC_IGNORED_OPS and _costs(operator)
    return _Kind(role, name, is_kept, name.startswith(_ATTENTION), writes)


class _Keeping(TorchDispatchMode):
    """Around the forward."""

    def __init__(self, kept: Mapping[Any, deque[_Result]]) -> None:
        super().__init__()
        self._kept = kept
        self._made_of: dict[int, tuple[StorageWeakRef, set[_Result]]] = {}
        """Memory -> the results it was made of by operators that keep nothing; a weak reference keeps its number."""

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: Sequence[Any] = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        kind, options = _kind_of(operator), options or {}
        if kind.writes:
            self._refuse_to_write(operator, arguments, options)
        value = operator(*arguments, **options)
        read = set() if kind.role is _Role.STAYS else self._behind((arguments, options))
        for result in read:
            if kind.role is _Role.SENDS:  # what arrives is kept
                result.let_go()
            elif kind.role is _Role.READS:
                result.mark_read(by=kind.name)
        if kind.is_kept:
            # attention keeps its own results for backward, whoever reads them
            result = _Result(tree_map_only(Tensor, Tensor.detach, value), is_read=kind.is_attention)
            self._kept[operator].append(result)
            self._note(value, {result})
        elif read and kind.role is _Role.PASSES_ON:
            self._note(value, read)
        return value

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        self._made_of.clear()
        for results in self._kept.values():
            for result in results:
                result.let_go()

    def _behind(self, value: Any) -> set[_Result]:
        made_of = self._made_of
        found = [made_of[memory][1] for memory in _memory(value) if memory in made_of]
        return set().union(*found)

    def _note(self, value: Any, results: set[_Result]) -> None:
        for tensor in tensors_in(value):
            storage = tensor.untyped_storage()
            before = self._made_of.get(storage._cdata)
            if before is None:
                self._made_of[storage._cdata] = StorageWeakRef(storage), set(results)
            else:
                before[1].update(results)

    def _refuse_to_write(self, operator: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        written = [argument_of(arguments, options, each) for each in written_arguments(operator)]
        memory = {*_memory(written)}
        for result in self._behind(written):
            if memory & {*_memory(result.value)}:
                raise RuntimeError(f"{operator.name()} writes to a result that selective recomputation has kept")


class _Repeating(TorchDispatchMode):
    """Around the repetition of the forward in backward."""

    def __init__(self, kept: Mapping[Any, deque[_Result]]) -> None:
        super().__init__()
        self._kept = kept

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: Sequence[Any] = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        if not _kind_of(operator).is_kept:
            return operator(*arguments, **(options or {}))
        if not self._kept[operator]:
            raise RuntimeError(
                f"backward calls {operator.name()} more often than forward did: it goes through the layer a second "
                "time, or another layer than forward's; selective recomputation keeps its results for one backward"
            )
        return self._kept[operator].popleft().value


def _memory(value: Any) -> list[int]:
    """Numbers of what the tensors lie in, or those within: a DTensor has its part, a message under way its result."""
    return [tensor.untyped_storage()._cdata for tensor in tensors_in(value)]


def _without_data(tensor: Tensor) -> Tensor:
    """One of the same size and type that lies in the memory of a single element."""
    kind: Any = type(tensor)
    if not is_wrapper_type(kind):
        return tensor.new_empty((1,) * tensor.dim()).expand(tensor.size())
    names, rest = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    within = {name: getattr(tensor, name) for name in names}
    hollow = {name: _without_data(inner) if isinstance(inner, Tensor) else inner for name, inner in within.items()}
    again: Tensor = kind.__tensor_unflatten__(hollow, rest, tensor.size(), tensor.stride())
    return again
