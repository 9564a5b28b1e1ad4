"""A second opinion on one rank: decoder, loss, clip and AdamW token by token in float64, with nothing of the package.

Weights are a dictionary with the names and shapes of ours. ``shape`` is read for its numbers only. Of letters: B
sequences of a micro-batch, S tokens of a sequence, H hidden, D head size, E experts.

Sources: Vaswani et al. 2017, arXiv:1706.03762 (attention). Zhang, Sennrich 2019, arXiv:1910.07467 (RMSNorm). Su et al.
2021, arXiv:2104.09864, pairs half a head apart as in Llama (rotary positions). Ainslie et al. 2023, arXiv:2305.13245
(grouped queries). Shazeer 2020, arXiv:2002.05202 (SwiGLU). Jiang et al. 2024, arXiv:2401.04088 (experts). Fedus et al.
2021, arXiv:2101.03961, equations 4 to 6 (load balancing). Loshchilov, Hutter 2019, arXiv:1711.05101 (AdamW).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Stream = list[list[Tensor]]
"""The residual stream (H,) of each token of each sequence."""

LEARNING_RATE, BETA_1, BETA_2, EPSILON, DECAY = 3e-4, 0.9, 0.95, 1e-8, 0.1
"""Grattafiori et al. 2024, arXiv:2407.21783, section 3.4.1; the rate is the project's own, epsilon Adam's usual one."""


@dataclass(frozen=True)
class Shown:
    """Of two steps: losses, norms before clipping; of each weight the first gradient, and what both steps changed."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]
    changes: dict[str, Tensor]


def two_steps(
    initial: Weights,
    shape: Any,
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    max_grad_norm: float | None,
    aux_loss: float = 0.0,
    routing: str = "real",
) -> Shown:
    """Two steps on the same micro-batches."""
    weights = {name: weight.clone().requires_grad_() for name, weight in initial.items()}
    first_moments, second_moments = ({name: torch.zeros_like(weight) for name, weight in weights.items()} for _ in "mv")
    losses, norms, first_gradients = [], [], dict[str, Tensor]()
    for number in (1, 2):
        loss, balance = torch.zeros(()), torch.zeros(())
        for tokens, labels in micro_batches:
            cross_entropy, unbalanced = losses_of(weights, shape, tokens, labels, routing)
            loss = loss + cross_entropy / len(micro_batches)
            balance = balance + aux_loss * unbalanced / len(micro_batches)
        gradients = dict(zip(weights, torch.autograd.grad(loss + balance, list(weights.values())), strict=True))
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
        losses.append(float(loss.detach()))
        norms.append(norm)
        first_gradients = first_gradients or gradients
        factor = 1.0 if max_grad_norm is None else min(1.0, max_grad_norm / (norm + 1e-6))
        for name, weight in weights.items():
            gradient = factor * gradients[name]
            first_moments[name] = BETA_1 * first_moments[name] + (1 - BETA_1) * gradient
            second_moments[name] = BETA_2 * second_moments[name] + (1 - BETA_2) * gradient**2
            mean = first_moments[name] / (1 - BETA_1**number)
            spread = (second_moments[name] / (1 - BETA_2**number)).sqrt()
            stepped = weight.detach() * (1 - LEARNING_RATE * DECAY) - LEARNING_RATE * mean / (spread + EPSILON)
            weights[name] = stepped.requires_grad_()
    changes = {name: weight.detach() - initial[name] for name, weight in weights.items()}
    return Shown(losses, norms, first_gradients, changes)


