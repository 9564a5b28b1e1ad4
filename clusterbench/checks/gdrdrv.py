from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._gpudirect import why_not_needed
from clusterbench.facts import Host, known
from clusterbench.facts.devices import GDRDRV, Devices
from clusterbench.facts.modules import FOLDER, Modules

OVERRIDE = "PeerMappingOverride=1"


class Gdrdrv(HostCheck):
    """GDRCopy's driver, by which the CPU writes GPU memory directly: NVSHMEM and DeepEP need it, or the setting
    ``PeerMappingOverride=1`` of NVIDIA's driver, for their low-latency exchange (IBGDA).

    Absent it is a note, since NCCL and most training do without. Loaded and out of reach is a warning: someone meant to
    have it, and a container hides it. Source: NVIDIA/dgxc-benchmarking, ``microbenchmarks/system_info/README.md``.
    """

    number = 10
    question = "Is GDRCopy's driver there, for low-latency exchanges of GPUs with RDMA devices?"
    severity = "warning"
    source = f"{GDRDRV}, {FOLDER}/gdrdrv, /proc/driver/nvidia/params"
    confirm = "ls -l /dev/gdrdrv; lsmod | grep gdrdrv; grep RegistryDwords /proc/driver/nvidia/params"
    fix = "install gdrcopy's kernel module, or give the container /dev/gdrdrv"

    def judge(self, host: Host) -> Judged:
        if why := why_not_needed(host):
            return Judged(not_applicable=why)
        modules, files = host.of(Modules), host.of(Devices).files
        loaded = known(modules, modules.loaded, FOLDER)
        if files.get(GDRDRV):
            return Judged(healthy=f"{GDRDRV} can be opened")
        if OVERRIDE in (modules.nvidia_registry or ""):
            return Judged(healthy=f"{OVERRIDE} stands in for it")
        if GDRDRV in files:
            return Judged((Fault("", f"{GDRDRV} may not be opened by this user", f"{GDRDRV}: no right to write"),))
        if "gdrdrv" in loaded:
            return Judged((Fault("", f"gdrdrv is loaded, and {GDRDRV} is not here", f"{FOLDER}/gdrdrv: loaded"),))
        what = "has no GDRCopy driver: NVSHMEM and DeepEP lack their low-latency exchange"
        return Judged((Fault("", what, f"{GDRDRV}: is not there; {FOLDER}/gdrdrv: is not there", severity="note"),))
