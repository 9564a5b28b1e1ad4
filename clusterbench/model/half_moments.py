"""AdamW with moments in fewer bits than the weights, or weights rounded by chance, which torch's own does not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from clusterbench.engine.dtensor import local
from clusterbench.model.stochastic_rounding import StochasticRounding, rounded

PIECE = 2**24
"""Elements that are updated at once: what is computed in float32 takes 256 MB, and not more with a larger weight."""


class HalfMomentsAdamW(Optimizer):
    """AdamW with moments in ``moments``; arithmetic in float32, rounded to what is kept at the end.

    Rounded to nearest, but for weights in bfloat16 with ``rounding``: those by chance.

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
        rounding: StochasticRounding | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "steps": 0})
        self.moments, self.rounding = moments, rounding

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every weight that has a gradient. ``closure`` is of other optimizers."""
        for group in self.param_groups:
            group["steps"] += 1
            for weight in group["params"]:
                if weight.grad is not None:
                    tensors = local(weight), local(weight.grad), *self._moments_of(weight)
                    if self.rounding is None:
                        for value, *others in _pieces(*tensors):
                            value.copy_(_updated(group, value, *others))
                    else:
                        for bits, (value, *others) in self.rounding.pieces(weight, group["steps"], tensors):
                            value.copy_(rounded(_updated(group, value, *others), bits))

    def _moments_of(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        state = self.state[weight]
        if not state:
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(local(weight), dtype=self.moments)
        return state["exp_avg"], state["exp_avg_sq"]


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape, part by part."""
    yield from zip(*(torch.split(tensor.reshape(-1), PIECE) for tensor in tensors), strict=True)


def _updated(group: dict[str, Any], weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    """What an update makes of a weight, before it is rounded; moments are written."""
    (beta_1, beta_2), steps = group["betas"], group["steps"]
    wide = torch.promote_types(weight.dtype, torch.float32)
    gradient = gradient.to(wide)
    new_mean = mean.to(wide).lerp(gradient, 1 - beta_1)
    new_square = square.to(wide).mul(beta_2).addcmul(gradient, gradient, value=1 - beta_2)
    mean.copy_(new_mean)
    square.copy_(new_square)
    divisor = new_square.div_(1 - beta_2**steps).sqrt_().add_(group["eps"])
    decayed = weight.to(wide).mul(1 - group["lr"] * group["weight_decay"])
    return decayed.addcdiv_(new_mean, divisor, value=-group["lr"] / (1 - beta_1**steps))
