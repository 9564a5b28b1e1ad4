"""Copies of weights in the dtype of the arithmetic: rounded once a step, and read in every micro-batch.

A module that multiplies with such a copy has three things in place of its parameter ``weight``: the parameter
``weight_master``, which the optimizer updates; the buffer ``weight_copy``; and a property ``weight``, which is the copy
with a node of its own in each forward. A node that was made once and served a whole step would be older than all
others: autograd goes by age, and would keep every gradient in the dtype of the copy until backward is over.

The gradient is that of the master. Where it is to be as narrow as the copy, the copy is a parameter, too, and the
gradient is its own: DDP then has buckets of that dtype, and the optimizer gets it from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from clusterbench.engine.compat import before_compiled

_KEPT = "_clusterbench_rounded"


def keep_copy(
    module: nn.Module, leaf: str, master: nn.Parameter, dtype: torch.dtype, has_gradient: bool = False
) -> tuple[str, str]:
    """Puts a parameter and its copy in place of the one called ``leaf``.

    On the meta device: nothing is allocated yet. A property called ``leaf`` is left to who makes the module's class.

    Parameters
    ----------
    has_gradient
        Whether the gradient is the copy's and not the master's.

    Returns
    -------
    The names of the master and of the parameter that gets the gradient.
    """
    delattr(module, leaf)
    module.register_parameter(_master(leaf), master)
    copy = torch.empty_like(master, dtype=dtype, requires_grad=False)
    if has_gradient:
        module.register_parameter(_copy(leaf), nn.Parameter(copy))
    else:
        module.register_buffer(_copy(leaf), copy, persistent=False)
    setattr(module, _KEPT, [*kept_in(module), leaf])
    return _master(leaf), _copy(leaf) if has_gradient else _master(leaf)


def kept_in(module: nn.Module) -> list[str]:
    """The weights of a module, without those below it, of which it has a copy."""
    return getattr(module, _KEPT, [])


def masters_and_copies(module: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """All below a module, to round the ones into the others."""
    for part in module.modules():
        yield from (master_and_copy(part, leaf) for leaf in kept_in(part))


def master_and_copy(module: nn.Module, leaf: str) -> tuple[nn.Parameter, Tensor]:
    """A parameter and its copy."""
    return getattr(module, _master(leaf)), getattr(module, _copy(leaf))


def graded_and_copy(module: nn.Module, leaf: str) -> tuple[nn.Parameter, Tensor]:
    """The parameter that gets the gradient of a copy, and the copy as a plain tensor."""
    master, copy = master_and_copy(module, leaf)
    return (copy, copy.detach()) if isinstance(copy, nn.Parameter) else (master, copy)


def look_at_copy(leaf: str, is_last: bool = True) -> Callable[[nn.Module], Tensor]:
    """What gives the copy of a module's weight, with a new node: its gradient goes to the parameter that gets it.

    Parameters
    ----------
    is_last
        Whether nothing that uses the weight in a forward was before this, so that its gradient comes last.
    """

    def look(module: nn.Module) -> Tensor:
        if torch.compiler.is_compiling():  # a node that the compiler saw would be a part of what it compiles
            return cast(Tensor, getattr(module, _now(leaf)))
        return _rounded(*graded_and_copy(module, leaf), is_last)

    return look


def look_before_compiled(module: nn.Module) -> None:
    """Lets the nodes of a compiled module's weights be made before each call of it."""
    holders = [(part, leaf, look_at_copy(leaf)) for part in module.modules() for leaf in kept_in(part)]

    def look() -> None:
        for part, leaf, copy in holders:
            setattr(part, _now(leaf), copy(part))

    if holders:
        before_compiled(module, look)


def _master(leaf: str) -> str:
    return f"{leaf}_master"


def _copy(leaf: str) -> str:
    return f"{leaf}_copy"


def _now(leaf: str) -> str:
    return f"{leaf}_now"


def _rounded(graded: nn.Parameter, copy: Tensor, is_last: bool) -> Tensor:
    return cast(Tensor, _Rounded.apply(graded, copy, is_last))  # type: ignore[no-untyped-call]


class _Rounded(torch.autograd.Function):
    """The copy of a parameter. What is there of the parameter's gradient takes that of the copy as it is.

    Where nothing is there yet the gradient is made as wide as the parameter, which then keeps it. Two gradients of one
    backward would be added up before they reach it, in the dtype of the copy: all but the last are added here.
    """

    @staticmethod
    def forward(ctx: Any, graded: nn.Parameter, copy: Tensor, is_last: bool) -> Tensor:
        ctx.graded, ctx.is_last = graded, is_last
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (gradient,), graded = gradients, ctx.graded
        if graded.grad is None:
            return gradient.to(graded.dtype), None, None
        if ctx.is_last:
            return gradient, None, None
        graded.grad.add_(gradient)
        return None, None, None
