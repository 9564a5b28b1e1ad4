from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class CableHeat(KernelLogCheck):
    """Cables, transceivers and cards that are too hot, and modules that the card refuses.

    Source: Linux, ``drivers/net/ethernet/mellanox/mlx5/core/events.c``.
    """

    number = 56
    question = "Are cables, transceivers and cards cool enough, and accepted?"
    severity = "warning"
    confirm = "dmesg -T | grep -iE 'module event|high temperature'; mlxlink -d mlx5_0 -m"
    fix = "look at air flow and fans; reseat or replace the module; use one that the card supports"
    kinds = ("heat", "cable")
    absent = "hot or refused cable"

    def fault(self, host: Host, event: Event) -> Fault | None:
        what = "is too hot" if event.kind == "heat" else "has a cable or transceiver with an error"
        return told(host, event, what)
