"""When this rank communicated and when it computed, over one step, from PyTorch's profiler.

On CUDA both are kernels on the device. On CPU, Gloo's collectives run on worker threads and leave an event each, as
long as the transfer; compute is what operators do on the thread that runs the step, without those that wait. While that
thread calls the library, or waits for it, it communicates as well: it does nothing else meanwhile.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch

from clusterbench.engine.compat import COMMUNICATION_NAMESPACES, is_range, profiler_events
from clusterbench.engine.traffic import OPS, SILENT, WAITS
from clusterbench.engine.transfers import (
    MESSAGE,
    WAIT,
    LibraryCalls,
    axes_of,
    carried_by,
    messages_recorded,
)
from clusterbench.formulas.attribution import Claim, shares
from clusterbench.formulas.intervals import Interval, exposed_communication, merged, overlap_fraction, union_length
from clusterbench.job.spans import COMPUTE, PIPELINE, Shown, action_name, calls_along, exposed_along, transfers_along
from clusterbench.layout import UNKNOWN
from clusterbench.words import short

STEP = "clusterbench::step"
_ACTION = "clusterbench::action "
_LONGEST_NAME = 80
_WAITS = (WAIT, *(f"{space}::{wait}" for space in ("_c10d_functional", "c10d_functional") for wait in sorted(WAITS)))

# Kernels that move data between ranks: NCCL's (`ncclDevKernel_AllReduce_Sum_f32_RING_LL`), NVSHMEM's, DeepEP's, and
# PyTorch's own of symmetric memory; peer copies as the driver names them.
_COMMUNICATION_KERNEL = re.compile(
    r"nccl|nvshmem|deep_ep|multimem_|one_shot_all_reduce|two_shot_all_reduce|Memcpy (PtoP|P2P)", re.IGNORECASE
)
_MESSAGE_KERNEL = "SendRecv"
_NCCL_CALL = "record_param_comms"  # the range of NCCL's calls in the trace, with the group among its metadata


@dataclass(frozen=True)
class Event:
    """What the profiler saw, reduced to what matters here."""

    name: str
    start_s: float
    end_s: float
    thread: int = 0
    """Of the host, or the stream of the device."""
    on_device: bool = False
    annotation: bool = False
    """A named range (``record_function``), not an operator or a kernel."""
    group: str = ""
    """Name of the process group of a kernel, where the trace tells it."""


@dataclass(frozen=True)
class Transfer:
    """One collective, or one message of this rank.

    Attributes
    ----------
    way
        Empty for a collective; ``0>1`` for a message, with ranks of the group.
    exposed_s
        Seconds in which it showed: nothing was computed, and no transfer that began later was under way.
    duration_s
        Seconds in which it was under way, waiting for a late rank included.
    """

    axis: str
    way: str
    exposed_s: float
    duration_s: float


@dataclass(frozen=True)
class StepTrace:
    """Intervals of one rank over one step, in seconds from its start.

    ``transfers`` are in the order of their calls; what they expose sums to the exposed communication. ``shown`` is the
    same with the names of what ran, as a picture shows it.
    """

    communication: tuple[Interval, ...]
    compute: tuple[Interval, ...]
    step_s: float
    transfers: tuple[Transfer, ...] = ()
    shown: tuple[Shown, ...] = ()


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


def trace_step(
    step: Callable[[], object],
    device: torch.device | str = "cpu",
    axes: Mapping[str, str] | None = None,
    collectives: Sequence[tuple[str, str]] = (),
    meet: Callable[[], object] = lambda: None,
) -> StepTrace:
    """Runs ``step`` once under the profiler.

    Warm it up first: the first step of DTensor propagates shapes. Every rank calls it; the profiler itself communicates
    nothing. A profiled step is slower: never the one that is timed.

    Parameters
    ----------
    axes
        Name of a process group -> axis. With them each transfer gets its axis.
    collectives
        Those of such a step as the traffic counter listed them; only a CPU needs the list.
    meet
        Has the ranks wait for each other, just before the step: a profiler takes up to a second to start.
    """
    device = torch.device(device)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.synchronize(device)
    library_calls = LibraryCalls(axes or {}, list(collectives))
    profile = torch.profiler.profile(activities=activities)
    with profile:
        meet()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        with (
            messages_recorded(device, library_calls.axes) as library_calls.messages,
            torch.profiler.record_function(STEP),
        ):
            step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
    raw = profiler_events(profile)
    origin_ns = min(event.start_ns() for event in raw)  # a float of nanoseconds since 1970 is good to 256 of them
    groups = _groups(raw) if device.type == "cuda" else {}
    return intervals([_event(event, origin_ns, groups) for event in raw], device.type, library_calls)


def in_trace(kind: str, stage: int, microbatch: int) -> AbstractContextManager[object]:
    """Around an action of a pipeline, by which a trace knows it."""
    return torch.profiler.record_function(f"{_ACTION}{action_name(kind, stage, microbatch)}")


def work_on_device(step: Callable[[], object], device: torch.device) -> float:
    """Seconds in which the device ran something that moves nothing between ranks, over one step under the profiler.

    The profiler records the device alone, which leaves the host as fast as it can be.
    """
    torch.cuda.synchronize(device)
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with profile:
        step()
        torch.cuda.synchronize(device)
    raw = profiler_events(profile)
    origin_ns = min((event.start_ns() for event in raw), default=0)
    return device_work_s(_event(event, origin_ns, {}) for event in raw if event.device_type().name != "CPU")


def device_work_s(events: Iterable[Event]) -> float:
    """Seconds in which at least one kernel or copy of a device's events ran that does not communicate."""
    return union_length(
        (event.start_s, event.end_s) for event in events if not (event.annotation or _communicates(event))
    )


