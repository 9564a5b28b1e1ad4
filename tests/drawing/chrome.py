"""What has to hold of any Chrome trace, and what is on its threads."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any


def threads_of(text: str) -> dict[str, dict[str, list[Any]]]:
    """Process -> threads of one name -> events, of a trace that is as Perfetto and Chrome want it."""
    trace = json.loads(text)
    events = trace["traceEvents"]
    ran = [event for event in events if event["ph"] == "X"]
    named = [event for event in events if event["ph"] == "M"]
    assert len(ran) + len(named) == len(events)
    processes = {event["pid"]: event["args"]["name"] for event in named if event["name"] == "process_name"}
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in named if event["name"] == "thread_name"}
    assert len(set(processes.values())) == len(processes)
    assert 0 not in processes
    assert len({tid for _, tid in threads}) == len(threads)
    assert all(event["ts"] == 0 for event in named)
    assert [event["ts"] for event in ran] == sorted(event["ts"] for event in ran)
    rows: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for event in ran:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert event["name"]
        rows[event["pid"], event["tid"]].append(event)
    assert rows.keys() <= threads.keys()
    found: dict[str, dict[str, list[Any]]] = {name: defaultdict(list) for name in processes.values()}
    for (pid, tid), of_thread in rows.items():
        end_ns = 0
        for event in of_thread:
            start_ns = round(event["ts"] * 1000)
            assert start_ns >= end_ns, "two events of one thread overlap"
            end_ns = start_ns + round(event["dur"] * 1000)
        found[processes[pid]][threads[pid, tid]] += of_thread
    return found


def busy_s(events: list[Any]) -> float:
    """Seconds in which something ran, by what the events say themselves."""
    return sum(event.get("args", {}).get("busy_us", event["dur"]) for event in events) / 1e6
