"""Matrix products in eight bits: operands are scaled, rounded to float8 and multiplied; sums are in float32.

Shapes: T tokens, I inputs, O outputs of a linear layer; a product is (M, K) times the transpose of (N, K).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Shard

from clusterbench.engine.compat import scaled_product, widen_scaled_products

OPERAND, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
"""Four bits of exponent and three of mantissa, or five and two: gradients span more magnitudes."""

LEAST_SCALE = 1e-12

widen_scaled_products()


def float8_linear(x: Tensor, weight_OI: Tensor, scaling: str) -> Tensor:
    """``x @ weight.T`` with both rounded to float8, as all three products of it are, forward and backward.

    Parameters
    ----------
    x
        (..., I); keeps its dtype.
    scaling
        ``tensorwise``: one scale for each operand; gradients are rounded to e5m2. ``rowwise``: one for each row of
        either, along what is summed over; all are e4m3.

    Notes
    -----
    Of DTensors each rank multiplies its parts, and scales are of those: finer than of the whole, and without a message.
    What is sent between ranks is not rounded.

    For backward ``x`` and ``weight`` are kept as they came, and rounded again. Scales are of this moment: no history of
    maxima is kept.

    Source
    ------
    Micikevicius et al. 2022, arXiv:2209.05433. pytorch/ao, ``torchao/float8``, for which operand has which format.
    """
    if isinstance(x, DTensor) and isinstance(weight_OI, DTensor):
        return _of_parts(x, weight_OI, scaling)
    return cast(Tensor, _Linear.apply(x, weight_OI, scaling))  # type: ignore[no-untyped-call]


def _of_parts(x: DTensor, weight_OI: DTensor, scaling: str) -> Tensor:
    """The product of a weight that is cut along one of its dimensions."""
    (cut,) = weight_OI.placements
    assert isinstance(cut, Shard)
    # Cut along its outputs, a rank has some of the result, and its part of a sum that is the gradient of x; cut along
    # its inputs, it is the other way round.
    channels = Shard(x.dim() - 1)
    result, gradient = (channels, Partial()) if cut.dim == 0 else (Partial(), channels)
    part = float8_linear(x.to_local(grad_placements=[gradient]), weight_OI.to_local(grad_placements=[cut]), scaling)
    return DTensor.from_local(part, x.device_mesh, [result], run_check=False)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, scaling: str) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        ctx.scaling = scaling
        y_TO = _product(x.flatten(0, -2), weight_OI, scaling, OPERAND, fast=True)
        return y_TO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight_OI = ctx.saved_tensors
        dy_TO, x_TI = gradients[0].flatten(0, -2), x.flatten(0, -2)
        by_row = ctx.scaling == "rowwise"
        kind = OPERAND if by_row else GRADIENT
        dx_TI = _product(dy_TO, weight_OI.t(), ctx.scaling, kind, fast=by_row)
        dweight_OI = _product(dy_TO.t(), x_TI.t(), ctx.scaling, kind, fast=by_row)
        return dx_TI.view_as(x), dweight_OI, None


def _product(a_MK: Tensor, b_NK: Tensor, scaling: str, kind_of_a: torch.dtype, fast: bool) -> Tensor:
    """``a @ b.T`` in the dtype of ``a``, which may lie in memory in any order."""
    a8_MK, scale_of_a = _rounded(a_MK, scaling, kind_of_a)
    b8_NK, scale_of_b = _rounded(b_NK, scaling, OPERAND)
    return scaled_product(a8_MK, b8_NK.t(), scale_of_a, scale_of_b.t(), a_MK.dtype, fast=fast)


def _rounded(tensor_MK: Tensor, scaling: str, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """In float8, row after row in memory, with what it is to be multiplied by: one number, or one for each row."""
    largest = tensor_MK.abs().amax(1, keepdim=True) if scaling == "rowwise" else tensor_MK.abs().amax().view(1, 1)
    most = torch.finfo(kind).max
    scale = (largest.float() / most).clamp(min=LEAST_SCALE)
    return (tensor_MK.float() / scale).clamp(-most, most).to(kind).contiguous(), scale