def intervals(events: list[Event], device_type: str, library_calls: LibraryCalls | None = None) -> StepTrace:
    """Sorts the events of one step into communication and compute.

    Events outside the step are dropped; a transfer that was under way when it began or ended is cut there.
    """
    step = next(event for event in events if event.name == STEP and not event.on_device)
    events = [event for event in events if event.end_s > step.start_s and event.start_s < step.end_s]
    library_calls = library_calls or LibraryCalls()
    activity = (
        _of_device(events, library_calls) if device_type == "cuda" else _of_threads(events, step.thread, library_calls)
    )

    def cut(claims: Iterable[Claim]) -> list[Claim]:
        inner = (
            Claim(max(start, step.start_s) - step.start_s, min(end, step.end_s) - step.start_s, owner)
            for start, end, owner in claims
        )
        return [claim for claim in inner if claim.end_s > claim.start_s]

    compute = merged(claim[:2] for claim in cut(Claim(*interval, 0) for interval in activity.compute))
    held, carried = cut(activity.held), cut(activity.carried)
    # The thread that runs the step shows what keeps it, whatever else is under way behind.
    exposed = [*shares(held, compute), *shares(carried, [*compute, *(claim[:2] for claim in held)])]
    showed: dict[int, list[Interval]] = defaultdict(list)
    for claim in exposed:
        showed[claim.owner].append(claim[:2])
    lasted: dict[int, list[Interval]] = defaultdict(list)
    for claim in (*held, *carried):
        lasted[claim.owner].append(claim[:2])
    transfers = []
    for owner, together in enumerate(activity.carriers):
        if owner in lasted:
            exposed_s = sum(end_s - start_s for start_s, end_s in showed[owner])
            each_s = exposed_s / len(together), union_length(lasted[owner]) / len(together)
            transfers += [Transfer(transfer.axis, transfer.way, *each_s) for transfer in together]
    communication = merged(claim[:2] for claim in (*held, *carried))
    shown = [*activity.shown, *_actions(events, step.thread)]
    inner = [
        each._replace(start_s=claims[0].start_s, end_s=claims[0].end_s)
        for each in shown
        if (claims := cut([Claim(each.start_s, each.end_s, 0)]))
    ]
    for start_s, end_s, owner in exposed:
        together = activity.carriers[owner]
        inner.append(Shown(exposed_along(together[0].axis), _words(together), start_s, end_s))
    return StepTrace(tuple(communication), tuple(compute), step.end_s - step.start_s, tuple(transfers), tuple(inner))


def _actions(events: Iterable[Event], thread: int) -> Iterator[Shown]:
    """Of the pipeline. On CUDA what the host did: the device may run its kernels later."""
    for event in events:
        if event.name.startswith(_ACTION) and event.thread == thread and not event.on_device:
            yield Shown(PIPELINE, event.name.removeprefix(_ACTION), event.start_s, event.end_s)


class _Carried(NamedTuple):
    axis: str
    way: str = ""
    op: str = ""


def _words(together: Sequence[_Carried]) -> str:
    """What was carried together: ``tp all_reduce``, ``pp 0>1 1>0``."""
    first = together[0]
    return " ".join([first.axis, *(dict.fromkeys(each.way for each in together) if first.way else [first.op])])


