from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class SlotPower(KernelLogCheck):
    """A network card whose slot grants it less power than it asks for: it may not train, or not reach its rate.

    Source: Linux, ``drivers/net/ethernet/mellanox/mlx5/core/events.c``.
    """

    number = 17
    question = "Does every slot give its network card enough power?"
    severity = "error"
    confirm = "dmesg -T | grep -i 'insufficient power'"
    fix = "set the slot's power in the BIOS, use another slot, or connect the card's own power cable"
    kinds = ("slot_power",)
    absent = "slot without enough power"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, f"finds too little power on its PCIe slot ({event.code} W)")
