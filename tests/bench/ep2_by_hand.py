"""Our step with experts spread over two ranks against the same written by hand with torch's differentiable all-to-all.

Both route as the router says, and average what is not an expert's with ``DistributedDataParallel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from tests.bench import Result
from tests.by_hand import ADAMW, Model, copy_into, loss_of, race

ROUNDS = 80  # some four minutes on two cores


def measure() -> list[Result]:
    changes = {"shape": "moe-tiny", "global_batch_size": 16}
    return [race("ep2_by_hand", "dp2+ep2", StepByHand, ROUNDS, **changes)]


# T tokens of this rank, K experts of a token, E experts, L of them here, R rows that arrive here, F width of an expert.


class Experts(nn.Module):
    def __init__(self, experts: int, hidden: int, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Parameter(torch.empty(experts, width, hidden)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, x_RH: Tensor, ends_L: Tensor) -> Tensor:
        gate_RF, up_RF = (F.grouped_mm(x_RH, w.transpose(1, 2), offs=ends_L) for w in (self.gate, self.up))
        return F.grouped_mm(F.silu(gate_RF) * up_RF, self.down.transpose(1, 2), offs=ends_L)


class Mixture(nn.Module):
    def __init__(self, shape) -> None:
        super().__init__()
        self.ranks, self.num_experts, self.chosen = dist.get_world_size(), shape.num_experts, shape.experts_per_token
        self.router = nn.Linear(shape.hidden_size, shape.num_experts, bias=False)
        self.experts = Experts(shape.num_experts // self.ranks, shape.hidden_size, shape.ffn_hidden_size)

    def forward(self, x_BSH: Tensor) -> Tensor:
        x_TH = x_BSH.flatten(0, 1)
        weights_TK, chosen_TK = self.router(x_TH).softmax(-1).topk(self.chosen)
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
        order = chosen_TK.flatten().argsort(stable=True)
        sent_E = torch.bincount(chosen_TK.flatten(), minlength=self.num_experts)
        received_E = torch.empty_like(sent_E)
        dist.all_to_all_single(received_E, sent_E)
        sent, received = (rows_E.view(self.ranks, -1).sum(1).tolist() for rows_E in (sent_E, received_E))
        rows = exchange(x_TH.index_select(0, order // self.chosen), received, sent)
        # They come rank by rank, and are wanted expert by expert.
        local = torch.arange(self.num_experts).remainder(len(sent_E) // self.ranks).repeat_interleave(received_E)
        by_expert = local.argsort(stable=True)
        ends_L = received_E.view(self.ranks, -1).sum(0).cumsum(0, dtype=torch.int32)
        rows = self.experts(rows.index_select(0, by_expert), ends_L)
        rows = exchange(rows.index_select(0, by_expert.argsort()), sent, received)
        rows_TKH = rows.index_select(0, order.argsort()).view(*chosen_TK.shape, -1)
        return (rows_TKH * weights_TK[..., None]).sum(1).view_as(x_BSH)


def exchange(rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
    return funcol.wait_tensor(funcol.all_to_all_single_autograd(rows, received, sent, dist.group.WORLD))


class StepByHand:
    """One optimizer step, in which every rank has the tokens of its own and half of the experts."""

    def __init__(self, weights: Mapping[str, Tensor], shape, micro_batches) -> None:
        self.micro_batches, model = micro_batches, Model(shape, micro_batches[0][0].shape[1], Mixture)
        copy_into(model, weights)
        experts = {name: weight for name, weight in model.named_parameters() if ".experts." in name}
        self.experts = list(experts.values())
        self.others = [weight for name, weight in model.named_parameters() if name not in experts]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, list(experts))
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=False)  # they are views of DDP's buckets
        total = torch.zeros(())
        for number, (tokens, labels) in enumerate(self.micro_batches, start=1):
            with nullcontext() if number == len(self.micro_batches) else self.model.no_sync():
                loss = loss_of(self.model(tokens), labels) / len(self.micro_batches)
                loss.backward()
            total += loss.detach()
        for weight in self.experts:  # they have seen the tokens of all ranks
            weight.grad /= dist.get_world_size()
        self.clip(1.0)
        self.optimizer.step()
        return total

    def clip(self, limit: float) -> None:
        square = get_total_norm([weight.grad for weight in self.experts]) ** 2
        dist.all_reduce(square)
        norm = (square + get_total_norm([weight.grad for weight in self.others]) ** 2).sqrt()
        clip_grads_with_norm_([*self.experts, *self.others], limit, norm)
