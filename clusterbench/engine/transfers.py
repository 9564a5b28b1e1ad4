"""Which axis each transfer of a traced step belongs to, and which of its group's transfers it is.

A trace says when something was transferred; the call of the communication library says in which group. Messages are
recorded at their calls. Collectives are called from C++ as well, so they are taken from the list of the traffic
counter, which has counted another such step, and found again in the trace by their order.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from clusterbench.engine.traffic import OPS, TrafficCounter
from clusterbench.layout import UNKNOWN

WAIT = "clusterbench::wait"
MESSAGE = "clusterbench::message"


class PeerMessage(NamedTuple):
    """One send or receive of this rank.

    Attributes
    ----------
    way
        ``0>1``: ranks of the group, sender first.
    batch
        Messages of one number were handed over together, and on CUDA one kernel carries them.
    """

    axis: str
    way: str
    batch: int


@dataclass
class LibraryCalls:
    """The calls that one step of this rank makes of the communication library, in order.

    Attributes
    ----------
    axes
        Name of a process group -> axis.
    collectives
        Canonical name and axis of each.
    """

    axes: Mapping[str, str] = field(default_factory=dict)
    collectives: list[tuple[str, str]] = field(default_factory=list)
    messages: list[PeerMessage] = field(default_factory=list)


def listed(counter: TrafficCounter) -> list[tuple[str, str]]:
    """Op and axis of each collective that was counted, in order, without messages between two ranks."""
    return [
        (collective.op, collective.axis) for collective in counter.collectives if collective.op not in ("send", "recv")
    ]


def axes_of(names: Sequence[str], listed: Sequence[tuple[str, str]]) -> list[str]:
    """Axes of the operators of a trace: the n-th of an op belongs to the axis of the n-th that was listed.

    :data:`UNKNOWN` where as many of an op were not listed.

    >>> axes_of(["c10d::allreduce_", "c10d::barrier"], [("all_reduce", "tp")])
    ['tp', '?']
    """
    ops = [OPS.get(name.rpartition("::")[2], name) for name in names]
    of_op: dict[str, list[str]] = defaultdict(list)
    for op, axis in listed:
        of_op[op].append(axis)
    in_turn = {op: iter(of_op[op] if len(of_op[op]) == count else ()) for op, count in Counter(ops).items()}
    return [next(in_turn[op], UNKNOWN) for op in ops]


def carried_by(calls: Sequence[tuple[float, str]], carrying: Sequence[tuple[float, int]]) -> list[int | None]:
    """Which call each stretch of carrying belongs to, where a lane (a thread, a stream) carries for one axis only.

    Calls of one axis are carried in their order, and none before it was made. Where calls of several axes are under way
    on a lane whose axis is not known yet, the latest is taken: an idle lane begins at once.

    Parameters
    ----------
    calls
        Moment and axis of each, in order.
    carrying
        Begin and lane of each, in order.

    Examples
    --------
    >>> carried_by([(0.0, "dp"), (1.0, "tp"), (5.0, "tp")], [(0.1, 7), (1.1, 8), (5.1, 8)])
    [0, 1, 2]
    """
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    _in_order(calls, carrying, votes)
    return _in_order(calls, carrying, votes)  # votes of the end of the step decide its beginning, too


def _in_order(
    calls: Sequence[tuple[float, str]], carrying: Sequence[tuple[float, int]], votes: dict[int, Counter[str]]
) -> list[int | None]:
    """One way through; ``votes`` say how often a lane has carried for an axis, and are added to."""
    left: dict[str, deque[int]] = defaultdict(deque)
    for index, (_, axis) in enumerate(calls):
        left[axis].append(index)
    carried: list[int | None] = []
    for begin_s, lane in carrying:
        heads = {axis: queue[0] for axis, queue in left.items() if queue and calls[queue[0]][0] <= begin_s}
        best = max(heads, key=lambda axis: (votes[lane][axis], calls[heads[axis]][0]), default=None)
        if best is not None:
            votes[lane][best] += 1
        carried.append(None if best is None else left[best].popleft())
    return carried


@contextmanager
def messages_recorded(device: torch.device, axes: Mapping[str, str]) -> Iterator[list[PeerMessage]]:
    """Records every message this rank sends or receives; on CPU gives it and ``Work.wait`` ranges in the trace.

    Gloo's own events of a message last until a thread has waited for it, whenever it arrived; but a thread in ``wait``
    does nothing else. On CUDA ``wait`` returns at once and the kernels show the message.
    """
    messages: list[PeerMessage] = []
    if not dist.is_available():
        yield messages
        return
    of_work: dict[int, tuple[int, Any]] = {}  # with the work, as the id of one that is gone may come again
    together: dict[str, int] = {}
    on_cpu = device.type == "cpu"
    kinds: Any = dist.ProcessGroup, dist.Work
    names = (("send", "recv", "_start_coalescing", "_end_coalescing"), ("wait",))
    originals = {name: vars(kind)[name] for kind, methods in zip(kinds, names, strict=True) for name in methods}

    def passing(name: str) -> Callable[..., Any]:
        def call(group: Any, tensors: Any, peer: int, *rest: Any, **options: Any) -> Any:
            number, mine = len(messages), group.rank()
            way = f"{mine}>{peer}" if name == "send" else f"{peer}>{mine}"
            messages.append(
                PeerMessage(axes.get(group.group_name, UNKNOWN), way, together.get(group.group_name, number))
            )
            if not on_cpu:
                return originals[name](group, tensors, peer, *rest, **options)
            with torch.profiler.record_function(f"{MESSAGE} {number}"):
                work = originals[name](group, tensors, peer, *rest, **options)
            of_work[id(work)] = number, work
            return work

        return call

    def start(group: Any, *rest: Any) -> Any:
        together[group.group_name] = len(messages)
        return originals["_start_coalescing"](group, *rest)

    def end(group: Any, *rest: Any) -> Any:
        together.pop(group.group_name, None)
        return originals["_end_coalescing"](group, *rest)

    def wait(work: Any, *rest: Any, **options: Any) -> Any:
        if not on_cpu:
            return originals["wait"](work, *rest, **options)
        number, _ = of_work.pop(id(work), (None, None))
        with torch.profiler.record_function(WAIT if number is None else f"{WAIT} {number}"):
            return originals["wait"](work, *rest, **options)

    watching = {
        "send": passing("send"),
        "recv": passing("recv"),
        "_start_coalescing": start,
        "_end_coalescing": end,
        "wait": wait,
    }
    _replace(kinds, names, watching)
    try:
        yield messages
    finally:
        _replace(kinds, names, originals)


def _replace(
    kinds: Sequence[Any], names: Sequence[Sequence[str]], replacements: Mapping[str, Callable[..., Any]]
) -> None:
    for kind, methods in zip(kinds, names, strict=True):
        for name in methods:
            setattr(kind, name, replacements[name])