@dataclass
class _Activity:
    """The intervals of a trace. The owner of a claim is the number of a carrier, each a list of what it carried.

    ``shown`` is compute and communication with names, not yet cut to the step.
    """

    compute: list[Interval]
    held: list[Claim]
    carried: list[Claim]
    carriers: list[list[_Carried]]
    shown: list[Shown]


def _of_device(events: list[Event], library_calls: LibraryCalls) -> _Activity:
    work = [event for event in events if event.on_device and not event.annotation]  # ranges are copied there, too
    kernels = sorted(filter(_communicates, work), key=lambda event: event.start_s)
    rest = [event for event in work if not _communicates(event) and not event.name.startswith(("Memcpy", "Memset"))]
    axes = _axes_of_streams(kernels, library_calls)
    batches: dict[str, list[list[_Carried]]] = defaultdict(list)
    for _, together in groupby(library_calls.messages, key=lambda message: message.batch):
        batch = [_Carried(message.axis, message.way) for message in together]
        batches[batch[0].axis].append(batch)
    for axis, axis_batches in batches.items():
        count = sum(_MESSAGE_KERNEL in kernel.name and of == axis for kernel, of in zip(kernels, axes, strict=True))
        if count != len(axis_batches):  # something else than messages went the same way
            batches[axis] = [[_Carried(axis, UNKNOWN)] for _ in range(count)]
    in_turn = {axis: iter(axis_batches) for axis, axis_batches in batches.items()}
    return _Activity(
        compute=[(event.start_s, event.end_s) for event in rest],
        held=[],
        carried=[Claim(kernel.start_s, kernel.end_s, owner) for owner, kernel in enumerate(kernels)],
        carriers=[
            next(in_turn[axis])
            if axis in in_turn and _MESSAGE_KERNEL in kernel.name
            else [_Carried(axis, op=_name(kernel))]
            for kernel, axis in zip(kernels, axes, strict=True)
        ],
        shown=[
            *(Shown(COMPUTE, _name(event), event.start_s, event.end_s) for event in rest),
            *(
                Shown(transfers_along(axis), _name(kernel), kernel.start_s, kernel.end_s)
                for kernel, axis in zip(kernels, axes, strict=True)
            ),
        ],
    )


def _name(event: Event) -> str:
    return short(event.name.removeprefix("void "), _LONGEST_NAME)


def _communicates(event: Event) -> bool:
    return _COMMUNICATION_KERNEL.search(event.name) is not None


def _axes_of_streams(kernels: Sequence[Event], library_calls: LibraryCalls) -> list[str]:
    """Axis of each kernel: by its group, or by its stream, as NCCL has one for every group."""
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    for kernel in kernels:
        if kernel.group in library_calls.axes:
            votes[kernel.thread][library_calls.axes[kernel.group]] += 1
    of_stream = {stream: axes.most_common(1)[0][0] for stream, axes in votes.items()}
    only = next(iter(library_calls.axes.values())) if len(set(library_calls.axes.values())) == 1 else UNKNOWN
    return [library_calls.axes.get(kernel.group) or of_stream.get(kernel.thread, only) for kernel in kernels]


