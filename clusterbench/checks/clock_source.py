from __future__ import annotations

from clusterbench.checks import Fault, Judged
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.time_sync import CLOCK_SOURCE, TimeSync
from clusterbench.tools.kernel_log import Event

SLOW = ("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies")


class ClockSource(KernelLogCheck):
    """A clock that the kernel reads from a device of the board, since it found that of the processor unsteady.

    Frameworks, NCCL's proxies and profilers look at the clock millions of times a second; that of a device takes a
    system call and a slow read each. Source: Linux, ``Documentation/virt/kvm/x86/timekeeping.rst``, and the kernel's
    log, "Marking clocksource 'tsc' as unstable".
    """

    number = 154
    question = "Does the kernel read its clock from the processor?"
    severity = "warning"
    source = f"{CLOCK_SOURCE}; /dev/kmsg, dmesg, journalctl -k"
    confirm = f"cat {CLOCK_SOURCE}; dmesg -T | grep clocksource"
    fix = "update the firmware and boot again; if clocks of the sockets are well, boot with tsc=reliable"

    kinds = ("clock_unstable",)
    absent = "processor whose clock is unstable"

    def fault(self, host: Host, event: Event) -> Fault | None:
        what = "the kernel found the processor's clock unstable, and reads a slower one unless it has another quick one"
        return told(host, event, what)

    def judge(self, host: Host) -> Judged:
        try:
            source = host.of(TimeSync).clock_source
        except NotKnown:
            return self.logged(host)
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        if source is None:
            raise NotKnown(f"{CLOCK_SOURCE} is not there", f"a host that shows {CLOCK_SOURCE}")
        if source not in SLOW:
            return Judged(healthy=f"the clock is {source}")
        what = f"the kernel reads its clock from {source}: every look at it is a system call and a slow read"
        why = "".join(f"; {fault.evidence}" for fault in self.logged(host).faults)
        return Judged((Fault("", what, f"{CLOCK_SOURCE}: {source}{why}"),))
