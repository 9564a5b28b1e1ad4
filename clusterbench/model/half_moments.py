"""AdamW whose moments are kept in fewer bits than the weights, which torch's own does not do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

PIECE = 2**24
"""Elements that are updated at once: what is computed in float32 takes 256 MB, and not more with a larger weight."""


class HalfMomentsAdamW(Optimizer):
    """AdamW with moments in ``moments``; arithmetic in float32, rounded to what is kept at the end.

    Weights may be DTensors (FSDP2), of which each rank updates its part. Made of plain operators, piece by piece, so it
    reads and writes memory several times where torch's fused one does once.

    Source
    ------
    Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        moments: torch.dtype,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "steps": 0})
        self.moments = moments

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every weight that has a gradient. ``closure`` is of other optimizers."""
        for group in self.param_groups:
            group["steps"] += 1
            for weight in group["params"]:
                if weight.grad is not None:
                    for piece in _pieces(_local(weight), _local(weight.grad), *self._moments_of(weight)):
                        _update(group, *piece)

    def _moments_of(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        state = self.state[weight]
        if not state:
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(_local(weight), dtype=self.moments)
        return state["exp_avg"], state["exp_avg_sq"]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape, part by part."""
    yield from zip(*(torch.split(tensor.reshape(-1), PIECE) for tensor in tensors), strict=True)


def _update(group: dict[str, Any], weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor) -> None:
    (beta_1, beta_2), steps = group["betas"], group["steps"]
    wide = torch.promote_types(weight.dtype, torch.float32)
    gradient = gradient.to(wide)
    new_mean = mean.to(wide).lerp(gradient, 1 - beta_1)
    new_square = square.to(wide).mul(beta_2).addcmul(gradient, gradient, value=1 - beta_2)
    mean.copy_(new_mean)
    square.copy_(new_square)
    divisor = new_square.div_(1 - beta_2**steps).sqrt_().add_(group["eps"])
    decayed = weight.to(wide).mul(1 - group["lr"] * group["weight_decay"])
    weight.copy_(decayed.addcdiv_(new_mean, divisor, value=-group["lr"] / (1 - beta_1**steps)))
