"""Our tensor-parallel step on two ranks against the same step written by hand, in the same two processes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tests.bench import Result, alternate, ratio
from tests.ranks import run_ranks

TARGET = 1.03
ROUNDS, STEPS = 24, 3
LOSSES_AGREE_TO = 1e-5  # relative, float32


def measure() -> list[Result]:
    ranks = run_ranks(2, _race, timeout_s=600)
    # A step takes as long as its slower rank.
    ours, hand, again = ([max(pair) for pair in zip(*both, strict=True)] for both in zip(*ranks, strict=True))
    return [ratio("tp2_by_hand", ours, hand, again, TARGET)]


def _race() -> list[list[float]]:
    """This rank's seconds of each step, of each contender; fails unless both compute the same losses."""
    from clusterbench.engine.clock import WallClock
    from clusterbench.engine.loop import measure as timed
    from clusterbench.parallel import from_options
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_job, make_rig

    # as in suites/tp_scale.yaml on a CPU
    job = make_job("tp2", seq_len=256, global_batch_size=8, micro_batch_size=4, dtype="float32")
    rig = make_rig(job.layout)
    ours = TrainingStep(job, from_options({}), rig.mesh, rig.device)
    weights = {weight.name: weight.parameter.detach().clone().requires_grad_() for weight in ours.weights}
    hand = StepByHand(weights, job.shape, ours.micro_batches)
    for number in range(4):
        of_ours, by_hand = float(ours()), float(hand())
        assert math.isclose(of_ours, by_hand, rel_tol=LOSSES_AGREE_TO), (
            f"step {number}: our loss is {of_ours}, by hand it is {by_hand}"
        )

    def burst(step) -> list[float]:
        dist.barrier()
        return timed(step, WallClock(), STEPS, lambda iteration: None)

    rivals = {"ours": lambda: burst(ours), "hand": lambda: burst(hand), "hand again": lambda: burst(hand)}
    return [list(chain.from_iterable(bursts)) for bursts in alternate(ROUNDS, rivals).values()]


# What follows is the rival: what a person writes who needs this one model on tp ranks and nothing else.
# B sequences, S tokens, H hidden, N heads of this rank, D head size, V rows of the vocabulary of this rank, T = B S.


class Enter(torch.autograd.Function):
    """Into a region of split weights: nothing forward, the sum of gradients backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)  # in place: it was made by the products behind this and is nobody else's
        return gradient


class Leave(torch.autograd.Function):
    """Out of it: the sum of parts forward, nothing backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class SplitCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of logits split over the vocabulary."""

    @staticmethod
    def forward(ctx, logits_TV, labels_T):
        top_T = logits_TV.amax(-1)
        dist.all_reduce(top_T, op=dist.ReduceOp.MAX)
        shifted_TV = logits_TV - top_T[:, None]
        index_T, here_T = local_rows(labels_T, logits_TV.shape[-1])
        label_T = shifted_TV.gather(1, index_T[:, None])[:, 0] * here_T
        dist.all_reduce(label_T)
        softmax_TV = shifted_TV.exp_()
        total_T = softmax_TV.sum(-1)
        dist.all_reduce(total_T)
        ctx.save_for_backward(softmax_TV.div_(total_T[:, None]), index_T, here_T)
        return (total_T.log() - label_T).mean()

    @staticmethod
    def backward(ctx, gradient):
        softmax_TV, index_T, here_T = ctx.saved_tensors
        logits_TV = softmax_TV.scatter_add(1, index_T[:, None], -here_T.to(softmax_TV.dtype)[:, None])
        return logits_TV.mul_(gradient / len(index_T)), None


def local_rows(tokens: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Indices into this rank's rows of the vocabulary, and which tokens are there at all."""
    index = tokens - dist.get_rank() * rows
    here = (index >= 0) & (index < rows)
    return index.where(here, 0), here


class StepByHand:
    """One optimizer step of a Llama-like decoder on this rank's part of the weights."""

    def __init__(self, weights: Mapping[str, Tensor], shape, micro_batches) -> None:
        self.weights, self.shape, self.micro_batches = weights, shape, micro_batches
        positions = torch.arange(micro_batches[0][0].shape[1], dtype=torch.float64)
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        angles = torch.outer(positions, shape.rope_theta**-exponents).repeat(1, 2)
        self.cos_SD, self.sin_SD = angles.cos().float(), angles.sin().float()
        self.split = [weight for weight in weights.values() if weight.dim() == 2]
        self.whole = [weight for weight in weights.values() if weight.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            list(weights.values()), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for tokens, labels in self.micro_batches:
            logits = self.logits(tokens).flatten(0, 1)
            loss = SplitCrossEntropy.apply(logits, labels.flatten()) / len(self.micro_batches)
            loss.backward()
            total += loss.detach()
        self.clip(1.0)
        self.optimizer.step()
        return total

    def logits(self, tokens_BS: Tensor) -> Tensor:
        embedding = self.weights["embedding.weight"]
        index, here = local_rows(tokens_BS, len(embedding))
        x_BSH = Leave.apply(F.embedding(index, embedding) * here[..., None])
        for number in range(self.shape.num_layers):
            layer = f"layers.{number}"
            x_BSH = x_BSH + self.attention(self.norm(x_BSH, f"{layer}.attention_norm"), f"{layer}.attention")
            x_BSH = x_BSH + self.feed_forward(self.norm(x_BSH, f"{layer}.feed_forward_norm"), f"{layer}.feed_forward")
        return self.linear(Enter.apply(self.norm(x_BSH, "norm")), "head")

    def attention(self, x_BSH: Tensor, name: str) -> Tensor:
        x_BSH = Enter.apply(x_BSH)
        q, k, v = (
            self.linear(x_BSH, f"{name}.{what}").unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
            for what in ("query", "key", "value")
        )
        o_BNSD = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        return Leave.apply(self.linear(o_BNSD.transpose(1, 2).flatten(2), f"{name}.output"))

    def feed_forward(self, x_BSH: Tensor, name: str) -> Tensor:
        x_BSH = Enter.apply(x_BSH)
        middle = F.silu(self.linear(x_BSH, f"{name}.gate")) * self.linear(x_BSH, f"{name}.up")
        return Leave.apply(self.linear(middle, f"{name}.down"))

    def norm(self, x_BSH: Tensor, name: str) -> Tensor:
        return F.rms_norm(x_BSH, x_BSH.shape[-1:], self.weights[f"{name}.weight"], self.shape.norm_eps)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"])

    def rotate(self, x_BNSD: Tensor) -> Tensor:
        first, second = x_BNSD.chunk(2, dim=-1)
        return x_BNSD * self.cos_SD + torch.cat((-second, first), dim=-1) * self.sin_SD

    def clip(self, limit: float) -> None:
        square = torch.nn.utils.get_total_norm([weight.grad for weight in self.split]) ** 2
        dist.all_reduce(square)
        norm = (square + torch.nn.utils.get_total_norm([weight.grad for weight in self.whole]) ** 2).sqrt()
        torch.nn.utils.clip_grads_with_norm_([*self.split, *self.whole], limit, norm)
