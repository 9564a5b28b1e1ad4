"""Mixture of experts: a router sends each token to some of many feed-forwards, which may be spread over ranks.

Shapes: T tokens of a forward on this rank, H hidden, E experts, L of them on this rank, K experts a token goes to, F
width of one expert, R rows that arrive at this rank's experts. A row is one token on its way to one of its experts. No
row is dropped, and no expert has a capacity: what the router decides is what is computed.

With experts spread over a group, rows travel there and back in two all-to-alls, and their gradients in two more.
Starting an all-to-all and waiting for it are two autograd functions, so that other work may lie between them in forward
and, as autograd goes through it in reverse, in backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from clusterbench.engine.compat import start_all_to_all, start_sum, wait_for
from clusterbench.job.experts import UNEVEN
from clusterbench.job.passes import ExpertLoad
from clusterbench.model.modules import FeedForward, Linear
from clusterbench.shape import ModelShape

Timers = Callable[[str], AbstractContextManager[object]]


@dataclass
class Exchange:
    """One all-to-all of rows, and in backward the one of their gradients, the other way."""

    received: list[int]
    sent: list[int]
    group: dist.ProcessGroup
    gradients: Tensor | None = None

    def rows(self, rows: Tensor) -> Tensor:
        return start_all_to_all(rows, self.received, self.sent, self.group)

    def start_gradients(self, gradients: Tensor) -> None:
        self.gradients = start_all_to_all(gradients, self.sent, self.received, self.group)

    def wait_for_gradients(self) -> Tensor:
        assert self.gradients is not None
        gradients, self.gradients = wait_for(self.gradients), None
        return gradients


@dataclass(frozen=True)
class Route:
    """The ways of the rows of some tokens.

    Attributes
    ----------
    order, place
        Rows sorted by expert; where each row of ``tokens``, K to a token, stands among the sorted.
    there, back
        The all-to-alls with the rows of this part; None where all experts are here.
    arranged, unarranged
        Rows come in rank by rank; this order puts them expert by expert, and back. None where they are already.
    rows_L
        Rows of each expert here.
    """

    tokens: slice
    order: Tensor
    place: Tensor
    there: Exchange | None
    back: Exchange | None
    arranged: Tensor | None
    unarranged: Tensor | None
    rows_L: Tensor


class Experts(nn.Module):
    """The experts of this rank: SwiGLU each, their matrices one below the other."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        experts, self.width, self.hidden = shape.num_experts, shape.ffn_hidden_size, shape.hidden_size
        self.gate = nn.Parameter(torch.empty(experts * self.width, self.hidden))
        self.up = nn.Parameter(torch.empty(experts * self.width, self.hidden))
        self.down = nn.Parameter(torch.empty(experts * self.hidden, self.width))

    def matrices(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """The weights, rounded: once for all rows of a forward."""
        return self.gate.to(dtype), self.up.to(dtype), self.down.to(dtype)

    def forward(self, x_RH: Tensor, rows_L: Tensor, matrices: tuple[Tensor, Tensor, Tensor] | None) -> Tensor:
        gate, up, down = self.matrices(x_RH.dtype) if matrices is None else matrices
        ends_L = rows_L.cumsum(0, dtype=torch.int32)
        # Each is cut into those of its experts where it is used: backward goes the other way around, and adds up its
        # gradient before it makes the next one's.
        gate_RF = grouped_product(x_RH, gate.view(-1, self.width, self.hidden), ends_L)
        up_RF = grouped_product(x_RH, up.view(-1, self.width, self.hidden), ends_L)
        return grouped_product(F.silu(gate_RF) * up_RF, down.view(-1, self.hidden, self.width), ends_L)


def grouped_product(x_RI: Tensor, weight_LOI: Tensor, ends_L: Tensor) -> Tensor:
    """The rows of each expert, which follow one another up to its end, times its matrix transposed: (R, O)."""
    if x_RI.dtype == torch.float64:  # which torch has no grouped product for
        parts = torch.tensor_split(x_RI, ends_L.tolist()[:-1])
        return torch.cat([part @ weight.T for part, weight in zip(parts, weight_LOI, strict=True)])
    return F.grouped_mm(x_RI, weight_LOI.transpose(-2, -1), offs=ends_L)


class MixtureOfExperts(nn.Module):
    """Routed experts, weighted by the router, and shared ones beside them.

    Attributes
    ----------
    routing
        ``real``: the K most probable experts. ``balanced``: token t goes to the experts ``(t K + j) mod E``, weighted
        by the router all the same. Then no shape depends on data, and nothing is waited for on the host. ``uneven``: of
        every second round over all experts the first choice is expert 0, and ranks tell each other how many rows come.
    ep_group
        Ranks the experts are spread over, rank r having the r-th of equal parts; None where all are here.
    gathered
        Whether the experts have their weights while they compute, and not before (FSDP).
    overlap
        Cut the tokens in two halves: while the experts compute one, the other is on its way.
    aux_loss, aux_scale
        Coefficient of the load-balancing loss, and what a gradient of it is multiplied by, as the main loss's is by
        ``1 / gradient_accumulation_steps``.
    token_groups
        Groups over which the tokens of a micro-batch are spread: the load to be balanced is that of all of them.
    timers
        Opened around ``dispatch``, ``experts`` and ``combine``, each more than once in a forward.
    last_counts
        Rows of each expert of this rank in the last forward, on the device.
    last_aux_loss
        This rank's share of the last load-balancing loss, with its coefficient; the sum over ``token_groups`` is whole.
    record_margin, smallest_margin
        Whether to note by how much the last expert chosen was more probable than the first one left out, and the least
        of these so far. Two computations that differ by rounding choose the same experts where it is larger than that.
    """

    last_counts: Tensor
    last_aux_loss: Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.num_experts, self.experts_per_token = shape.num_experts, shape.experts_per_token
        self.router = Linear(shape.hidden_size, shape.num_experts)
        self.experts = Experts(shape)
        wide = shape.num_shared_experts * shape.ffn_hidden_size
        self.shared = FeedForward(replace(shape, ffn_hidden_size=wide)) if wide else None
        self.routing = "real"
        self.ep_group: dist.ProcessGroup | None = None
        self.overlap = False
        self.aux_loss, self.aux_scale = 0.0, 1.0
        self.token_groups: tuple[dist.ProcessGroup, ...] = ()
        self.timers: Timers | None = None
        self.gathered = False
        self.record_margin = False
        self.smallest_margin: Tensor | None = None

    @property
    def ranks(self) -> int:
        """Ranks the experts are spread over."""
        return 1 if self.ep_group is None else self.ep_group.size()

    def forward(self, x_BSH: Tensor) -> Tensor:
        x_TH = x_BSH.flatten(0, 1)
        chosen_TK, weights_TK = self._choose(x_TH)
        with self._timed("dispatch"):
            routes = self._routes(chosen_TK)
            on_the_way = [self._send(x_TH[route.tokens], route) for route in routes]
        self.last_counts = torch.stack([route.rows_L for route in routes]).sum(0)
        shared_TH = None if self.shared is None else self.shared(x_TH)
        matrices, returning = None if self.gathered else self.experts.matrices(x_TH.dtype), []
        for route, sent in zip(routes, on_the_way, strict=True):
            with self._timed("dispatch"):
                rows_RH = self._receive(sent, route)
            with self._timed("experts"):
                rows_RH = self.experts(rows_RH, route.rows_L, matrices)
            with self._timed("combine"):
                returning.append(self._send_back(rows_RH, route))
        with self._timed("combine"):
            parts = [self._combine(sent, weights_TK, route) for route, sent in zip(routes, returning, strict=True)]
            y_TH = parts[0] if len(parts) == 1 else torch.cat(parts)
        return (y_TH if shared_TH is None else y_TH + shared_TH).view_as(x_BSH)

    def _timed(self, what: str) -> AbstractContextManager[object]:
        return nullcontext() if self.timers is None else self.timers(what)

    # Routing: the experts of each token

    def _choose(self, x_TH: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights, in float32 at least.

        Several add up to 1. One alone has the router's probability, as in DeepSeek's code: divided by itself it would
        be 1 whatever the router says, and the router would never learn.
        """
        logits_TE = self.router(x_TH)
        wide = torch.promote_types(logits_TE.dtype, torch.float32)
        probabilities_TE = logits_TE.softmax(-1, dtype=wide)
        if self.routing == "real":
            chosen_TK = probabilities_TE.detach().topk(self.experts_per_token, sorted=True).indices
        else:
            chosen_TK = self._by_place(x_TH)
        if self.record_margin:
            self._record_margin(probabilities_TE.detach())
        weights_TK = probabilities_TE.gather(1, chosen_TK)
        if self.experts_per_token > 1:
            weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
        if self.aux_loss:
            loss = self._load_balancing_loss(probabilities_TE, chosen_TK)
            self.last_aux_loss = loss.detach()
            weights_TK = _WithLoss.apply(weights_TK, loss, self.aux_scale)  # type: ignore[no-untyped-call]
        return chosen_TK, weights_TK

    def _by_place(self, x_TH: Tensor) -> Tensor:
        rows_TK = torch.arange(len(x_TH) * self.experts_per_token, device=x_TH.device).view(-1, self.experts_per_token)
        chosen_TK = rows_TK % self.num_experts
        if self.routing == UNEVEN:
            is_second_T = rows_TK[:, 0] // self.num_experts % 2 == 1
            crowded_T = is_second_T & (chosen_TK != 0).all(-1)
            chosen_TK[:, 0] = torch.where(crowded_T, 0, chosen_TK[:, 0])
        return chosen_TK

    def _record_margin(self, probabilities_TE: Tensor) -> None:
        chosen = self.experts_per_token
        if chosen == self.num_experts or not len(probabilities_TE):
            return
        best = probabilities_TE.topk(chosen + 1, sorted=True).values
        margin = (best[:, -2] - best[:, -1]).min()
        self.smallest_margin = margin if self.smallest_margin is None else torch.minimum(margin, self.smallest_margin)

    def _load_balancing_loss(self, probabilities_TE: Tensor, chosen_TK: Tensor) -> Tensor:
        """``E sum_e f_e P_e``: share of the rows that go to an expert, times its mean probability.

        Source: Fedus et al. 2021, arXiv:2101.03961, equations 4 to 6, with rows in place of tokens where K > 1.
        """
        rows_E, ranks = self._count(chosen_TK.flatten()), 1
        for group in self.token_groups:
            rows_E, ranks = wait_for(start_sum(rows_E, group)), ranks * group.size()
        tokens = len(chosen_TK) * ranks
        share_E = rows_E.to(probabilities_TE.dtype) / (tokens * self.experts_per_token)
        mean_E = probabilities_TE.sum(0) / tokens
        return self.aux_loss * self.num_experts * (share_E * mean_E).sum()

    def _count(self, experts: Tensor) -> Tensor:
        """How often each expert is named. Not by bincount, which waits on the host and has a shape that depends."""
        return torch.zeros(self.num_experts, dtype=torch.int64, device=experts.device).scatter_add_(
            0, experts, torch.ones_like(experts)
        )

    # Routes: where the rows go

    def _routes(self, chosen_TK: Tensor) -> list[Route]:
        tokens = len(chosen_TK)
        cuts = [0, (tokens + 1) // 2, tokens] if self.overlap else [0, tokens]
        parts = [slice(first, last) for first, last in pairwise(cuts)]
        named = [chosen_TK[part].flatten() for part in parts]
        rows_PE = torch.stack([self._count(experts) for experts in named])
        rows_NPL, sent_PN, received_PN = self._exchange_counts(rows_PE, parts)
        routes = []
        for index, (part, experts) in enumerate(zip(parts, named, strict=True)):
            order = experts.argsort(stable=True)
            arranged = self._expert_by_expert(rows_NPL[:, index], sum(received_PN[index]))
            routes.append(
                Route(
                    tokens=part,
                    order=order,
                    place=_inverse(order),
                    there=self._rows_over(received_PN[index], sent_PN[index]),
                    back=self._rows_over(sent_PN[index], received_PN[index]),
                    arranged=arranged,
                    unarranged=None if arranged is None else _inverse(arranged),
                    rows_L=rows_NPL[:, index].sum(0),
                )
            )
        return routes

    def _rows_over(self, received: list[int], sent: list[int]) -> Exchange | None:
        return None if self.ep_group is None else Exchange(received, sent, self.ep_group)

    def _exchange_counts(self, rows_PE: Tensor, parts: list[slice]) -> tuple[Tensor, list[list[int]], list[list[int]]]:
        """Rows from each of N ranks, for each part P and local expert; and counts to send and to receive."""
        ranks = self.ranks
        if self.ep_group is None:
            rows = [(part.stop - part.start) * self.experts_per_token for part in parts]
            return rows_PE[None], [[number] for number in rows], [[number] for number in rows]
        rows_NPL = rows_PE.view(len(parts), ranks, -1).transpose(0, 1)
        if self.routing == "balanced":
            sent_PN = [self._balanced_rows(part) for part in parts]
            here = self.ep_group.rank()
            # as many tokens on every rank, so each sends here what this one sends to itself
            return rows_NPL[here].expand(ranks, -1, -1), sent_PN, [[rows[here]] * ranks for rows in sent_PN]
        ones = [1] * ranks
        coming_NPL = wait_for(start_all_to_all(rows_NPL, ones, ones, self.ep_group))
        sent_PN, received_PN = torch.stack((rows_NPL, coming_NPL)).sum(-1).transpose(1, 2).tolist()
        return coming_NPL, sent_PN, received_PN

    def _balanced_rows(self, tokens: slice) -> list[int]:
        """Rows that balanced routing sends from these tokens to each rank."""
        first, last = tokens.start * self.experts_per_token, tokens.stop * self.experts_per_token
        whole, local = self.num_experts, self.num_experts // self.ranks
        rows = [(last - 1 - expert) // whole - (first - 1 - expert) // whole for expert in range(whole)]
        return [sum(rows[rank * local : (rank + 1) * local]) for rank in range(self.ranks)]

    def _expert_by_expert(self, rows_NL: Tensor, rows: int) -> Tensor | None:
        ranks, local = rows_NL.shape
        if ranks == 1 or local == 1:
            return None
        experts = torch.arange(local, device=rows_NL.device).repeat(ranks)
        return experts.repeat_interleave(rows_NL.flatten(), output_size=rows).argsort(stable=True)

    # Sending rows and results

    def _send(self, x_TH: Tensor, route: Route) -> Tensor:
        rows: Tensor = _Spread.apply(x_TH, route.order, route.place, self.experts_per_token)  # type: ignore[no-untyped-call]
        return _start(rows, route.there)

    def _receive(self, started: Tensor, route: Route) -> Tensor:
        return _reorder(_wait(started, route.there), route.arranged, route.unarranged)

    def _send_back(self, rows: Tensor, route: Route) -> Tensor:
        return _start(_reorder(rows, route.unarranged, route.arranged), route.back)

    def _combine(self, started: Tensor, weights_TK: Tensor, route: Route) -> Tensor:
        rows = _reorder(_wait(started, route.back), route.place, route.order)
        weights_TK = weights_TK[route.tokens].to(rows.dtype)
        rows_TKH = rows.view(*weights_TK.shape, rows.shape[-1])
        return (rows_TKH * weights_TK.unsqueeze(-1)).sum(1)


def _start(rows: Tensor, exchange: Exchange | None) -> Tensor:
    return rows if exchange is None else _Start.apply(rows, exchange)  # type: ignore[no-untyped-call]


def _wait(started: Tensor, exchange: Exchange | None) -> Tensor:
    return started if exchange is None else _Wait.apply(started, exchange)  # type: ignore[no-untyped-call]


def _inverse(order: Tensor) -> Tensor:
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def _reorder(rows: Tensor, order: Tensor | None, back: Tensor | None) -> Tensor:
    return rows if order is None else _Reorder.apply(rows, order, back)  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """Copies each token into its K rows, sorted. Backward reads the K back and adds them, in the same order always:
    index_add, which autograd would choose, adds on CUDA in whatever order comes."""

    @staticmethod
    def forward(ctx: Any, x_TH: Tensor, order: Tensor, place: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.copies = copies
        return x_TH[order // copies]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        rows_TKH = gradient[place].view(len(place) // ctx.copies, ctx.copies, gradient.shape[-1])
        return rows_TKH.sum(1), None, None, None


class _Reorder(torch.autograd.Function):
    """Rows in another order, every one once, so backward is a look-up, too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return gradient[back], None, None


class _Start(torch.autograd.Function):
    """Starts an exchange of rows. Backward waits for their gradients, on the way since :class:`_Wait`'s."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.rows(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.wait_for_gradients(), None


class _Wait(torch.autograd.Function):
    """Waits for an exchange of rows. Backward starts that of their gradients."""

    @staticmethod
    def forward(ctx: Any, started: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return wait_for(started)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Autograd wants a gradient as long as what came in, so that of what went out passes through the exchange.
        ctx.exchange.start_gradients(gradient)
        return gradient, None


class _WithLoss(torch.autograd.Function):
    """Passes a tensor on, and in backward begins a second loss with a gradient of ``scale``.

    Source: ``MoEAuxLossAutoScaler`` of NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale, ctx.like = scale, loss.new_ones(())
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, ctx.like * ctx.scale, None


def watch_experts(step: Callable[[], object], layers: Iterable[nn.Module], device: torch.device) -> ExpertLoad:
    """Runs a step in which the parts of every mixture are timed, the device waited for around each."""
    mixtures = [mixture for layer in layers for mixture in layer.modules() if isinstance(mixture, MixtureOfExperts)]
    seconds = dict.fromkeys(("dispatch", "experts", "combine"), 0.0)

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        settle()
        start_s = time.perf_counter()
        yield
        settle()
        seconds[part] += time.perf_counter() - start_s

    for mixture in mixtures:
        mixture.timers = timed
    step()
    for mixture in mixtures:
        mixture.timers = None
    loads = [mixture.last_counts.float() for mixture in mixtures if mixture.last_counts is not None]
    worst = max((float(load.max() / load.mean().clamp(min=1e-9)) for load in loads), default=1.0)
    return ExpertLoad(
        seconds,
        worst,
        rows=[int(load.sum()) for load in loads],
        expert_rows=[[int(rows) for rows in load] for load in loads],
    )
