from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.checks.pcie_error_counters import MOST_PER_MINUTE
from clusterbench.facts import Host, known
from clusterbench.facts.gpus import REPLAYS, Gpu
from clusterbench.facts.pcie import UPTIME, Pcie


class PcieReplays(GpuCheck):
    """GPUs that had to send packets over PCIe again, more than 8 times a minute on average since the host started.

    The limit is DCGM's (DCGM_LIMIT_MAX_PCIREPLAY_RATE). NVML counts since the driver was loaded, which is later: the
    rate is at least this.
    """

    number = 98
    question = "Do GPUs send PCIe packets once?"
    severity = "warning"
    source = f"NVML, PCIe replay counter; {UPTIME}"
    confirm = "nvidia-smi -q | grep -E '^GPU|Replays Since Reset'"
    fix = "reseat the GPU, its riser or cable; if it stays, exchange them, then the board"
    asks = REPLAYS
    in_order = "replay few or no PCIe packets"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        replays = answer(host, part, part.pcie_replays, REPLAYS)
        if not replays:
            return None
        minutes = max(known(host.of(Pcie), host.of(Pcie).uptime_s, UPTIME) / 60, 1.0)
        if replays / minutes <= MOST_PER_MINUTE:
            return None
        what = f"{replays:,} PCIe replays, at least {replays / minutes:.0f} a minute"
        return Fault(part.place, what, f"NVML PCIe replays: {replays}; {UPTIME}: {minutes:.0f} minutes")
