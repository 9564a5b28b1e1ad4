from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.devices import IMEX_CHANNELS, Devices
from clusterbench.host_facts import mappings

_PRODUCTS = ("GB200", "GB300")


class ImexChannels(HostCheck):
    """IMEX channels on GPUs whose NVLink reaches over hosts (GB200, GB300): without a channel's device file CUDA
    exports no memory to another host, and NCCL ends with ``Cuda failure 800 'operation not permitted'``.

    Source: NVIDIA's IMEX guide, *IMEX channels*; NCCL user guide, troubleshooting.
    """

    number = 36
    question = "May programs here open an IMEX channel?"
    severity = "error"
    source = f"{IMEX_CHANNELS}/channel*"
    confirm = f"ls -l {IMEX_CHANNELS}; grep nvidia-caps-imex /proc/devices"
    fix = (
        "options nvidia NVreg_CreateImexChannel0=1 in /etc/modprobe.d, or nvidia-modprobe -c 0; give a container the "
        "device (in Kubernetes a ComputeDomain)"
    )

    def judge(self, host: Host) -> Judged:
        if host.environment.get("gpus") is None:
            raise NotKnown("nothing was recorded of GPUs", "a run of this version of clusterbench")
        if not any(name in str(gpu.get("name")) for gpu in mappings(host.environment["gpus"]) for name in _PRODUCTS):
            return Judged(not_applicable="no GPU here whose NVLink reaches over hosts")
        files = host.of(Devices).files
        channels = [path for path in files if path.startswith(IMEX_CHANNELS)]
        usable = [path for path in channels if files[path]]
        if usable:
            return Judged(healthy=f"{usable[0]} can be opened")
        if channels:
            what = f"{channels[0]} may not be opened by this user"
            return Judged((Fault("", what, f"{channels[0]}: no right to read and write"),))
        return Judged((Fault("", "has no IMEX channel: NVLink ends at this host", f"{IMEX_CHANNELS}: is not there"),))
