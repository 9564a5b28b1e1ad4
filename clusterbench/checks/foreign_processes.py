from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import PROCESSES, Gpu, Process
from clusterbench.words import few

_SERVERS = ("nvidia-cuda-mps-server",)


class ForeignProcesses(GpuCheck):
    """Processes that computed on a GPU before the run had started any of its own: every time measured is shared.

    An MPS server holds a context and computes nothing by itself: that is a note.
    """

    number = 26
    question = "Are all GPUs free of other jobs' processes?"
    severity = "error"
    source = "NVML, compute processes"
    confirm = "nvidia-smi --query-compute-apps=gpu_bus_id,pid,name,used_memory --format=csv"
    fix = "end what an earlier job left behind (its pid is given), or take the host out of the shared queue"
    asks = PROCESSES
    in_order = "have no compute process of others"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        processes = answer(host, part, part.processes, PROCESSES)
        if not processes:
            return None
        foreign = [each for each in processes if each.name not in _SERVERS]
        shown = few([_described(each) for each in foreign or processes])
        evidence = f"NVML compute processes: {shown}"
        if not foreign:
            return Fault(part.place, f"an MPS server holds it: {shown}", evidence, severity="note")
        return Fault(part.place, f"is in use by {shown}", evidence)


def _described(process: Process) -> str:
    memory = "" if process.memory_bytes is None else f", {process.memory_bytes / 2**30:.1f} GiB"
    return f"{process.name or 'a process'} (pid {process.pid}{memory})"
