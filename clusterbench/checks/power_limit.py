from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import DEFAULT_POWER_LIMIT, POWER_LIMIT, Gpu

LEAST_SHARE = 0.999


class PowerLimit(GpuCheck):
    """GPUs that may draw less power than they were sold with: large multiplications run at lower clocks.

    The limit is held against the board's own default, as DCGM's targeted_power does. One above the default is in order.
    """

    number = 24
    question = "May every GPU draw the power it was sold with?"
    severity = "warning"
    source = "NVML, power limits"
    confirm = "nvidia-smi -q -d POWER | grep -E 'Current Power Limit|Default Power Limit'"
    fix = "nvidia-smi -pl WATTS with the default, unless the rack or the site needs the lower limit"
    asks = DEFAULT_POWER_LIMIT
    in_order = "may draw their default power"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        limit = answer(host, part, part.power_limit_w, POWER_LIMIT)
        default = answer(host, part, part.default_power_limit_w, DEFAULT_POWER_LIMIT)
        if limit >= LEAST_SHARE * default:
            return None
        evidence = f"NVML power limit: {limit:.0f} W; default {default:.0f} W"
        return Fault(part.place, f"its power limit is {limit:.0f} W, and by default {default:.0f} W", evidence)
