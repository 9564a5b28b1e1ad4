"""A Llama-like decoder on one device: RMSNorm, rotary positions, grouped-query attention, SwiGLU; no bias.

Shapes: B sequences of the micro-batch, S tokens of a sequence, H hidden, N query heads, K key-value heads, D head size,
V vocabulary. Under tensor parallelism N, K and the feed-forward width are this rank's share, so no number of heads is
read from the shape: attention takes what its projections give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from clusterbench.job import Chunk
from clusterbench.model.experts import MixtureOfExperts
from clusterbench.model.modules import Embedding, FeedForward, Linear, RMSNorm, TiedHead
from clusterbench.shape import ModelShape


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.query = Linear(shape.hidden_size, shape.num_heads * shape.head_dim)
        self.key = Linear(shape.hidden_size, shape.num_kv_heads * shape.head_dim)
        self.value = Linear(shape.hidden_size, shape.num_kv_heads * shape.head_dim)
        self.output = Linear(shape.num_heads * shape.head_dim, shape.hidden_size)

        # Whether a compiler can have all of this as one function.
        self.in_one_piece = True
        # What mixes the tokens: context parallelism puts its own here.
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention

    def forward(self, x_BSH: Tensor, cos_SD: Tensor, sin_SD: Tensor) -> Tensor:
        q_BNSD = rotate(self._heads(self.query(x_BSH)), cos_SD, sin_SD)
        k_BKSD = rotate(self._heads(self.key(x_BSH)), cos_SD, sin_SD)
        v_BKSD = self._heads(self.value(x_BSH))
        o_BNSD = self.attend(q_BNSD, k_BKSD, v_BKSD)
        return cast(Tensor, self.output(o_BNSD.transpose(1, 2).flatten(2)))

    def _heads(self, x: Tensor) -> Tensor:
        # The sequence is read from the projection, not from x: under sequence parallelism x comes in shorter.
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)


def causal_attention(q_BNSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
    """Each token attends to itself and those before it; K divides N."""
    grouped = q_BNSD.shape[1] != k_BKSD.shape[1]
    return F.scaled_dot_product_attention(q_BNSD, k_BKSD, v_BKSD, is_causal=True, enable_gqa=grouped)


def feed_forward(shape: ModelShape) -> nn.Module:
    """One network for all tokens, or a mixture of experts."""
    return MixtureOfExperts(shape) if shape.has_experts else FeedForward(shape)


class Layer(nn.Module):
    """Attention, then feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.attention = Attention(shape)
        self.feed_forward_norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.feed_forward = feed_forward(shape)

    def forward(self, x_BSH: Tensor, cos_SD: Tensor, sin_SD: Tensor) -> Tensor:
        x_BSH = x_BSH + self.attention(self.attention_norm(x_BSH), cos_SD, sin_SD)
        return cast(Tensor, x_BSH + self.feed_forward(self.feed_forward_norm(x_BSH)))


class Decoder(nn.Module):
    """Tokens (B, S) to logits (B, S, V), or the part of it that a pipeline stage has: the residual stream in or out.

    Parameters
    ----------
    positions
        In the sequence, of the S tokens this rank sees.

    Attributes
    ----------
    head_in_loss
        Whether what is returned is not the logits but what the head makes them of, with the loss.
    """

    def __init__(self, shape: ModelShape, dtype: torch.dtype, positions: Tensor, chunk: Chunk) -> None:
        super().__init__()
        self.shape, self.dtype, self.positions, self.chunk = shape, dtype, positions, chunk
        tied = chunk.last and shape.tied_embeddings
        self.embedding = Embedding(shape.vocab_size, shape.hidden_size, dtype) if chunk.first or tied else None
        # By their numbers in the whole model, so that a weight has one name wherever it is.
        self.layers = nn.ModuleDict({str(index): Layer(shape) for index in chunk.layers})
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps) if chunk.last else None
        self.head: TiedHead | Linear | None = None
        if chunk.last:
            self.head = (
                TiedHead(self.embedding) if self.embedding and tied else Linear(shape.hidden_size, shape.vocab_size)
            )
        self.rope: tuple[Tensor, Tensor] | None = None
        self.head_in_loss = False

    def forward(self, x: Tensor) -> Tensor:
        cosine_and_sine = self.tables()
        x_BSH = self.embedding(x) if self.chunk.first and self.embedding is not None else x
        for layer in self.layers.values():
            x_BSH = layer(x_BSH, *cosine_and_sine)
        if self.norm is None or self.head is None:
            return x_BSH
        x_BSH = self.norm(x_BSH)
        return x_BSH if self.head_in_loss else cast(Tensor, self.head(x_BSH))

    def tables(self) -> tuple[Tensor, Tensor]:
        """Of the rotary positions, which every layer reads: made once, and not on the meta device."""
        if self.rope is None:
            self.rope = rope_tables(self.shape, self.positions, self.dtype)
        return self.rope


def rope_tables(shape: ModelShape, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles at the given positions, each (positions, head size).

    Angles are computed in float64: at position 100 000 a float32 angle is off by 1e-2.

    Source: Su et al. 2021, arXiv:2104.09864, in the half-split arrangement of Llama.
    """
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device=positions.device) / shape.head_dim
    angles = torch.outer(positions.double(), shape.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x_BNSD: Tensor, cos_SD: Tensor, sin_SD: Tensor) -> Tensor:
    """Turns each pair of channels by the angle of its position."""
    first, second = x_BNSD.chunk(2, dim=-1)
    return x_BNSD * cos_SD + torch.cat((-second, first), dim=-1) * sin_SD


def loss_of(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens, in float32 at least: sums over a vocabulary need it."""
    logits = logits_BSV.flatten(0, 1)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels_BS.flatten())


def total_of(losses: Sequence[Tensor]) -> Tensor:
    """The sum of losses, as a plain tensor."""
    return torch.stack([loss.to_local() if isinstance(loss, DTensor) else loss for loss in losses]).sum()
