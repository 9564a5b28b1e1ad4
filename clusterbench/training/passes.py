"""What a rank records of a training step in steps that are not timed: memory, traffic, FLOPs, a trace, own work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from clusterbench.engine.compat import compiler_rests, sends_in_products
from clusterbench.engine.flops import FlopCounter
from clusterbench.engine.grid import Grid
from clusterbench.engine.memory import MemoryTracker, alive_bytes, cuda_memory_stats, reset_cuda_memory
from clusterbench.engine.own_work import own_seconds
from clusterbench.engine.rig import Rig
from clusterbench.engine.trace import StepTrace, exposure, trace_step
from clusterbench.engine.traffic import TrafficCounter
from clusterbench.engine.transfers import listed
from clusterbench.errors import WrongResult
from clusterbench.job.passes import (
    AT_REST,
    EXECUTED,
    MEMORY,
    RETRIES,
    STATES,
    TRACE,
    TRAFFIC,
    Moved,
    TracedLine,
    TracedStep,
)
from clusterbench.job.spans import SPANS, Shown, tracks_of
from clusterbench.layout import UNKNOWN
from clusterbench.model.assembly import COMPUTE_DTYPES
from clusterbench.run_folder.passes import OWN_SECONDS
from clusterbench.training.built_step import BuiltStep, is_compiled
from clusterbench.units import format_value

STEPS_TO_SETTLE = 3
"""DDP builds its buckets anew in the second step, and PowerSGD begins in the third."""

STEPS_TO_BUILD = 2
"""Of these the first builds what later ones find built, and DDP its buckets: they say little of a rank's own work."""

LONGEST_LINE = 200
"""Transfers of one line that a record tells apart; of more, so many neighbours are one."""


def passes_of(
    step: BuiltStep,
    rig: Rig,
    own_s: Sequence[float] = (),
    held: Mapping[str, float] | None = None,
    gradient_bytes: int = 0,
) -> Mapping[str, Callable[[], Any]]:
    """The passes of a step by name, in the order in which they run; each is a collective.

    Parameters
    ----------
    own_s
        Seconds of own work in the first steps, read when the passes run; see
        :class:`~clusterbench.engine.own_work.OwnWork`.
    held
        Bytes that this rank should hold, by category, where that is known.
    gradient_bytes
        Of an element of gradients when they are summed over dp; 0 where that is not known.
    """
    assert rig.grid is not None
    counter, flops = TrafficCounter(rig.grid.names()), FlopCounter()
    shown: list[Shown] = []
    return {
        **MEMORY.taken(lambda: _memory_of(step, rig, held or {})),
        **TRAFFIC.taken(lambda: _traffic_and_growth(step, rig, counter, flops, gradient_bytes)),
        **EXECUTED.taken(flops.executed),
        **TRACE.taken(lambda: _trace_of(step, rig, counter, shown)),
        **SPANS.taken(lambda: tracks_of(shown, rig.most_spans) if rig.most_spans else []),
        **step.own_passes(rig),
        **(OWN_SECONDS.taken(lambda: own_seconds(step, rig, own_s[STEPS_TO_BUILD:])) if rig.world_size > 1 else {}),
    }


MOST_PEAKS = 3
"""Steps of which the least peaks are taken where ranks hold more than they should: Gloo may let go of a buffer late."""


def _memory_of(step: BuiltStep, rig: Rig, held: Mapping[str, float]) -> dict[str, int]:
    # Before the steps of this pass: what was timed is the question.
    retries = cuda_memory_stats(rig.device).num_alloc_retries if rig.device.type == "cuda" else None
    while step.num_steps < STEPS_TO_SETTLE:
        step()
    seen = _tracked(step, rig)
    for _ in range(MOST_PEAKS - 1 if rig.device.type == "cpu" and rig.world_size > 1 else 0):
        more = any(seen[category] > size * (1 + _NEAR) for category, size in held.items() if category in seen)
        if not _on_any_rank(more, rig):
            break
        again = _tracked(step, rig)
        seen = {category: min(size, again[category]) for category, size in seen.items()}
    if rig.device.type == "cuda":
        reset_cuda_memory(rig.device)
        step()
        stats = cuda_memory_stats(rig.device)
        seen |= {"allocated": stats.peak_allocated_bytes, "reserved": stats.peak_reserved_bytes}
    if retries is not None:
        seen[RETRIES] = retries
    return seen


_NEAR = 0.01


def _tracked(step: BuiltStep, rig: Rig) -> dict[str, int]:
    """The peaks of one step, and what is there between steps."""
    with _plain(step), MemoryTracker(step.modules, step.optimizers, rig.device) as tracker:
        step()
    peak = tracker.peak()
    at_rest = {f"{category}{AT_REST}": size for category, size in peak.at_rest.items() if category in STATES}
    return {"total": peak.total_bytes, **peak.peak_by_category, **at_rest}


def _on_any_rank(holds: bool, rig: Rig) -> bool:
    flag = torch.tensor(float(holds), device=rig.device)
    rig.comm.all_reduce(flag, "max")
    return bool(flag)


def _traffic_and_growth(
    step: BuiltStep, rig: Rig, counter: TrafficCounter, flops: FlopCounter, gradient_bytes: int
) -> list[Moved]:
    before = alive_bytes(rig.device)
    moved = _traffic_of(step, counter, flops)
    _expect_whole_gradients(step, counter, gradient_bytes)
    _expect_let_go(step, rig, before)
    return moved


STEPS_THAT_KEEP, _SCALARS_BYTES = 3, 1024
"""Steps of which each has to keep more than the one before, and so much of it."""


