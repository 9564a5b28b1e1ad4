from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, known
from clusterbench.facts.shared_memory import PATH, SharedMemory

LEAST_BYTES = 8 * 2**30
LEAST_FREE_BYTES = 2**30


class SharedMemoryCheck(HostCheck):
    """``/dev/shm``, through which ranks of a host and data loaders pass tensors.

    Below 8 GiB AMD's Primus refuses a node; a container has 64 MiB unless told otherwise. Less than 1 GiB free (our
    bound) is what jobs before leave behind.
    """

    number = 65
    question = "Is there enough shared memory for the ranks of a host?"
    severity = "error"
    source = PATH
    confirm = "df -h /dev/shm; ls -l /dev/shm"
    fix = "docker: --shm-size or --ipc=host; else mount -o remount,size=... /dev/shm; remove files of dead processes"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        facts = host.of(SharedMemory)
        size, free = known(facts, facts.size_bytes, PATH), known(facts, facts.free_bytes, PATH)
        said = f"{_size(size)}, {_size(free)} free"
        if size < LEAST_BYTES:
            what = f"shared memory is {_size(size)}, and NCCL and data loaders need {_size(LEAST_BYTES)}"
            return Judged((Fault("", what, f"{PATH}: {said}"),))
        if free < LEAST_FREE_BYTES:
            what = f"of {_size(size)} of shared memory only {_size(free)} are free"
            return Judged((Fault("", what, f"{PATH}: {said}"),))
        return Judged(healthy=f"shared memory: {said}")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.0f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:,.0f} MiB"
