from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event

LEAST_FLAPS = 2
"""Within a day. Azure's health checks count the lost carriers of 24 h; one may be a cable that was changed."""


class LinkFlaps(KernelLogCheck):
    """Links of network interfaces that went down after they had been up, twice or more within a day.

    A link that is down from the start is not counted: ``port_state`` finds it. The kernel also logs a link that an
    administrator takes down.
    """

    number = 55
    question = "Do links stay up?"
    severity = "warning"
    confirm = "dmesg -T | grep -i 'link down'"
    fix = "reseat or replace cable and transceiver; clean the fibre; look at the errors of the switch's port"
    kinds = ("link_down",)
    absent = "link that went down repeatedly"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, "lost its link") if event.count >= LEAST_FLAPS else None
