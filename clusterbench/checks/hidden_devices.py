from __future__ import annotations

from collections.abc import Iterator

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, num_gpus, trains
from clusterbench.facts import Host
from clusterbench.facts.device_files import NODES, PCI, DeviceFiles
from clusterbench.facts.virtualization import Virtualization
from clusterbench.words import plural


class HiddenDevices(HostCheck):
    """Parts of ``/sys`` and ``/dev`` that a container does not show, though the devices are there.

    NCCL reads the topology from ``/sys`` and takes an even one where it finds none (NCCL's user guide; nccl-tests issue
    182: "could not read .../max_link_speed"). RDMA devices without a file in ``/dev/infiniband``: ``verbs_files``.
    """

    number = 76
    question = "Does a process here see all that NCCL reads of PCIe, NUMA nodes and GPUs?"
    severity = "warning"
    source = f"{PCI}, {NODES}, /dev/nvidia*"
    confirm = f"ls {PCI} {NODES} /dev/nvidia*"
    fix = "docker: --gpus all, and /sys not masked; Kubernetes: device plug-ins; else: driver"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        facts = host.of(DeviceFiles)
        container = host.of(Virtualization).container
        faults = (*_topology(host, facts), *_gpus(facts, container not in (None, "none")))
        nodes = "NUMA nodes" if facts.shows_numa_nodes else "a kernel without NUMA nodes"
        return Judged(faults, "" if faults else f"shown: {plural(facts.num_pci, 'PCIe function')}, {nodes}")


def _topology(host: Host, facts: DeviceFiles) -> Iterator[Fault]:
    if not facts.num_pci:
        what = f"PCIe is hidden: {plural(num_gpus(host), 'GPU')} here, whose place NCCL cannot read"
        yield Fault("", what, f"{PCI}: empty or not there")
    if facts.knows_numa and not facts.shows_numa_nodes:
        yield Fault("", "NUMA nodes are hidden, and threads cannot be put near GPUs", f"{NODES}: not there")


def _gpus(facts: DeviceFiles, in_container: bool) -> Iterator[Fault]:
    numbered = [name for name in facts.nvidia if name[-1].isdecimal()]
    if facts.num_nvidia_on_pci and not numbered:
        what = f"PCIe shows {plural(facts.num_nvidia_on_pci, 'GPU')} of NVIDIA, and /dev has no file for any"
        yield Fault("", what, f"/dev: {', '.join(facts.nvidia) or 'no nvidia*'}")
    # Outside of containers the driver makes it when the first program asks for it.
    elif numbered and in_container and "nvidia-uvm" not in facts.nvidia:
        what = "/dev/nvidia-uvm is not in the container, and CUDA cannot start without it"
        yield Fault("", what, f"/dev: {', '.join(facts.nvidia)}")
