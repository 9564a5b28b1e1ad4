"""When this rank communicated and when it computed, over one step, from PyTorch's profiler.

On CUDA both are kernels on the device. On CPU, Gloo's collectives run on worker threads and leave an event each, as
long as the transfer; compute is what operators do on the thread that runs the step, without those that wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from clusterbench.engine.compat import COMMUNICATION_NAMESPACES, is_range, profiler_events
from clusterbench.formulas.intervals import Interval, exposed_communication, merged, overlap_fraction, union_length

STEP = "clusterbench::step"
WAIT = "clusterbench::wait"
# Gloo writes to the socket within the call where it can; what is left is waited for.
_MESSAGES = (WAIT, "c10d::send", "c10d::recv_", "c10d::recv_any_source_")

# Kernels that move data between ranks: NCCL's (`ncclDevKernel_AllReduce_Sum_f32_RING_LL`), NVSHMEM's, DeepEP's, and
# PyTorch's own of symmetric memory; peer copies as the driver names them.
_COMMUNICATION_KERNEL = re.compile(
    r"nccl|nvshmem|deep_ep|multimem_|one_shot_all_reduce|two_shot_all_reduce|Memcpy (PtoP|P2P)", re.IGNORECASE
)


@dataclass(frozen=True)
class Event:
    """What the profiler saw, reduced to what matters here."""

    name: str
    start_s: float
    end_s: float
    thread: int = 0
    on_device: bool = False
    annotation: bool = False
    """A named range (``record_function``), not an operator or a kernel."""


@dataclass(frozen=True)
class StepTrace:
    """Intervals of one rank over one step, in seconds from its start."""

    communication: tuple[Interval, ...]
    compute: tuple[Interval, ...]
    step_s: float


@dataclass(frozen=True)
class Exposure:
    """How much of one step's communication compute hid."""

    communication_s: float
    """Time in which at least one transfer was under way. Waiting for a late peer counts: it looks the same here."""
    compute_s: float
    exposed_s: float
    """Communicating and not computing: the most a better overlap could win back on this rank."""
    overlap_fraction: float | None
    """Hidden share of the communication; None when there was none."""
    step_s: float


def exposure(trace: StepTrace) -> Exposure:
    """The figures of one trace.

    >>> exposure(StepTrace(communication=((0.0, 4.0),), compute=((1.0, 3.0),), step_s=5.0))
    Exposure(communication_s=4.0, compute_s=2.0, exposed_s=2.0, overlap_fraction=0.5, step_s=5.0)
    """
    communication, compute = list(trace.communication), list(trace.compute)
    return Exposure(
        union_length(communication),
        union_length(compute),
        exposed_communication(communication, compute),
        overlap_fraction(communication, compute),
        trace.step_s,
    )


def trace_step(step: Callable[[], object], device: torch.device | str = "cpu") -> StepTrace:
    """Runs ``step`` once under the profiler.

    Warm it up first: the profiler takes a second or so to start, and the first step of DTensor propagates shapes. Every
    rank calls it; the profiler itself communicates nothing. A profiled step is slower: never the one that is timed.
    """
    device = torch.device(device)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.synchronize(device)
    profile = torch.profiler.profile(activities=activities)
    with profile, _waits_are_seen(device), torch.profiler.record_function(STEP):
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    events = profiler_events(profile)
    origin_ns = min(event.start_ns() for event in events)  # a float of nanoseconds since 1970 is good to 256 of them
    return intervals([_event(event, origin_ns) for event in events], device.type)


def intervals(events: list[Event], device_type: str) -> StepTrace:
    """Sorts the events of one step into communication and compute.

    Events outside the step are dropped; a transfer that was under way when it began or ended is cut there.
    """
    step = next(event for event in events if event.name == STEP and not event.on_device)
    communication, compute = _of_device(events) if device_type == "cuda" else _of_threads(events, step.thread)

    def within(found: list[Interval]) -> tuple[Interval, ...]:
        cut = [(max(start, step.start_s) - step.start_s, min(end, step.end_s) - step.start_s) for start, end in found]
        return tuple(merged((start, end) for start, end in cut if end > start))

    return StepTrace(within(communication), within(compute), step.end_s - step.start_s)


def _of_device(events: list[Event]) -> tuple[list[Interval], list[Interval]]:
    communication: list[Interval] = []
    compute: list[Interval] = []
    for event in events:
        if not event.on_device or event.annotation:  # ranges are copied to the device's timeline; they are no work
            continue
        if _COMMUNICATION_KERNEL.search(event.name):
            communication.append((event.start_s, event.end_s))
        elif not event.name.startswith(("Memcpy", "Memset")):
            compute.append((event.start_s, event.end_s))
    return communication, compute


def _of_threads(events: list[Event], thread: int) -> tuple[list[Interval], list[Interval]]:
    communication = [
        (event.start_s, event.end_s)
        for event in events
        if event.name in _MESSAGES or (event.annotation and event.name.startswith("gloo:"))
    ]
    own = [event for event in events if event.thread == thread and not event.on_device]
    compute: list[Interval] = []
    for root in _trees(own):
        compute += root.compute()
    return communication, compute


class _Node:
    """An event of one thread with the events it contains."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.children: list[_Node] = []
        namespace = event.name.split("::")[0] if "::" in event.name else ""
        self.communicates = event.name == WAIT or namespace in COMMUNICATION_NAMESPACES
        # Ranges of autograd, FSDP, the optimizer and the user tell who asked for work, and may wait inside.
        self.operator = bool(namespace) and not event.annotation and namespace not in ("autograd", "profiler", "FSDP")

    def compute(self) -> list[Interval]:
        """Where this event computed: an operator whole, unless something within it communicates."""
        if self.communicates:
            return []
        if self.operator and not self.waits():
            return [(self.event.start_s, self.event.end_s)]
        return [interval for child in self.children for interval in child.compute()]

    def waits(self) -> bool:
        # DTensor and AsyncCollectiveTensor redistribute and wait inside what the trace shows as one aten operator.
        return self.communicates or any(child.waits() for child in self.children)


def _trees(events: list[Event]) -> list[_Node]:
    roots: list[_Node] = []
    path: list[_Node] = []
    for event in sorted(events, key=lambda event: (event.start_s, -event.end_s)):
        node = _Node(event)
        while path and path[-1].event.end_s <= event.start_s:
            path.pop()
        if path and event.end_s > path[-1].event.end_s:  # asynchronous: it outlives the event it began in
            continue
        (path[-1].children if path else roots).append(node)
        path.append(node)
    return roots


def _event(raw: Any, origin_ns: int) -> Event:
    start_s = (raw.start_ns() - origin_ns) * 1e-9
    return Event(
        name=raw.name(),
        start_s=start_s,
        end_s=start_s + raw.duration_ns() * 1e-9,
        thread=raw.start_thread_id(),
        on_device=raw.device_type().name != "CPU",
        annotation=is_range(raw),
    )


@contextmanager
def _waits_are_seen(device: torch.device) -> Iterator[None]:
    """Gives ``Work.wait`` a range of its own while a CPU step is traced.

    Gloo's send and recv leave only the moment they were asked for, and a thread in ``wait`` does nothing else. On CUDA
    ``wait`` returns at once and the kernels tell all.
    """
    if device.type == "cuda" or not dist.is_available():
        yield
        return
    kind: Any = dist.Work
    original = vars(kind)["wait"]

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(WAIT):
            return original(work, *args, **kwargs)

    kind.wait = wait
    try:
        yield
    finally:
        kind.wait = original