def losses_of(
    weights: Weights, shape: Any, tokens_BS: Tensor, labels_BS: Tensor, routing: str
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of a micro-batch, and the sum over layers of how unevenly experts are used."""
    stream = [[weights["embedding.weight"][int(token)] for token in sequence] for sequence in tokens_BS]
    unbalanced = torch.zeros(())
    for index in range(shape.num_layers):
        of_layer = {
            name.removeprefix(f"layers.{index}."): weight
            for name, weight in weights.items()
            if name.startswith(f"layers.{index}.")
        }
        normed = _normed(stream, of_layer["attention_norm.weight"], shape.norm_eps)
        stream = _sum(stream, [_attention(of_layer, shape, sequence) for sequence in normed])
        normed = _normed(stream, of_layer["feed_forward_norm.weight"], shape.norm_eps)
        if shape.num_experts:
            added, uneven = _experts(of_layer, shape, normed, routing)
            unbalanced = unbalanced + uneven
        else:
            matrices = [of_layer[f"feed_forward.{name}.weight"] for name in ("gate", "up", "down")]
            added = [[_swiglu(x_H, *matrices) for x_H in sequence] for sequence in normed]
        stream = _sum(stream, added)
    head_VH = weights["embedding.weight" if shape.tied_embeddings else "head.weight"]
    surprises = []
    for sequence, labels in zip(_normed(stream, weights["norm.weight"], shape.norm_eps), labels_BS, strict=True):
        for x_H, label in zip(sequence, labels, strict=True):
            surprises.append(-torch.log(_softmax(head_VH @ x_H)[int(label)]))
    return sum(surprises, torch.zeros(())) / len(surprises), unbalanced


def _attention(weights: Weights, shape: Any, xs: Sequence[Tensor]) -> list[Tensor]:
    """Of one sequence; query heads that follow one another share a head of keys and values."""

    def heads(name: str, x_H: Tensor) -> list[Tensor]:
        row = weights[f"attention.{name}.weight"] @ x_H
        return [row[start : start + shape.head_dim] for start in range(0, len(row), shape.head_dim)]

    queries = [[_turned(head, at, shape.rope_theta) for head in heads("query", x)] for at, x in enumerate(xs)]
    keys = [[_turned(head, at, shape.rope_theta) for head in heads("key", x)] for at, x in enumerate(xs)]
    values = [heads("value", x) for x in xs]
    sharing = shape.num_heads // shape.num_kv_heads
    outputs = []
    for now in range(len(xs)):
        joined = []
        for head in range(shape.num_heads):
            scores = [queries[now][head] @ keys[at][head // sharing] / shape.head_dim**0.5 for at in range(now + 1)]
            shares = _softmax(torch.stack(scores))
            joined.append(sum(shares[at] * values[at][head // sharing] for at in range(now + 1)))
        outputs.append(weights["attention.output.weight"] @ torch.cat(joined))
    return outputs


def _turned(x_D: Tensor, position: int, theta: float) -> Tensor:
    """Channels d and d + D/2 as a complex number, turned by ``position * theta ** (-2d / D)``."""
    half = len(x_D) // 2
    angles = torch.tensor([position * theta ** (-2 * d / len(x_D)) for d in range(half)])
    turned = torch.complex(x_D[:half], x_D[half:]) * torch.polar(torch.ones(half), angles)
    return torch.cat((turned.real, turned.imag))


def _experts(weights: Weights, shape: Any, xs: Stream, routing: str) -> tuple[Stream, Tensor]:
    """Experts of each token, and ``E sum_e f_e P_e`` over all tokens of the micro-batch."""
    rows, total, token = [0] * shape.num_experts, torch.zeros(shape.num_experts), 0
    outputs: Stream = []
    for sequence in xs:
        outputs.append([])
        for x_H in sequence:
            probabilities = _softmax(weights["feed_forward.router.weight"] @ x_H)
            chosen = sorted(range(shape.num_experts), key=lambda e, p=probabilities: -float(p[e].detach()))
            chosen = chosen[: shape.experts_per_token]
            if routing == "balanced":
                chosen = [(token * shape.experts_per_token + j) % shape.num_experts for j in range(len(chosen))]
            of_chosen = sum(probabilities[e] for e in chosen) if len(chosen) > 1 else 1.0
            y_H = torch.zeros_like(x_H)
            for e in chosen:
                rows[e] += 1
                stacked = [weights[f"feed_forward.experts.{name}"] for name in ("gate", "up", "down")]
                matrices = [below.chunk(shape.num_experts)[e] for below in stacked]
                y_H = y_H + probabilities[e] / of_chosen * _swiglu(x_H, *matrices)
            if shape.num_shared_experts:
                matrices = [weights[f"feed_forward.shared.{name}.weight"] for name in ("gate", "up", "down")]
                y_H = y_H + _swiglu(x_H, *matrices)
            outputs[-1].append(y_H)
            total, token = total + probabilities, token + 1
    shares = torch.tensor(rows) / sum(rows)
    return outputs, shape.num_experts * (shares * total / token).sum()


def _swiglu(x_H: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    opened = gate @ x_H
    return down @ (opened / (1 + torch.exp(-opened)) * (up @ x_H))


def _normed(stream: Stream, weight_H: Tensor, eps: float) -> Stream:
    return [[x_H / torch.sqrt((x_H**2).mean() + eps) * weight_H for x_H in sequence] for sequence in stream]


def _sum(stream: Stream, added: Stream) -> Stream:
    return [[x + y for x, y in zip(left, right, strict=True)] for left, right in zip(stream, added, strict=True)]


def _softmax(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.detach().max())
    return powers / powers.sum()
