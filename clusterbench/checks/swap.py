from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterbench.checks import Fault, HostCheck, Judged, Unknown
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.memory_settings import SWAPS, MemorySettings
from clusterbench.facts.memory_settings import Swap as Area
from clusterbench.facts.pressure import FOLDER, Pressure

MOST_STALLED = 0.01


class Swap(HostCheck):
    """Swap, and tasks that wait for memory.

    Swap that is used is a warning, as in imbue's host checks; swap that is merely there is a note, since Ubuntu makes a
    file of it unasked and nothing was lost so far. All tasks waiting for memory during 1 % of the last minute (the
    kernel's ``full avg60``; our bound) is a warning.
    """

    number = 72
    question = "Is all memory in memory, without waiting for it?"
    severity = "warning"
    source = f"{SWAPS}, {FOLDER}/memory"
    confirm = f"swapon --show; free -g; cat {FOLDER}/memory"
    fix = "swapoff -a, and no swap in /etc/fstab; for pressure: which processes hold memory (ps aux --sort -rss)"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        settings, pressure = host.of(MemorySettings), host.of(Pressure)
        swaps = known(settings, settings.swaps, SWAPS)
        faults = (*_swapped(swaps), *_waiting(pressure))
        parts = [] if swaps else ["no swap"]
        unknown: tuple[Unknown, ...] = ()
        try:
            full = known(pressure, pressure.memory_full, f"{FOLDER}/memory")
            parts.append(f"no task waits for memory ({full.last_60_s:.1%} of the last minute)")
        except NotKnown as error:
            unknown = (Unknown(error.why, error.takes),)
        return Judged(faults, "" if faults else "; ".join(parts), unknown)


def _swapped(swaps: Sequence[Area]) -> Iterator[Fault]:
    for swap in swaps:
        used = swap.used_bytes > 0
        state = f"{_size(swap.used_bytes)} of it used" if used else "none of it used"
        what = f"is swap of {_size(swap.size_bytes)}, {state}"
        evidence = f"{SWAPS}: {swap.path} {swap.kind} {swap.size_bytes // 1024} {swap.used_bytes // 1024}"
        yield Fault(swap.path, what, evidence, severity=None if used else "note")


def _waiting(pressure: Pressure) -> Iterator[Fault]:
    full = pressure.memory_full
    if full is not None and full.last_60_s > MOST_STALLED:
        what = f"all tasks waited for memory during {full.last_60_s:.1%} of the last minute"
        yield Fault("", what, f"{FOLDER}/memory: full avg60={full.last_60_s * 100:.2f}")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:,.1f} MiB"
