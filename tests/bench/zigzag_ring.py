"""What zig-zag chunks buy a causal ring of four: attention of the slowest rank against contiguous chunks, and balance.

What is timed is the CPU time that the attention operators of one rank take, forward and backward: four ranks on fewer
cores wait for each other's processor, which says nothing of a ring. In blocks, the last rank of a contiguous ring
computes 3 and half a one on the diagonal, a zig-zag rank four halves: 3.5 / 2 = 1.75.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from clusterbench.formulas.statistics import median
from tests.bench import Result, alternate, at_most
from tests.ranks import run_ranks

SPEEDUP, IDEAL_SPEEDUP, IMBALANCE = 1.6, 1.75, 1.10
RANKS, ROUNDS = 4, 10
SEQ_LEN, HEADS, HEAD_DIM = 8192, 1, 64


def measure() -> list[Result]:
    ranks = run_ranks(RANKS, _attention_s, timeout_s=300)
    ring, zigzag = ([median(rank[kind]) for rank in ranks] for kind in ("ring", "zigzag"))
    speedup, imbalance = max(ring) / max(zigzag), max(zigzag) / (sum(zigzag) / RANKS)
    milliseconds = {
        name: ", ".join(f"{s * 1e3:.3g}" for s in times) for name, times in (("ring", ring), ("zigzag", zigzag))
    }
    note = f"at least; ideal {IDEAL_SPEEDUP}; ring {milliseconds['ring']} ms, zig-zag {milliseconds['zigzag']} ms"
    return [
        Result("zigzag_speedup", speedup, "ratio", SPEEDUP, "within" if speedup >= SPEEDUP else "missed", note),
        at_most("zigzag_imbalance", imbalance, "ratio", IMBALANCE, f"slowest rank over the mean, {ROUNDS} rounds"),
    ]


def _attention_s() -> dict[str, list[float]]:
    """CPU seconds this rank's attention operators take in each round, by kind."""
    import torch
    import torch.distributed as dist

    from clusterbench.model import context_attention

    torch.set_num_threads(1)
    spent_s = 0.0

    def timed(operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal spent_s
            start_s = time.thread_time()
            result = operator(*arguments)
            spent_s += time.thread_time() - start_s
            return result

        return call

    context_attention.flash_attention = timed(context_attention.flash_attention)
    context_attention.flash_attention_backward = timed(context_attention.flash_attention_backward)
    group = dist.group.WORLD
    assert group is not None
    q, k, v = (torch.randn(1, HEADS, SEQ_LEN // RANKS, HEAD_DIM, requires_grad=True) for _ in "qkv")

    def step(kind: str) -> float:
        nonlocal spent_s
        dist.barrier()
        spent_s = 0.0
        context_attention.attend(kind, group)(q, k, v).square().sum().backward()
        return spent_s

    kinds = {kind: lambda kind=kind: step(kind) for kind in ("ring", "zigzag")}
    alternate(2, kinds)
    return alternate(ROUNDS, kinds)
