from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import CLOCK, DEFAULT_CLOCK, MAX_CLOCK, Gpu


class ApplicationClocks(GpuCheck):
    """GPUs whose clock an administrator limited (``nvidia-smi -ac``) below the highest one.

    The default application clock is no limit: GPUs boost above it. Locked clocks (``nvidia-smi -lgc``) are not told by
    NVML; they show while a case runs, and the diagnosis ``throttling`` notes them.
    """

    number = 23
    question = "Are the clocks of every GPU free of a limit set by hand?"
    severity = "warning"
    source = "NVML, application clocks"
    confirm = "nvidia-smi -q -d CLOCK | grep -A2 'Applications Clocks'"
    fix = "nvidia-smi -rac sets application clocks back to their default"
    asks = CLOCK
    parts = "NVIDIA GPUs with application clocks"
    in_order = "have them at their default or at the most"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        clock = answer(host, part, part.application_clock_hz, CLOCK)
        most = answer(host, part, part.max_clock_hz, MAX_CLOCK)
        if clock >= most or clock == answer(host, part, part.default_application_clock_hz, DEFAULT_CLOCK):
            return None
        evidence = f"NVML application clock: {clock / 1e6:.0f} MHz; highest {most / 1e6:.0f} MHz"
        what = f"its SM clock was limited to {clock / 1e6:.0f} MHz, and could be {most / 1e6:.0f} MHz"
        return Fault(part.place, what, evidence)
