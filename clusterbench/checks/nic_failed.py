from __future__ import annotations

from dataclasses import replace

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class NicFailed(KernelLogCheck):
    """Network cards whose firmware stopped or does not answer its driver.

    A transmit queue that stood still is a warning: the driver starts it again, and goes on.

    Source: Linux, ``drivers/net/ethernet/mellanox/mlx5/core/{main,health,cmd}.c``, ``net/sched/sch_generic.c``.
    """

    number = 116
    question = "Does the firmware of every network card answer?"
    severity = "error"
    confirm = "dmesg -T | grep -E 'mlx5.*(health|timeout|failed)|NETDEV WATCHDOG'"
    fix = "reset the card (mlxfwreset) or power the host off and on; update its firmware"
    kinds = ("nic_failed", "nic_queue")
    absent = "network card that failed"

    def fault(self, host: Host, event: Event) -> Fault | None:
        if event.kind == "nic_queue":
            fault = told(host, event, "a queue of it sent nothing for seconds and was started again")
            return replace(fault, severity="warning")
        return told(host, event, "stopped or does not answer its driver")
