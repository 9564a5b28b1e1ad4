from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import REASONS, Gpu


class GpuSlowdown(GpuCheck):
    """GPUs whose clocks heat or a failing power supply holds down at this moment, while nothing has run yet.

    The power brake is pulled by the chassis, mostly because a power supply is gone, and holds at rest as under load.
    Heat shows at rest only where it is great; under load the diagnosis ``throttling`` looks. The reasons are those of
    which ``nvidia-smi -q`` in a file is judged by as well.
    """

    number = 156
    question = "Are the clocks of every GPU free to rise, at rest?"
    severity = "warning"
    source = "NVML, clock event reasons"
    confirm = "nvidia-smi -q -d PERFORMANCE"
    fix = "look at power supplies, fans, air flow and inlet temperature of the host"
    asks = REASONS
    in_order = "have clocks that nothing holds down"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        slowdowns = ", ".join(answer(host, part, part.slowdowns, REASONS))
        if not slowdowns:
            return None
        return Fault(part.place, f"its clocks are lowered: {slowdowns}", f"NVML clock event reasons: {slowdowns}")
