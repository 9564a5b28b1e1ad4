from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from clusterbench.checks import Fault, Judged
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.memory_errors import FOLDER, Counted, MemoryErrors
from clusterbench.tools.kernel_log import DAY_S, Event
from clusterbench.words import plural

MANY = 10
"""Corrected memory errors logged within a day. No source gives a figure; the kernel logs a few of many."""


class MachineCheck(KernelLogCheck):
    """Errors that processor and memory report (machine checks, EDAC): an error where they were not corrected.

    Corrected ones are a warning from ten a day, a note below. Those of memory the kernel counts by module where a
    driver of its controllers is loaded, and everyone may read that; the rest is in its log alone. What the log tells of
    a controller is not said again by its counts.
    """

    number = 112
    question = "Do processor and memory report no errors?"
    severity = "error"
    source = f"/dev/kmsg, dmesg, journalctl -k; {FOLDER}"
    confirm = f"dmesg -T | grep -iE 'hardware error|EDAC'; grep . {FOLDER}/mc*/*_count; ipmitool sel list"
    fix = "replace the memory module that the line or the count names; ipmitool sel list"
    kinds = ("machine_check", "memory_corrected")
    absent = "machine check"

    def fault(self, host: Host, event: Event) -> Fault | None:
        if event.kind == "machine_check":
            return told(host, event, "processor or memory reported an error that was not corrected")
        fault = told(host, event, "memory errors were corrected")
        return replace(fault, severity="warning" if event.count >= MANY else "note")

    def judge(self, host: Host) -> Judged:
        logged = self.logged(host)
        try:
            memory = host.of(MemoryErrors)
        except NotKnown:
            return logged  # of a run of before these were read
        faults = (*logged.faults, *_counted(memory, {fault.where.lower() for fault in logged.faults}))
        counts = f"no memory error counted by {plural(memory.num_controllers, 'controller')}"
        parts = [logged.healthy] + ([counts] if memory.num_controllers and not memory.counted else [])
        return Judged(faults, "" if faults else "; ".join(filter(None, parts)), logged.unknown)


def _counted(memory: MemoryErrors, logged: Collection[str]) -> Iterator[Fault]:
    for counted in memory.counted:
        if counted.controller not in logged:
            where = f"{counted.controller.upper()} {counted.module}".strip()
            name = "dimm_{}_count" if counted.module else "{}_count"
            if counted.uncorrected:
                what = f"{plural(counted.uncorrected, 'memory error')} could not be corrected"
                yield Fault(where, what, f"{counted.folder}/{name.format('ue')}: {counted.uncorrected}")
            if counted.corrected:
                over = f" in {counted.over_s / DAY_S:.1f} days" if counted.over_s else ""
                what = f"{plural(counted.corrected, 'memory error was', 'memory errors were')} corrected{over}"
                evidence = f"{counted.folder}/{name.format('ce')}: {counted.corrected}"
                yield Fault(where, what, evidence, severity="warning" if _are_many(counted) else "note")


def _are_many(counted: Counted) -> bool:
    """Where it is not known for how long they were counted, as many as in one day."""
    days = max((counted.over_s or 0) / DAY_S, 1.0)
    return counted.corrected >= MANY * days
