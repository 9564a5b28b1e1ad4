"""What CUDA's operators allocate and keep, on tensors without data that say they are a CPU's.

Of the operators of a step one differs: on a CPU a norm is made of plain operators, on CUDA it is one of its own. Both
attentions keep the output and a log-sum-exp in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from clusterbench.model.modules import RMSNorm


def use_cuda_operators(modules: Iterable[nn.Module]) -> None:
    """Puts them into a step that is not compiled."""
    for each in modules:
        for module in each.modules():
            if isinstance(module, RMSNorm):
                module.normalize = _norm


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if not isinstance(x, DTensor):
        return _FusedNorm.apply(x, weight)  # type: ignore[no-any-return,no-untyped-call]
    assert isinstance(weight, DTensor)
    own = weight.to_local(grad_placements=[Partial()] * weight.device_mesh.ndim)
    normed = _FusedNorm.apply(x.to_local(), own)  # type: ignore[no-untyped-call]
    return DTensor.from_local(normed, x.device_mesh, x.placements, run_check=False)


class _FusedNorm(torch.autograd.Function):
    """Keeps its input, the weight, and one float32 a row.

    Source: ``_fused_rms_norm`` in aten/src/ATen/native/cuda/layer_norm_kernel.cu of torch 2.13.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        statistic = torch.promote_types(x.dtype, torch.float32)
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1), dtype=statistic))
        normed: Tensor = torch.ops.clusterbench.rms_norm(x, weight)
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.ops.clusterbench.rms_norm_backward(gradients[0], x, weight)  # type: ignore[no-any-return]


def _gradients_like(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _define() -> Any:
    """Operators of our own: what is counted sees them, and not what they allocate."""
    library: Any = torch.library.Library("clusterbench", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("rms_norm(Tensor x, Tensor weight) -> Tensor")
    library.define("rms_norm_backward(Tensor gradient, Tensor x, Tensor weight) -> (Tensor, Tensor)")
    library.impl("rms_norm", lambda x, weight: torch.empty_like(x), "Meta")
    library.impl("rms_norm_backward", _gradients_like, "Meta")
    return library


_OPERATORS = _define()  # they live as long as this does
