from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._gpudirect import peer_memory, what_was_read, why_no_dma_buf, why_not_needed
from clusterbench.facts import Host
from clusterbench.facts.modules import DRIVER, KERNEL, Modules


class DmaBuf(HostCheck):
    """DMA-BUF that cannot be used: NVIDIA's closed kernel module, a driver before 515 or a kernel before 5.12.

    With nvidia_peermem loaded it is a note: that is the older way to the same end, and needs MLNX_OFED's or a
    distribution's RDMA modules. Programs that ask for DMA-BUF alone (``ib_write_bw --use_cuda_dmabuf``) fail.

    Source: NVIDIA's GPU Operator documentation, GPUDirect RDMA; linux-rdma/perftest, README and issues 280 and 346.
    """

    number = 5
    question = "Can GPU memory be registered with RDMA devices through DMA-BUF?"
    severity = "error"
    source = f"{DRIVER}, {KERNEL}"
    confirm = "cat /proc/driver/nvidia/version; uname -r; modinfo nvidia | grep license"
    fix = "install NVIDIA's open kernel module (nvidia-open, 515 or later) on kernel 5.12 or later"

    def judge(self, host: Host) -> Judged:
        if why := why_not_needed(host):
            return Judged(not_applicable=why)
        if not (why := why_no_dma_buf(host)):
            modules = host.of(Modules)
            return Judged(healthy=f"NVIDIA's open kernel module {modules.nvidia_version} on kernel {modules.kernel}")
        module = peer_memory(host)
        what = f"DMA-BUF cannot be used: {why}"
        if module:
            return Judged((Fault("", f"{what}; {module} serves instead", what_was_read(host), severity="note"),))
        return Judged((Fault("", what, what_was_read(host)),))
