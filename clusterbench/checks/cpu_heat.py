from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class CpuHeat(KernelLogCheck):
    """Processors that lowered their clock because they were too hot.

    Source: Linux, ``drivers/thermal/intel/therm_throt.c``.
    """

    number = 115
    question = "Do processors stay cool enough to keep their clock?"
    severity = "warning"
    confirm = "dmesg -T | grep -i 'temperature above threshold'; sensors"
    fix = "look at fans, air flow and inlet temperature; is the cooler seated?"
    kinds = ("cpu_heat",)
    absent = "processor that was too hot"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, "was too hot and lowered its clock")
