from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._gpudirect import PEER_MODULES, peer_memory, what_was_read, why_no_dma_buf, why_not_needed
from clusterbench.facts import Host
from clusterbench.facts.modules import FOLDER


class GpudirectRdma(HostCheck):
    """Neither nvidia_peermem (nor its forerunners) nor DMA-BUF: every message between hosts is copied by the CPU's
    memory. NCCL then says ``GPU Direct RDMA Disabled for HCA`` and its channels lack ``/GDRDMA``.

    Source: NVIDIA/nccl, ``src/transport/net_ib/gdr.cc``; NVIDIA's GPU Operator documentation, GPUDirect RDMA.
    """

    number = 3
    question = "Can RDMA devices reach the memory of GPUs?"
    severity = "error"
    source = f"{FOLDER}, /proc/driver/nvidia/version"
    confirm = "lsmod | grep peermem; cat /proc/driver/nvidia/version; uname -r"
    fix = "modprobe nvidia_peermem (and name it in /etc/modules-load.d), or install NVIDIA's open kernel module"

    def judge(self, host: Host) -> Judged:
        if why := why_not_needed(host):
            return Judged(not_applicable=why)
        if module := peer_memory(host):
            return Judged(healthy=f"GPU memory is given to RDMA by {module}")
        if not (why := why_no_dma_buf(host)):
            return Judged(healthy="GPU memory can be given to RDMA by DMA-BUF")
        what = f"RDMA devices cannot reach GPU memory: nvidia_peermem is not loaded, and there is no DMA-BUF: {why}"
        return Judged((Fault("", what, f"{FOLDER}: none of {', '.join(PEER_MODULES)}; {what_was_read(host)}"),))