def _of_threads(events: list[Event], thread: int, library_calls: LibraryCalls) -> _Activity:
    of_thread: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if not event.on_device and (event.thread == thread or _namespace(event) in COMMUNICATION_NAMESPACES):
            of_thread[event.thread].append(event)
    roots = {where: _trees(thread_events) for where, thread_events in of_thread.items()}
    communicating = [node.event for trees in roots.values() for root in trees for node in root.communication()]
    calls = sorted(filter(_is_call, communicating), key=lambda event: event.start_s)
    axes = axes_of([call.name for call in calls], library_calls.collectives)
    gloo = sorted(
        (event for event in events if event.annotation and event.name.startswith("gloo:") and event.thread != thread),
        key=lambda event: event.start_s,
    )
    carried_for = carried_by(
        [(call.start_s, axis) for call, axis in zip(calls, axes, strict=True)],
        [(event.start_s, event.thread) for event in gloo],
    )
    ops = [OPS.get(_operator(call), _operator(call)) for call in calls]
    carriers = [[_Carried(axis, op=op)] for axis, op in zip(axes, ops, strict=True)]
    carriers += [[_Carried(message.axis, message.way)] for message in library_calls.messages]
    unknown = len(carriers)
    carriers.append([_Carried(UNKNOWN, UNKNOWN)])
    computing = [event for root in roots.get(thread, ()) for event in root.compute()]
    ended = sorted((event.end_s, call) for event, call in zip(gloo, carried_for, strict=True) if call is not None)
    begun = [call.start_s for call in calls]

    def owner_of(event: Event, place: int | None) -> int:
        if place is not None:
            return place
        if event.name in _WAITS:
            # The transfer that ended last before the wait did; where none has, the one that was called last.
            last = bisect(ended, (event.end_s, unknown)) - 1
            return ended[last][1] if last >= 0 else max(bisect(begun, event.start_s) - 1, 0) if calls else unknown
        _, _, number = event.name.partition(" ")
        is_noted = (
            event.name.startswith((WAIT, MESSAGE)) and number.isdigit() and int(number) < len(library_calls.messages)
        )
        return len(calls) + int(number) if is_noted else unknown

    places = {id(call): place for place, call in enumerate(calls)}
    held = [
        (event, Claim(event.start_s, event.end_s, owner_of(event, places.get(id(event)))))
        for event in communicating
        if event.thread == thread and _operator(event) not in SILENT - WAITS
    ]
    carried = [
        Claim(event.start_s, event.end_s, unknown if call is None else call)
        for event, call in zip(gloo, carried_for, strict=True)
    ]
    shown = [Shown(COMPUTE, _name(event), event.start_s, event.end_s) for event in computing]
    for event, (start_s, end_s, owner) in held:
        waits = "wait for " if event.name.startswith(_WAITS) else ""
        shown.append(Shown(calls_along(carriers[owner][0].axis), waits + _words(carriers[owner]), start_s, end_s))
    for start_s, end_s, owner in carried:
        shown.append(Shown(transfers_along(carriers[owner][0].axis), _words(carriers[owner]), start_s, end_s))
    return _Activity(
        compute=[(event.start_s, event.end_s) for event in computing],
        held=[claim for _, claim in held],
        carried=carried,
        carriers=carriers,
        shown=shown,
    )


def _namespace(event: Event) -> str:
    return event.name.split("::")[0] if "::" in event.name else ""


def _operator(event: Event) -> str:
    return event.name.rpartition("::")[2]


def _is_call(event: Event) -> bool:
    """Whether it is the call of a collective."""
    if _namespace(event) not in COMMUNICATION_NAMESPACES or _operator(event) in SILENT:
        return False
    return OPS.get(_operator(event)) not in ("send", "recv")


class _Node:
    """An event of one thread with the events it contains."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.children: list[_Node] = []
        namespace = _namespace(event)
        self.communicates = event.name.startswith((WAIT, MESSAGE)) or namespace in COMMUNICATION_NAMESPACES
        # Ranges of autograd, FSDP, the optimizer and the user only name the caller of work, and may wait inside.
        self.operator = bool(namespace) and not event.annotation and namespace not in ("autograd", "profiler", "FSDP")

    def communication(self) -> Iterator[_Node]:
        """The outermost events that communicate."""
        if self.communicates:
            yield self
        else:
            for child in self.children:
                yield from child.communication()

    def compute(self) -> list[Event]:
        """What of this event computed: an operator whole, unless something within it communicates."""
        if self.communicates:
            return []
        if self.operator and not self.waits():
            return [self.event]
        return [event for child in self.children for event in child.compute()]

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


def _event(raw: Any, origin_ns: int, groups: Mapping[int, str]) -> Event:
    start_s = (raw.start_ns() - origin_ns) * 1e-9
    on_device = raw.device_type().name != "CPU"
    return Event(
        name=raw.name(),
        start_s=start_s,
        end_s=start_s + raw.duration_ns() * 1e-9,
        thread=raw.device_resource_id() if on_device else raw.start_thread_id(),
        on_device=on_device,
        annotation=is_range(raw),
        group=groups.get(raw.linked_correlation_id(), "") if on_device and groups else "",
    )


def _groups(events: Iterable[Any]) -> dict[int, str]:
    """Correlation of a call of NCCL -> name of its process group; the kernels it launches are linked to it.

    Empty where this PyTorch has no such metadata: the axes of kernels then follow from their streams.
    """
    calls = (event for event in events if event.name() == _NCCL_CALL and hasattr(event, "extra_meta"))
    named = ((call.correlation_id(), call.extra_meta().get("Process Group Name", "")) for call in calls)
    return {correlation: name.strip('"') for correlation, name in named if name}
