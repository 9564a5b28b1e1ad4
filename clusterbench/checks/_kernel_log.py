"""What checks of the kernel's log have in common."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from typing import ClassVar

from clusterbench.checks import Fault, HostCheck, Judged, Unknown
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.gpus import Gpu, Gpus
from clusterbench.facts.kernel_log import KMSG, KernelLog
from clusterbench.tools.kernel_log import Event
from clusterbench.words import plural


class KernelLogCheck(HostCheck):
    """A check of what the kernel logged since boot, or since the oldest line that it keeps.

    ``kinds`` are those of its events (:data:`clusterbench.tools.kernel_log.KINDS`), ``absent`` what is not in a
    log that is well: ``Xid``.
    """

    kinds: ClassVar[tuple[str, ...]]
    absent: ClassVar[str]
    source = "/dev/kmsg, dmesg, journalctl -k"
    programs = "dmesg, journalctl"
    right = "root"
    confirm = "dmesg -T"

    @abstractmethod
    def fault(self, host: Host, event: Event) -> Fault | None:
        """What is wrong, see :func:`told`; None where this event is nothing to worry about."""

    def judge(self, host: Host) -> Judged:
        log = host.of(KernelLog)
        source = known(log, log.source, KMSG)
        events = [event for event in log.events if event.kind in self.kinds]
        faults = tuple(fault for event in events if (fault := self.fault(host, event)))
        if faults:
            return Judged(faults)
        if log.dropped:
            why = f"{source} tells of {log.dropped:,} more things than are kept"
            return Judged(unknown=(Unknown(why, "a look at the kernel's log"),))
        since = f" since {log.begins}" if log.begins else ""
        return Judged(healthy=f"no {self.absent} in {plural(log.num_lines, 'line')} of the kernel's log{since}")

    def logged(self, host: Host) -> Judged:
        """What the log says, for a check that looks elsewhere, too: a log that may not be read is not all it knows."""
        try:
            return KernelLogCheck.judge(self, host)
        except NotKnown as error:
            return Judged(unknown=(Unknown(error.why, error.takes),))


def told(host: Host, event: Event, what: str, where: str | None = None) -> Fault:
    """A fault in the words ``what``, with how often and when, and the line that says so."""
    often = f"{event.count:,} times, last" if event.count > 1 else "once,"
    when = f", {often} {event.last}" if event.last else f", {event.count:,} times" if event.count > 1 else ""
    source = host.of(KernelLog).source
    return Fault(_place(host, event) if where is None else where, f"{what}{when}", f"{source}: {event.text}")


def gpu_of(host: Host, event: Event) -> Gpu | None:
    """What NVML told of the GPU that an event is of; the log names its slot alone."""
    if event.where.startswith("GPU "):
        with suppress(NotKnown):
            for gpu in host.of(Gpus).gpus:
                if gpu.address and gpu.address.startswith(event.where.removeprefix("GPU ")):
                    return gpu
    return None


def _place(host: Host, event: Event) -> str:
    """A GPU with index and serial, where they are known."""
    gpu = gpu_of(host, event)
    return event.where if gpu is None else gpu.place
