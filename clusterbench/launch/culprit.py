"""Whom to name when a case ends badly: the rank the trouble began with, not its victims. Pure functions of events."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from clusterbench.launch.channel import Message
from clusterbench.types import PHASES

_PEER_LOST = re.compile(
    r"closed by peer|reset by peer|Broken pipe|Timed out waiting|remote process exited|unhandled system error"
    r"|Connection refused|wait timeout|clients joined"
)
"""What a rank raises because *another* one is gone. Source: Gloo and c10d, measured with torch 2.13."""


def is_bad(event: Message) -> bool:
    return event["event"] in ("exit", "lost_zygote", "lost_agent") or (
        event["event"] == "worker" and event["stage"] == "failed"
    )


A_VICTIM = 6


def suspicion(event: Message) -> tuple[int, int]:
    """Smaller is more suspect; a rank that only reports the loss of a peer comes last."""
    rank = event.get("rank", -1)
    if event["event"] in ("lost_agent", "lost_zygote"):
        return 0, rank
    if event["event"] == "exit":
        return (1 if event["code"] < 0 else 2), rank
    if event["status"] == "failed":
        return (A_VICTIM if _PEER_LOST.search(event["reason"]) else 4), rank
    return {"out_of_memory": 3, "wrong": 5, "skipped": 5}[event["status"]], rank


def death(code: int, seen: Message) -> str:
    where = f" after the phase '{seen['phase']}'" if seen.get("phase") else ""
    if code >= 0:
        return f"ended by itself with exit code {code}{where}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else "a signal"
    why = ": by someone, by the batch system, or by the kernel for want of memory (dmesg tells)" if code == -9 else ""
    return f"was killed by signal {-code} ({name}){where}{why}"


_WAITING = re.compile(r"/torch/distributed/|/torch/autograd/graph\.py|/engine/communicator\.py")
"""Code in which a rank stands that waits for others: collectives, also those that backward issues."""


def behind(seen: dict[int, Message]) -> list[int]:
    """The ranks the others wait for: the least advanced, and among equals those that are stopped or busy elsewhere."""
    least = min((PHASES.index(rank["phase"]), rank["iteration"]) for rank in seen.values())
    last = [
        number for number, rank in sorted(seen.items()) if (PHASES.index(rank["phase"]), rank["iteration"]) == least
    ]
    if stopped := [number for number in last if seen[number]["state"] in ("T", "t", "Z", "")]:
        return stopped
    elsewhere = [number for number in last if not any(_WAITING.search(frame) for frame in seen[number]["stack"])]
    return elsewhere or last


def standing(rank: Message) -> str:
    """How far a rank got, as the end of a sentence that begins with "has"."""
    what = f"not left the phase after '{rank['phase']}'"
    if rank["iteration"] >= 0:
        kind = "warm-up iteration" if rank["phase"] == "checked" else "iteration"
        what = f"not finished {kind} {rank['iteration']}"
    if rank["state"] == "T":
        return f"{what}: its process is stopped (SIGSTOP)"
    frame = rank["stack"][0] if rank["stack"] else ""
    found = re.match(r'File "(.*)", line (\d+)(?: in (.*))?', frame)
    return f"{what}, in {found[3]} ({Path(found[1]).name}:{found[2]})" if found else what
