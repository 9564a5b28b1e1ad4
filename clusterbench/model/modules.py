"""The modules of layers: matrix product, embedding, head, norm, feed-forward; without bias and dropout.

Weights are rounded to the dtype of the activations where they are used, unless they come in it: gathered by FSDP, or as
copies that were rounded once for the step (:mod:`clusterbench.model.rounded`). That is what autocast does, without its
cache and its thread-local state, so recomputation and dry runs see plain operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterbench.shape import ModelShape


class Linear(nn.Linear):
    """A matrix product without bias, in the dtype of its input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        # What multiplies with the weight, rounded to the dtype of the input: eight bits have their own.
        self.product: Callable[[Tensor, Tensor], Tensor] = F.linear

    def reset_parameters(self) -> None:
        """Nothing: weights come from the seed, and on the meta device torch would import its compiler for this."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight.to(x.dtype))


class Embedding(nn.Embedding):
    """Rows of a table, in the compute dtype, which everything after it then has."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__(rows, width)
        self.dtype = dtype

    def reset_parameters(self) -> None:
        """Nothing, as in :class:`Linear`."""

    def forward(self, tokens: Tensor) -> Tensor:
        # Rounded before the look-up: behind it, a table split over ranks would sum its parts in the master dtype.
        return F.embedding(tokens, self.weight.to(self.dtype))


class TiedHead(nn.Module):
    """The output head whose weight is the input embedding."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        # In a list, so that it is no submodule: the weight exists once, and stays where the embedding has it.
        self.borrowed = [embedding]

    @property
    def weight(self) -> Tensor:
        """That of the embedding."""
        return self.borrowed[0].weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    """Scales each token to unit mean square, then each channel by a weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        return F.rms_norm(x, weight.shape, weight, self.eps)


class FeedForward(nn.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = Linear(shape.hidden_size, shape.ffn_hidden_size)
        self.up = Linear(shape.hidden_size, shape.ffn_hidden_size)
        self.down = Linear(shape.ffn_hidden_size, shape.hidden_size)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return cast(Tensor, self.down(F.silu(self.gate(x_BSH)) * self.up(x_BSH)))
