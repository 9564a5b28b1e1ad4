"""AdamW with gradients in fewer bits than the weights, which torch's own does not take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from clusterbench.engine.compat import fused_adamw
from clusterbench.engine.dtensor import local
from clusterbench.job import CAST_AT_ONCE


class NarrowGradientsAdamW(Optimizer):
    """AdamW whose gradients are cast to the dtype of the weights part by part, as they are used.

    Parts of :data:`~clusterbench.job.CAST_AT_ONCE` elements, of one weight or of several, are updated by torch's fused
    operator: a gradient in both dtypes takes that much more and never twice the memory of all. Gradients in the dtype
    of their weight are taken as they are.

    Weights may be DTensors (FSDP2), of which each rank updates its part.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every weight that has a gradient. ``closure`` is of other optimizers."""
        for group in self.param_groups:
            beta_1, beta_2 = group["betas"]
            settings = {name: group[name] for name in ("lr", "weight_decay", "eps")}
            weights = [weight for weight in group["params"] if weight.grad is not None]
            states = [self._state_of(weight) for weight in weights]
            if states:
                torch._foreach_add_([state["step"] for state in states], 1)
            for parts in _parts(weights, states):
                cast = [(value, gradient.to(value.dtype), *moments) for value, gradient, *moments, _ in parts]
                fused_adamw(cast, [step for *_, step in parts], beta1=beta_1, beta2=beta_2, **settings)
                del cast  # before the next ones are made

    def _state_of(self, weight: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(local(weight))
        return state


def _parts(weights: list[Tensor], states: list[dict[str, Tensor]]) -> Iterator[list[tuple[Tensor, ...]]]:
    """Weight, gradient, both moments and step count of so many parts of weights as are updated at once, each flat."""
    waiting, numel = list[tuple[Tensor, ...]](), 0
    for weight, state in zip(weights, states, strict=True):
        assert weight.grad is not None
        tensors = local(weight), local(weight.grad), state["exp_avg"], state["exp_avg_sq"]
        pieces = (torch.split(tensor.view(-1), CAST_AT_ONCE) for tensor in tensors)
        for part in zip(*pieces, strict=True):
            if waiting and numel + part[0].numel() > CAST_AT_ONCE:
                yield waiting
                waiting, numel = [], 0
            waiting.append((*part, state["step"]))
            numel += part[0].numel()
    if waiting:
        yield waiting
