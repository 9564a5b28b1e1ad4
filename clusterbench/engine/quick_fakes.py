"""Fake tensors that are answered quickly: the same answers as torch's, from a cache that asks less of each tensor.

torch's own cache asks fifteen things of a tensor, through Python, and keeps nothing of an operator that gives a list.
Here a tensor is dtype, sizes, strides, device, storage and whether it requires a gradient. What is not a plain strided
tensor of this mode, and what torch says not to keep, goes torch's way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, _BypassDispatchCache

Key = tuple[Any, ...]
Answer = Callable[[Sequence[Any]], Any]
"""What an operator gives, from its arguments."""

_SIMPLE = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
_ASKS_DEVICE = torch.ops.prim.device.default


class _Unlike(Exception):
    """Arguments that only torch's own way knows what to do with."""


class QuickFakes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A FakeTensorMode that takes tensors with data among its arguments."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._answers: dict[Key, Answer | None] = {}

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ASKS_DEVICE and not self.in_kernel_invocation:  # more than half of all calls
            return args[0].fake_device
        return super().dispatch(func, types, args, kwargs or {})

    def _cached_dispatch_impl(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            key = (func, *self._key(args), *self._key(kwargs.values()), *kwargs)
        except _Unlike:
            return super()._cached_dispatch_impl(func, types, args, kwargs)
        if answer := self._answers.get(key):
            return answer(args)
        result = super()._dispatch_impl(func, types, args, kwargs)
        if key not in self._answers:
            self._answers[key] = self._answer(func, args, kwargs, result)
        return result

    def _key(self, values: Any) -> Key:
        key: list[Any] = []
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.fake_mode is not self or value.constant is not None or value.layout is not torch.strided:
                    raise _Unlike
                key += (
                    value.dtype,
                    value.shape,
                    value.stride(),
                    value.storage_offset(),
                    value.fake_device,
                    value.untyped_storage().nbytes(),
                    value.requires_grad,
                )
            elif kind in _SIMPLE:
                key += (kind, value)  # True is 1 is 1.0
            elif kind is list or kind is tuple or kind is torch.Size:
                key += (kind, len(value), *self._key(value))
            else:
                raise _Unlike
        return tuple(key)

    def _answer(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Answer | None:
        """How to give the same again; None where that cannot be said."""
        try:
            self._validate_cache_key(func, args, kwargs)
        except _BypassDispatchCache:
            return None
        if isinstance(result, list | tuple):
            each = [self._answer_of_one(func, args, one) for one in result]
            if None in each:
                return None
            kind = list if type(result) is list else tuple
            return lambda args: kind([one(args) for one in each])  # type: ignore[misc]
        return self._answer_of_one(func, args, result)

    def _answer_of_one(self, func: Any, args: Sequence[Any], result: Any) -> Answer | None:
        if result is None:
            return _nothing
        if type(result) is not FakeTensor or result.constant is not None or result.layout is not torch.strided:
            return None
        for index, argument in enumerate(args):
            if argument is result:
                return lambda args: args[index]
        shape, stride, offset, dtype = result.shape, result.stride(), result.storage_offset(), result.dtype
        device, storage = result.fake_device, result.untyped_storage()
        if func.is_view:
            of = [at for at, value in enumerate(args) if isinstance(value, Tensor)]
            if len(of) != 1 or args[of[0]].untyped_storage()._cdata != storage._cdata or args[of[0]].dtype != dtype:
                return None

            def view(args: Sequence[Any]) -> Tensor:
                with torch._C._DisableTorchDispatch():
                    bare = torch.empty(0, dtype=dtype, device="meta")
                    bare.set_(args[of[0]].untyped_storage(), offset, shape, stride)
                return FakeTensor(self, bare, device)

            return self._if_alike(view, args, result)
        if any(isinstance(each, Tensor) and each.untyped_storage()._cdata == storage._cdata for each in args):
            return None

        def new(args: Sequence[Any]) -> Tensor:
            with torch._C._DisableTorchDispatch():
                bare = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            return FakeTensor(self, bare, device)

        return self._if_alike(new, args, result)

    def _if_alike(self, answer: Answer, args: Sequence[Any], result: Any) -> Answer | None:
        again = answer(args)
        same = (
            again.untyped_storage().nbytes() == result.untyped_storage().nbytes()
            and again.storage_offset() == result.storage_offset()
            and torch._C._dispatch_key_set(again) == torch._C._dispatch_key_set(result)
            and again.requires_grad == result.requires_grad
        )
        return answer if same else None


def _nothing(args: Sequence[Any]) -> None:
    return None
