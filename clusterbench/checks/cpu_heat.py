from __future__ import annotations

from collections.abc import Iterator

from clusterbench.checks import Fault, Judged
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.cpu_throttling import CpuThrottling, Socket
from clusterbench.facts.processor import FOLDER
from clusterbench.tools.kernel_log import DAY_S, Event
from clusterbench.words import plural

MOST_LOWERED = 1e-3
"""Of the time since the start: a minute and a half of a day. No source gives a figure."""
MANY = 10
"""Times a day, of kernels that do not say for how long."""


class CpuHeat(KernelLogCheck):
    """Processors that lowered their clock because they were too hot.

    A line of the kernel's log is a warning. Of Intel's processors the kernel also counts how often and for how long it
    was, which everyone may read: a thousandth of the time since the start is a warning, less is a note. What the log
    tells is not said again by its counts.

    Source: Linux, ``drivers/thermal/intel/therm_throt.c``.
    """

    number = 115
    question = "Do processors stay cool enough to keep their clock?"
    severity = "warning"
    source = f"/dev/kmsg, dmesg, journalctl -k; {FOLDER}/cpu*/thermal_throttle"
    confirm = f"dmesg -T | grep -i 'temperature above threshold'; grep . {FOLDER}/cpu*/thermal_throttle/*; sensors"
    fix = "look at fans, air flow and inlet temperature; is the cooler seated?"
    kinds = ("cpu_heat",)
    absent = "processor that was too hot"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, "was too hot and lowered its clock")

    def judge(self, host: Host) -> Judged:
        logged = self.logged(host)
        try:
            counts = host.of(CpuThrottling)
        except NotKnown:
            return logged  # of a run of before these were read
        faults = logged.faults or tuple(_counted(counts))
        cool = f"{plural(len(counts.sockets), 'processor')} never lowered the clock for heat"
        parts = [logged.healthy, *([cool] if counts.sockets else [])]
        return Judged(faults, "" if faults else "; ".join(filter(None, parts)), logged.unknown)


def _counted(counts: CpuThrottling) -> Iterator[Fault]:
    days = max((counts.uptime_s or 0.0) / DAY_S, 1.0)
    for socket in counts.sockets:
        if socket.times:
            lasted = f", for {socket.lowered_s:,.0f} s" if socket.lowered_s is not None else ""
            what = f"was too hot and lowered its clock {plural(socket.times, 'time')}{lasted} in {days:.1f} days"
            evidence = f"{FOLDER}/cpu*/thermal_throttle: {plural(socket.times, 'time')}{lasted}"
            where = f"processor {socket.number}"
            yield Fault(where, what, evidence, severity=None if _is_much(socket, days) else "note")


def _is_much(socket: Socket, days: float) -> bool:
    if socket.lowered_s is not None:
        return socket.lowered_s > MOST_LOWERED * days * DAY_S
    return socket.times >= MANY * days
