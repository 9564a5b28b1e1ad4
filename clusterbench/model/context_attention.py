"""Attention over a sequence cut over the ranks of a group: a ring, an all-gather, or all-to-alls over heads.

Shapes: B sequences, S tokens on this rank, n ranks, N query heads, K key-value heads, H heads in one message of
Ulysses, D head size. Which positions a rank holds: :mod:`clusterbench.job.sequence`;
what travels how often: :mod:`clusterbench.parallel.context`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from clusterbench.engine.compat import (
    all_gather_flat,
    compiler_rests,
    flash_attention,
    flash_attention_backward,
    reduce_scatter_flat,
)

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Local q (B, N, S, D), k and v (B, K, S, D) to local output (B, N, S, D), causal over the whole sequence."""

Block = tuple[slice, slice, bool]
"""Queries and keys of one block, as tokens of their tensors, and whether the block lies on the diagonal."""

ALL = slice(None)


def attend(kind: str, group: dist.ProcessGroup) -> Attend:
    """Attention for a sequence that a rank has its positions of, over ``group``. All ranks call it, and its backward.

    Notes
    -----
    The output lies in memory as (B, S, N, D), so that joining the heads is a view.
    """
    if kind == "ulysses":
        return partial(_ulysses, group)
    function = _AllGather if kind == "all_gather" else _Ring

    def attention(q_BNSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        return cast(Tensor, function.apply(q_BNSD, k_BKSD, v_BKSD, kind, group))  # type: ignore[no-untyped-call]

    return attention


# Attention over some of the keys


class _Joined:
    """Attention of all queries over the keys seen so far. Sums are kept in float32 at least.

    The operators' results are only read: selective recomputation may keep them.
    """

    def __init__(self, q_BNSD: Tensor) -> None:
        self.q = q_BNSD
        batch, heads, length, size = q_BNSD.shape
        dtype = torch.promote_types(q_BNSD.dtype, torch.float32)
        self.o = q_BNSD.new_zeros(batch, length, heads, size, dtype=dtype).transpose(1, 2)
        self.lse = q_BNSD.new_full((batch, heads, length), float("-inf"), dtype=dtype)

    def see(self, block: Block, k: Tensor, v: Tensor) -> None:
        """Adds the block's keys: two results are averaged with the weights of their rows, which the lse has."""
        queries, keys, causal = block
        o_new, lse_new = flash_attention(self.q[:, :, queries], k[:, :, keys], v[:, :, keys], causal)
        o, lse = self.o[:, :, queries], self.lse[:, :, queries]
        o.lerp_(o_new.to(o.dtype), torch.sigmoid(lse_new - lse).unsqueeze(-1))
        lse.copy_(torch.logaddexp(lse, lse_new))

    def result(self) -> tuple[Tensor, Tensor]:
        """Output in the dtype of the queries, and log-sum-exp."""
        return self.o.to(self.q.dtype), self.lse


class _Gradient:
    """Gradients of attention, block by block, from the output and the lse over all keys."""

    def __init__(self, do: Tensor, q: Tensor, o: Tensor, lse: Tensor) -> None:
        # Dense, and as the output lies in memory: the operators want no strides of 0, which the gradient of a sum has.
        self.do = do.transpose(1, 2).contiguous().transpose(1, 2)
        self.q, self.o, self.lse = q, o, lse
        self.dq = torch.zeros_like(q, dtype=torch.promote_types(q.dtype, torch.float32))

    def see(self, block: Block, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The block's share of the gradients of its keys and values; that of the queries is added to ``dq``."""
        queries, keys, causal = block
        at = ALL, ALL, queries
        dq, dk, dv = flash_attention_backward(
            self.do[at], self.q[at], k[:, :, keys], v[:, :, keys], self.o[at], self.lse[at], causal
        )
        self.dq[at].add_(dq)  # in Python's += a compiler would see the sum written twice, and nest what it makes of it
        return dk, dv


# Ring


class _Ring(torch.autograd.Function):
    """Keys and values pass every rank; each joins what it computes for its own queries by the log-sum-exps.

    In backward they pass again, and the gradients of keys and values follow them one step behind. A rank's share of its
    own keys' gradients waits at home, so that gradients travel n - 1 times as keys do.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, kind: str, group: dist.ProcessGroup) -> Tensor:
        joined = _Joined(q)
        for step, kv in _passing(k, v, group):
            block = _block(kind, step, dist.get_rank(group), q.shape[2])
            if block is not None:
                joined.see(block, kv[0], kv[1])
        o, lse = joined.result()
        ctx.kind, ctx.group = kind, group
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, o, lse = ctx.saved_tensors
        gradient = _Gradient(gradients[0], q, o, lse)
        home = k.new_zeros(2, *k.shape)
        follower: _Hop | None = None
        for step, kv in _passing(k, v, ctx.group):
            block = _block(ctx.kind, step, dist.get_rank(ctx.group), q.shape[2])
            share = gradient.see(block, kv[0], kv[1]) if block is not None else None
            # At step 1 the keys come right from their owner, so nothing follows them yet.
            dkv = home if step == 0 else follower.arrived() if follower is not None else torch.zeros_like(home)
            if block is not None and share is not None:
                dkv[0][:, :, block[1]].add_(share[0])
                dkv[1][:, :, block[1]].add_(share[1])
            if step > 0:
                follower = _Hop(dkv, ctx.group, tag=1)
        if follower is not None:
            home += follower.arrived()
        return gradient.dq.to(q.dtype), home[0], home[1], None, None


def _passing(k: Tensor, v: Tensor, group: dist.ProcessGroup) -> Iterator[tuple[int, Tensor]]:
    """Steps, and the keys and values (2, B, K, S, D) of the rank so many before this one.

    While a step's are used, they are on their way to the next rank already.
    """
    degree, kv = dist.get_world_size(group), torch.stack((k, v))
    for step in range(degree):
        hop = _Hop(kv, group) if step + 1 < degree else None
        yield step, kv
        if hop is not None:
            kv = hop.arrived()


def _block(kind: str, step: int, rank: int, length: int) -> Block | None:
    """What a rank with ``length`` tokens computes on the keys of the rank ``step`` before; None if it may see none."""
    if step == 0:
        return ALL, ALL, True
    earlier = step <= rank  # or the keys are of a later rank, and came round the end of the ring
    if kind == "ring":
        return (ALL, ALL, False) if earlier else None
    # The chunks of a rank are r and 2n - 1 - r. Of an earlier rank's, the first lies before both of mine and the second
    # behind both; a later rank's lie both between mine. Half a square either way: the work is equal.
    return (ALL, slice(0, length // 2), False) if earlier else (slice(length // 2, length), ALL, False)


class _Hop:
    """A buffer on its way to the next rank of the group, and one of the same size from the rank before."""

    def __init__(self, leaving: Tensor, group: dist.ProcessGroup, tag: int = 0) -> None:
        rank, degree = dist.get_rank(group), dist.get_world_size(group)
        after, before = (dist.get_global_rank(group, (rank + way) % degree) for way in (1, -1))
        self._leaving, self._arriving = leaving, torch.empty_like(leaving)
        self._work = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self._leaving, after, group, tag),
                dist.P2POp(dist.irecv, self._arriving, before, group, tag),
            ]
        )

    def arrived(self) -> Tensor:
        for work in self._work:
            work.wait()
        return self._arriving


# All-gather


class _AllGather(torch.autograd.Function):
    """Every rank gets all keys and values, and keeps them for backward, which sums their gradients to their owners."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, kind: str, group: dist.ProcessGroup) -> Tensor:
        degree, rank = dist.get_world_size(group), dist.get_rank(group)
        part = torch.stack((k, v)).permute(3, 0, 1, 2, 4).contiguous()  # (S, 2, B, K, D): gathered along the sequence
        by_rank = part.new_empty(degree * part.shape[0], *part.shape[1:])
        all_gather_flat(by_rank, part, group)
        kv = _reordered(by_rank, _chunks_by_position(degree)).permute(1, 2, 3, 0, 4)
        joined = _Joined(q)
        for block in _chunk_blocks(degree, rank, q.shape[2]):
            joined.see(block, kv[0], kv[1])
        o, lse = joined.result()
        ctx.group = group
        ctx.save_for_backward(q, kv, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, kv, o, lse = ctx.saved_tensors
        degree, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        gradient = _Gradient(gradients[0], q, o, lse)
        by_position = torch.zeros_like(kv.permute(3, 0, 1, 2, 4))
        dkv = by_position.permute(1, 2, 3, 0, 4)
        for block in _chunk_blocks(degree, rank, q.shape[2]):
            for of_all, share in zip(dkv, gradient.see(block, kv[0], kv[1]), strict=True):
                of_all[:, :, block[1]].add_(share)
        del of_all, share  # nearly as large as the gradients of all keys, which are there twice below
        order = _chunks_by_position(degree)
        by_rank = _reordered(by_position, [order.index(chunk) for chunk in range(2 * degree)])
        del by_position, dkv
        part = by_rank.new_empty(by_rank.shape[0] // degree, *by_rank.shape[1:])
        reduce_scatter_flat(part, by_rank, ctx.group)
        by_key = part.permute(1, 2, 3, 0, 4)
        return gradient.dq.to(q.dtype), by_key[0], by_key[1], None, None


def _chunk_blocks(degree: int, rank: int, length: int) -> Iterator[Block]:
    """Each of a rank's two chunks against itself, the diagonal, and against all before it. No mask is made."""
    size = length // 2
    for place, chunk in enumerate((rank, 2 * degree - 1 - rank)):
        queries = slice(place * size, (place + 1) * size)
        yield queries, slice(chunk * size, (chunk + 1) * size), True
        if chunk:
            yield queries, slice(0, chunk * size), False


def _chunks_by_position(degree: int) -> list[int]:
    """Where the chunks of the sequence are among those of all ranks, in the order of ranks.

    >>> _chunks_by_position(2)
    [0, 2, 3, 1]
    """
    return [*range(0, 2 * degree, 2), *range(2 * degree - 1, 0, -2)]


def _reordered(x: Tensor, order: list[int]) -> Tensor:
    chunks = x.chunk(len(order))
    return torch.cat([chunks[place] for place in order])


# Ulysses


class _Exchange(torch.autograd.Function):
    """All-to-all of equal parts along the first dimension; its transpose is the same again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        arrived = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(arrived, x.contiguous(), group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _exchanged(gradients[0], ctx.group), None


def _exchanged(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return cast(Tensor, _Exchange.apply(x, group))  # type: ignore[no-untyped-call]


def _ulysses(group: dist.ProcessGroup, q_BNSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
    """Attends on each rank with some heads of the whole sequence, between two all-to-alls.

    Fewer kv heads than ranks are repeated until each rank has one.
    """
    degree = dist.get_world_size(group)
    heads = [x.shape[1] // degree for x in (q_BNSD, k_BKSD, v_BKSD)]
    if heads[1] == 0:
        k_BKSD, v_BKSD = (x.repeat_interleave(degree // x.shape[1], dim=1) for x in (k_BKSD, v_BKSD))
        heads[1:] = 1, 1
    leaving_nBSHD = torch.cat([_by_rank(x, degree) for x in (q_BNSD, k_BKSD, v_BKSD)], dim=3)
    arrived_nBSHD = _exchanged(leaving_nBSHD, group)
    q, k, v = torch.split(arrived_nBSHD.transpose(0, 1).flatten(1, 2).transpose(1, 2), heads, dim=1)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads[0] != heads[1])
    batch, _, tokens, size = o.shape
    leaving_nSBHD = o.view(batch, heads[0], degree, tokens // degree, size).permute(2, 3, 0, 1, 4)
    arrived_nSBHD = _exchanged(leaving_nSBHD, group)
    return arrived_nSBHD.permute(2, 1, 0, 3, 4).flatten(2, 3).transpose(1, 2)


def _by_rank(x_BHSD: Tensor, degree: int) -> Tensor:
    """(n, B, S, heads of a rank, D)."""
    batch, heads, length, size = x_BHSD.shape
    return x_BHSD.reshape(batch, degree, heads // degree, length, size).permute(1, 0, 3, 2, 4)


def watch_attention(step: Callable[[], object], device: torch.device) -> float | None:
    """Seconds this rank's attention operators take in one step, forward and backward; None if it ran none of them.

    On a CPU those of the thread, which other ranks on the same core do not lengthen; on CUDA with the device waited for
    around each. Ulysses attends with torch's own operator to whole sequences, and has nothing to balance. Compiled
    layers run as they were written meanwhile: the clock would be compiled with them, and anew for each of its readings.
    """
    global flash_attention, flash_attention_backward
    spent: list[float] = []

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            return time.perf_counter()
        return time.thread_time()

    def timed(operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start_s = now()
            result = operator(*arguments)
            spent.append(now() - start_s)
            return result

        return call

    originals = flash_attention, flash_attention_backward
    flash_attention, flash_attention_backward = timed(flash_attention), timed(flash_attention_backward)
    try:
        with compiler_rests():
            step()
    finally:
        flash_attention, flash_attention_backward = originals
    return sum(spent) if spent else None
