"""Our tensor-parallel step on two ranks against two written by hand, in the same two processes.

``tp2_by_hand`` is against what a person writes with PyTorch's own tools, which are ours too: ``parallelize_module``,
``loss_parallel``, AdamW, clipping. ``tp2_local_tensors`` is against a step that does without them, on local tensors
and c10d. What lies between the two is the price of DTensor's dispatch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from tests.bench import Result
from tests.by_hand import ADAMW, Model, copy_into, loss_of, race, rope, rotate

# A step's time varies by 7 % here even on a core of its own; the control is narrower than the margin from about 400
# samples on, for which a step has half as many sequences as in the suite. Against local tensors the difference is far
# greater, and fewer do.
ROUNDS, LOCAL_ROUNDS = 160, 24
HALF = {"global_batch_size": 4, "micro_batch_size": 2}
LIMIT_S, LOCAL_LIMIT_S = 120, 50  # of some three minutes in all


def measure() -> list[Result]:
    return [
        race("tp2_by_hand", "tp2", StepByHand, ROUNDS, limit_s=LIMIT_S, **HALF),
        race("tp2_local_tensors", "tp2", StepOnLocalTensors, LOCAL_ROUNDS, limit_s=LOCAL_LIMIT_S),
    ]


class StepByHand:
    """One optimizer step on two ranks, with weights that are DTensors, as ``parallelize_module`` leaves them."""

    def __init__(self, weights: Mapping[str, Tensor], shape, micro_batches) -> None:
        self.micro_batches, self.mesh = micro_batches, init_device_mesh("cpu", (dist.get_world_size(),))
        self.model = Model(shape, micro_batches[0][0].shape[1])
        whole, split = Replicate(), (ColwiseParallel(), RowwiseParallel())
        plan = {
            "embedding": RowwiseParallel(input_layouts=whole),
            "layers.*.attention": PrepareModuleInput(
                input_layouts=(whole, None, None), desired_input_layouts=(whole, None, None)
            ),
            "layers.*.feed_forward": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,)),
            **{f"layers.*.attention.{name}": split[0] for name in ("query", "key", "value")},
            **{f"layers.*.feed_forward.{name}": split[0] for name in ("gate", "up")},
            **{f"layers.*.{name}": split[1] for name in ("attention.output", "feed_forward.down")},
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(self.model, self.mesh, plan)
        copy_into(self.model, weights)
        self.split = [weight for weight in self.model.parameters() if isinstance(weight, DTensor)]
        self.whole = [weight for weight in self.model.parameters() if not isinstance(weight, DTensor)]
        self.optimizer = torch.optim.AdamW([{"params": self.split}, {"params": self.whole}], **ADAMW)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for tokens, labels in self.micro_batches:
            with loss_parallel():
                loss = loss_of(self.model(tokens), labels) / len(self.micro_batches)
                loss.backward()
            total += loss.detach().to_local()
        self.clip(1.0)
        self.optimizer.step()
        return total

    def clip(self, limit: float) -> None:
        # In two groups: an operator over a list takes either DTensors or plain tensors.
        split, whole = (get_total_norm([weight.grad for weight in group]) for group in (self.split, self.whole))
        norm = (split.full_tensor() ** 2 + whole**2).sqrt()
        clip_grads_with_norm_(self.whole, limit, norm)
        clip_grads_with_norm_(self.split, limit, DTensor.from_local(norm, self.mesh, [Replicate()], run_check=False))


# The second rival does without DTensor: what a person writes who knows which collective belongs where.
# V rows of the vocabulary of this rank, T = B S.


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


class StepOnLocalTensors:
    """One optimizer step of a Llama-like decoder on this rank's part of the weights."""

    def __init__(self, weights: Mapping[str, Tensor], shape, micro_batches) -> None:
        self.weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        self.shape, self.micro_batches = shape, micro_batches
        self.rope = rope(shape, micro_batches[0][0].shape[1])
        self.split = [weight for weight in self.weights.values() if weight.dim() == 2]
        self.whole = [weight for weight in self.weights.values() if weight.dim() == 1]
        self.optimizer = torch.optim.AdamW(list(self.weights.values()), **ADAMW)

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
        q, k = rotate(q, *self.rope), rotate(k, *self.rope)
        o_BNSD = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return Leave.apply(self.linear(o_BNSD.transpose(1, 2).flatten(2), f"{name}.output"))

    def feed_forward(self, x_BSH: Tensor, name: str) -> Tensor:
        x_BSH = Enter.apply(x_BSH)
        middle = F.silu(self.linear(x_BSH, f"{name}.gate")) * self.linear(x_BSH, f"{name}.up")
        return Leave.apply(self.linear(middle, f"{name}.down"))

    def norm(self, x_BSH: Tensor, name: str) -> Tensor:
        return F.rms_norm(x_BSH, x_BSH.shape[-1:], self.weights[f"{name}.weight"], self.shape.norm_eps)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"])

    def clip(self, limit: float) -> None:
        square = get_total_norm([weight.grad for weight in self.split]) ** 2
        dist.all_reduce(square)
        norm = (square + get_total_norm([weight.grad for weight in self.whole]) ** 2).sqrt()
        clip_grads_with_norm_([*self.split, *self.whole], limit, norm)
