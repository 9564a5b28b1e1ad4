from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class NicFailed(KernelLogCheck):
    """Network cards whose firmware stopped or does not answer its driver.

    Source: Linux, ``drivers/net/ethernet/mellanox/mlx5/core/{health,cmd}.c``.
    """

    number = 116
    question = "Does the firmware of every network card answer?"
    severity = "error"
    confirm = "dmesg -T | grep -E 'mlx5.*(health|timeout)'"
    fix = "reset the card (mlxfwreset) or power the host off and on; update its firmware"
    kinds = ("nic_failed",)
    absent = "network card that failed"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, "stopped or does not answer its driver")