def _expect_let_go(step: BuiltStep, rig: Rig, before: int) -> None:
    """A collective; ``before`` is :func:`~clusterbench.engine.memory.alive_bytes` before the last step.

    Raises
    ------
    WrongResult
        On every rank, if one keeps more with each step. One step may hold a message that is let go of late.
    """
    most = 0
    for number in range(STEPS_THAT_KEEP):
        after = alive_bytes(rig.device)
        most = after - before if number == 0 else min(most, after - before)
        more = torch.zeros(rig.world_size, dtype=torch.int64, device=rig.device)
        more[rig.rank] = most
        rig.comm.all_reduce(more)
        if int(more.max()) <= _SCALARS_BYTES:
            return
        before = after
        if number < STEPS_THAT_KEEP - 1:
            step()
    rank = int(more.argmax())
    raise WrongResult(
        f"{step.job.layout} keeps {format_value(int(more[rank]), 'B')} more with each step on rank {rank}: what is "
        "left of a step has to go with the next, or a run ends for want of memory."
    )


def _traffic_of(step: BuiltStep, counter: TrafficCounter, flops: FlopCounter) -> list[Moved]:
    """FLOPs are counted in the same step, whose operators pass through Python anyway; of a compiled one in another."""
    counter.collectives.clear()
    if is_compiled(step):
        with counter:
            step()
        _expect_sent_in_products(step, counter)
        with _plain(step), flops:
            step()
    else:
        with counter, flops:
            step()
    _expect_known_formats(step, counter)
    return [Moved(axis, op, **vars(total)) for (axis, op), total in sorted(counter.totals().items())]


def _expect_known_formats(step: BuiltStep, counter: TrafficCounter) -> None:
    """Bytes do not tell bfloat16 from float16, which no option asks for.

    Raises
    ------
    WrongResult
        If floating-point numbers were sent in a format that no step computes, keeps or reduces anything in.
    """
    for sent in counter.collectives:
        dtype = getattr(torch, sent.dtype, None)
        if dtype is not None and dtype.is_floating_point and sent.dtype not in COMPUTE_DTYPES:
            rank = dist.get_rank() if dist.is_initialized() else 0
            raise WrongResult(
                f"{step.job.layout} sends {sent.dtype} along {sent.axis} on rank {rank} ({sent.op}), and nothing asks "
                f"for that: what is sent is in {', '.join(COMPUTE_DTYPES)}."
            )


_SUMS = "all_reduce", "reduce_scatter", "reduce"
_NARROW, _NARROW_BYTES = ("bfloat16", "float16"), 2


def _expect_whole_gradients(step: BuiltStep, counter: TrafficCounter, gradient_bytes: int) -> None:
    """Where no formula has the bytes of a trainer, gradients may travel in half of them, and bfloat16 hides that.

    Raises
    ------
    WrongResult
        If floating-point numbers were summed over dp in two bytes each, where gradients have ``gradient_bytes``.
    """
    for sent in counter.collectives:
        is_of_gradients = sent.axis == "dp" and sent.op in _SUMS
        if is_of_gradients and sent.dtype in _NARROW and gradient_bytes > _NARROW_BYTES:
            rank = dist.get_rank() if dist.is_initialized() else 0
            raise WrongResult(
                f"{step.job.layout} sums {sent.dtype} over dp on rank {rank} ({sent.op}), and gradients are to have "
                f"{gradient_bytes} bytes a number there: it sends less than was asked for."
            )


def _expect_sent_in_products(step: BuiltStep, counter: TrafficCounter) -> None:
    """
    Raises
    ------
    WrongResult
        If products were to send what tp sends, and none did.
    """
    asked = any(sends_in_products(part) for module in step.modules for part in module.modules())
    if asked and not any(collective.is_in_product for collective in counter.collectives):
        raise WrongResult(
            f"{step.job.layout} was to send within products (async_tp), and no product did on rank {dist.get_rank()}: "
            "the compiler left every collective as it is. The time is that of the step without async_tp."
        )


def _plain(step: BuiltStep) -> AbstractContextManager[object]:
    """Meanwhile compiled layers run as they were written, so that each of their operators is seen."""
    return compiler_rests() if is_compiled(step) else nullcontext()


def _trace_of(step: BuiltStep, rig: Rig, counter: TrafficCounter, shown: list[Shown]) -> TracedStep:
    """``counter`` has seen a step before: passes run in their order. ``shown`` is filled for the one that is next."""
    assert rig.grid is not None
    trace = trace_step(step, rig.device, counter.axes, listed(counter), rig.comm.barrier)
    shown[:] = trace.shown
    return TracedStep(**vars(exposure(trace)), transfers=transfers_of(trace, rig.grid))


def transfers_of(trace: StepTrace, grid: Grid) -> list[TracedLine]:
    """The transfers of a traced step, line by line."""
    lines: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for transfer in trace.transfers:
        lines[transfer.axis, transfer.way].append((transfer.exposed_s, transfer.duration_s))
    traced = []
    for (axis, way), transfers in lines.items():
        is_known = axis in grid.names().values()
        first = dist.get_global_rank(grid.group(axis), 0) if is_known else 0
        if UNKNOWN in (axis, way):
            first, way = dist.get_rank(), UNKNOWN  # of this rank alone, so it is compared with none
        exposed_s, duration_s = zip(*_joined(transfers), strict=True)
        traced.append(TracedLine(axis, first, way, exposed_s, duration_s))
    return traced


def _joined(transfers: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """At most :data:`LONGEST_LINE` pairs; ranks of one line have as many, so the same neighbours become one on each."""
    each = -(-len(transfers) // LONGEST_LINE)
    for start in range(0, len(transfers), each):
        exposed_s, duration_s = zip(*transfers[start : start + each], strict=True)
        yield round(sum(exposed_s), 8), round(sum(duration_s), 8)  # records are text, and this is below any clock
