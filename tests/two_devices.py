"""Tells tensors of a rank's device from those of its host where both are a CPU: what a GPU refuses is refused here.

:data:`DEVICE` is a CPU under a name of its own, ``cpu:0``. What is made with it is the device's, what is made without a
device, or goes to ``cpu``, is the host's; results follow what they are made from, and of what was made elsewhere, as by
autograd, nothing is known. Only calls from the package itself are looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

DEVICE, HOST = torch.device("cpu:0"), torch.device("cpu")
UNKNOWN = torch.device("cpu")  # an object of its own
PACKAGE = str(Path(__file__).parents[1] / "clusterbench")

_MADE = {
    torch.tensor, torch.as_tensor, torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.randn,
    torch.rand, torch.randint, torch.linspace, torch.eye, torch.randperm,
}  # fmt: skip
_MOVES = {Tensor.copy_, Tensor.__setitem__}
_WHOLE = {torch.stack, torch.cat, torch.equal, torch.where}
"""They take no number of the host beside tensors of a device, as arithmetic does."""


class MixedDevices(AssertionError):
    """A call that would fail where the device is none of the host's."""


class TwoDevices(TorchFunctionMode):
    """While it is open, a call with tensors of both raises :class:`MixedDevices`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [*_tensors((args, kwargs))]
        of_inputs = {where for tensor in tensors if (where := _where(tensor)) is not None}
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return next(iter(of_inputs), UNKNOWN) if _is_cpu(args[0]) else func(*args, **kwargs)
        if len(of_inputs) > 1 and func not in _MOVES and _is_ours():
            host = [tensor for tensor in tensors if _where(tensor) == HOST]
            if func in _WHOLE or any(tensor.dim() for tensor in host):
                raise MixedDevices(f"{getattr(func, '__name__', func)} of tensors of the device and of the host")
        result = func(*args, **kwargs)
        where = _asked(func, args, kwargs) or (DEVICE if DEVICE in of_inputs else next(iter(of_inputs), None))
        if where is None and func in _MADE and _is_ours():
            where = HOST
        if where is not None:
            for tensor in _tensors(result):
                tensor.where_it_is = where  # type: ignore[attr-defined]
        return result


def _is_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _where(tensor: Tensor) -> torch.device | None:
    return tensor.__dict__.get("where_it_is")


def _asked(func: Callable[..., Any], args: Any, kwargs: Any) -> torch.device | None:
    """The device that a call names."""
    if func is Tensor.cpu:
        return HOST
    named = [kwargs.get("device"), *(args[1:] if func is Tensor.to else ())]
    for name in named:
        if name is UNKNOWN:
            return None
        if isinstance(name, torch.device) and name.type == "cpu":
            return name
        if name == "cpu":
            return HOST
        if func is Tensor.to and isinstance(name, Tensor):
            return _where(name)
    return None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def _is_ours() -> bool:
    """Whether the call stands in the package: two frames are those of this file."""
    return sys._getframe(2).f_code.co_filename.startswith(PACKAGE)
