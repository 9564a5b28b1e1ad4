"""The model of a person who needs this one and nothing else, in plain PyTorch; and the race of a step of it with ours.

B sequences, S tokens, H hidden, N heads of this rank, D head size.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.bench import Result, alternate, ratio
from tests.ranks import run_ranks

TARGET, STEPS = 1.03, 3
LIMIT_S, TOLD_S = 420.0, 10
"""Seconds after which a race begins no round, and between two lines that say how far it is."""
LOSSES_AGREE_TO = 1e-5  # relative, float32
ADAMW = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}  # as TrainingStep's

MicroBatches = Sequence[tuple[Tensor, Tensor]]
Rival = Callable[[Mapping[str, Tensor], Any, MicroBatches], Callable[[], Tensor]]
"""From this rank's part of our weights by name, the shape and the micro-batches: a step that gives its loss."""


BATCH = {"seq_len": 256, "global_batch_size": 8, "micro_batch_size": 4, "dtype": "float32"}


def race(
    name: str,
    layout: str,
    rival: Rival,
    rounds: int,
    options: Mapping[str, Any] | None = None,
    ours: Rival | None = None,
    limit_s: float = LIMIT_S,
    **changes: Any,
) -> Result:
    """Our step on two ranks against another in the same two processes; fails unless both compute the same losses.

    Parameters
    ----------
    rival
        Stands at the top of its module: it travels to the ranks by its name.
    options
        Of our parallelisms.
    ours
        What stands in the place of our step, if it is to be another.
    limit_s
        After which fewer rounds have to do: where a machine is busy, the control may then be too wide for a verdict.
    changes
        Of the job, which is that of suites/tp_scale.yaml on a CPU.
    """
    ranks = run_ranks(2, _race, name, layout, rival, rounds, limit_s, options or {}, ours, changes, timeout_s=900)
    # A step takes as long as its slower rank.
    ours, rivals, again = ([max(pair) for pair in zip(*both, strict=True)] for both in zip(*ranks, strict=True))
    return ratio(name, ours, rivals, again, TARGET)


def _race(
    name: str,
    layout: str,
    rival: Rival,
    rounds: int,
    limit_s: float,
    options: Mapping[str, Any],
    instead: Rival | None,
    changes: Mapping[str, Any],
) -> list[list[float]]:
    """This rank's seconds of each step of each contender."""
    from clusterbench.engine.clock import WallClock
    from clusterbench.engine.loop import measure as timed
    from clusterbench.parallel import from_options
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_job, make_rig

    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):  # Gloo's threads with it: unpinned, times vary by 11 %
        os.sched_setaffinity(int(thread), {cores[dist.get_rank() % len(cores)]})
    job = make_job(layout, **BATCH | changes)
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options(options), rig.grid, rig.device)
    given = {weight.name: weight.value for weight in step.weights}, job.shape, step.micro_batches
    ours, hand = instead(*given) if instead else step, rival(*given)
    for number in range(4):
        expected, loss = float(ours()), float(hand())
        assert math.isclose(expected, loss, rel_tol=LOSSES_AGREE_TO), (
            f"step {number}: our loss is {expected}, that by hand is {loss}"
        )

    def burst(step: Callable[[], Tensor]) -> list[float]:
        dist.barrier()
        return timed(step, WallClock(), STEPS, lambda iteration: None)  # without garbage collection

    contenders = {"ours": partial(burst, ours), "rival": partial(burst, hand), "again": partial(burst, hand)}
    bursts = alternate(rounds, contenders, partial(_is_over, name, rounds, limit_s, [time.monotonic()] * 2))
    return [list(chain.from_iterable(of_one)) for of_one in bursts.values()]


def _is_over(name: str, rounds: int, limit_s: float, clock: list[float], done: int) -> bool:
    """Whether rank 0's time is up, which it tells the others; ``clock`` is when it began, and when it last said so."""
    now = time.monotonic()
    if dist.get_rank() == 0 and now - clock[1] > TOLD_S:
        clock[1] = now
        print(f"\n{name}: {done} of {rounds} rounds, {now - clock[0]:.0f} s", end=" ", file=sys.stderr, flush=True)
    over = torch.tensor(now - clock[0] > limit_s)
    dist.broadcast(over, 0)
    return bool(over)


def copy_into(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Gives every parameter, or this rank's part of it, the value that ours has."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            part = weight.to_local() if isinstance(weight, DTensor) else weight
            part.copy_(weights[name].view_as(part))  # matrices of experts, one below the other, may be apart here


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x_BSH: Tensor) -> Tensor:
        return F.rms_norm(x_BSH, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, shape) -> None:
        super().__init__()
        self.head_dim, widths = shape.head_dim, (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        self.query, self.key, self.value = (
            nn.Linear(shape.hidden_size, heads * shape.head_dim, bias=False) for heads in widths
        )
        self.output = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)

    def forward(self, x_BSH: Tensor, cos_SD: Tensor, sin_SD: Tensor) -> Tensor:
        q, k, v = (
            part(x_BSH).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        q, k = rotate(q, cos_SD, sin_SD), rotate(k, cos_SD, sin_SD)
        o_BNSD = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.output(o_BNSD.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, shape) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(shape.hidden_size, shape.ffn_hidden_size, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.ffn_hidden_size, shape.hidden_size, bias=False)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BSH)) * self.up(x_BSH))


class Layer(nn.Module):
    def __init__(self, shape, feed_forward: Callable[[Any], nn.Module]) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = (Norm(shape.hidden_size, shape.norm_eps) for _ in range(2))
        self.attention, self.feed_forward = Attention(shape), feed_forward(shape)

    def forward(self, x_BSH: Tensor, cos_SD: Tensor, sin_SD: Tensor) -> Tensor:
        x_BSH = x_BSH + self.attention(self.attention_norm(x_BSH), cos_SD, sin_SD)
        return x_BSH + self.feed_forward(self.feed_forward_norm(x_BSH))


class Model(nn.Module):
    """A decoder; a stage of a pipeline takes away what the others have."""

    def __init__(self, shape, seq_len: int, feed_forward: Callable[[Any], nn.Module] = FeedForward) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleDict({str(number): Layer(shape, feed_forward) for number in range(shape.num_layers)})
        self.norm = Norm(shape.hidden_size, shape.norm_eps)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.rope = rope(shape, seq_len)

    def forward(self, x: Tensor) -> Tensor:
        x_BSH = self.embedding(x) if self.embedding else x
        for layer in self.layers.values():
            x_BSH = layer(x_BSH, *self.rope)
        return self.head(self.norm(x_BSH)) if self.head else x_BSH


def rope(shape, seq_len: int) -> tuple[Tensor, Tensor]:
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    angles_SD = torch.outer(torch.arange(seq_len, dtype=torch.float64), shape.rope_theta**-exponents).repeat(1, 2)
    return angles_SD.cos().float(), angles_SD.sin().float()


def rotate(x_BNSD: Tensor, cos_SD: Tensor, sin_SD: Tensor) -> Tensor:
    first, second = x_BNSD.chunk(2, dim=-1)
    return x_BNSD * cos_SD + torch.cat((-second, first), dim=-1) * sin_SD


def loss_of(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    return F.cross_entropy(logits_BSV.flatten(0, 1), labels_BS.flatten())
