from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer, is_on_pcie, judged_by_nvml
from clusterbench.facts import Host
from clusterbench.facts.gpus import MEMORY, Gpu

MOST_HELD_BYTES = 2**30
"""What a driver shows as used on an idle GPU, beside what it keeps for itself, is some MiB; a context of CUDA some
hundred."""


class GpuMemoryHeld(GpuCheck):
    """GPUs whose memory is in use though NVML lists no process there.

    Its process has ended and the driver did not take notice, or is one of another container, which is not listed.
    More than 1 GiB is an error: the case that needs all of the memory fails for want of it. Where a process is listed,
    ``foreign_processes`` names it. The memory of Grace superchips is the host's as well, and holds its pages; a GPU
    that is cut into instances holds theirs: both are left out.

    Source: PyTorch, Frequently Asked Questions, "My GPU memory isn't freed properly".
    """

    number = 157
    question = "Is the memory of every GPU free, but for that of processes that are listed?"
    severity = "error"
    source = "NVML, memory used and compute processes"
    confirm = "nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv; fuser -v /dev/nvidia*"
    fix = "end what holds it (fuser -v /dev/nvidia* as root, outside of containers); else nvidia-smi --gpu-reset"
    asks = MEMORY
    parts = "NVIDIA GPUs with memory of their own"
    in_order = "hold nothing that belongs to no process"

    def parts_of(self, host: Host) -> Sequence[Gpu]:
        gpus = judged_by_nvml(host)
        return [
            gpu for gpu in gpus if MEMORY not in gpu.lacks and is_on_pcie(gpu) and not gpu.mig and not gpu.processes
        ]

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        used = answer(host, part, part.memory_used_bytes, MEMORY)
        if used <= MOST_HELD_BYTES or part.processes:
            return None
        of = f" of {part.memory_bytes / 2**30:.1f}" if part.memory_bytes else ""
        what = f"{used / 2**30:.1f}{of} GiB of its memory are in use by no process that is listed"
        return Fault(part.place, what, f"NVML memory used: {used:,} B; compute processes: none")
