"""Spans on threads of processes as Chrome's trace events, which ui.perfetto.dev and chrome://tracing open.

Source: "Trace Event Format", JSON Object Format: complete events (``X``, microseconds) and metadata (``M``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """Something that ran on a thread, in nanoseconds from the start of the trace."""

    name: str
    start_ns: int
    length_ns: int
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Thread:
    """A row of the picture. What is on it follows one after the other.

    ``kind`` is what its events can be searched and coloured by.
    """

    name: str
    kind: str
    ran: Sequence[Ran]


@dataclass(frozen=True)
class Process:
    """Rows with a heading; ``label`` stands beside the name."""

    name: str
    threads: Sequence[Thread]
    label: str = ""


@dataclass(frozen=True)
class ChromeTrace:
    """A trace, and what it is of: ``about`` is kept in the file."""

    processes: Sequence[Process]
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_events(self) -> int:
        return sum(len(thread.ran) for process in self.processes for thread in process.threads)

    def pieces(self) -> Iterable[str]:
        """The text of the file, an event a line."""
        head = {"displayTimeUnit": "ms", "otherData": {"made_by": "clusterbench", **self.about}}
        yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
        before = ""
        for event in self._events():
            yield before + json.dumps(event, separators=(",", ":"))
            before = ",\n"
        yield "\n]}\n"

    def _events(self) -> Iterable[dict[str, Any]]:
        """What names processes and threads, then what ran, in order of time."""
        ran: list[tuple[int, int, dict[str, Any]]] = []
        tid = 0  # one number for a thread of the whole trace: Perfetto knows them as Linux does
        for pid, process in enumerate(self.processes, 1):  # 0 is the idle task of Linux
            yield _named("process_name", pid, 0, name=process.name)
            yield _named("process_sort_index", pid, 0, sort_index=pid)
            if process.label:
                yield _named("process_labels", pid, 0, labels=process.label)
            for thread in process.threads:
                tid += 1
                yield _named("thread_name", pid, tid, name=thread.name)
                yield _named("thread_sort_index", pid, tid, sort_index=tid)
                ran += [(each.start_ns, -each.length_ns, _complete(each, thread.kind, pid, tid)) for each in thread.ran]
        yield from (event for *_, event in sorted(ran, key=lambda each: each[:2]))


def _named(what: str, pid: int, tid: int, **given: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": given}


def _complete(ran: Ran, kind: str, pid: int, tid: int) -> dict[str, Any]:
    times = {"ts": ran.start_ns / 1000, "dur": ran.length_ns / 1000}
    event = {"ph": "X", "name": ran.name, "cat": kind, "pid": pid, "tid": tid, **times}
    if kind in _COLOURS:
        event["cname"] = _COLOURS[kind]
    return event | ({"args": dict(ran.details)} if ran.details else {})


_COLOURS = {"exposed": "terrible", "compute": "good"}
"""Of chrome://tracing, by the kind of a thread; Perfetto colours by name."""
