from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from clusterbench.checks import Fault, HostCheck, Judged, Unknown
from clusterbench.checks._training_node import gpu_cards, num_gpus
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.processor import STATUS, Processor
from clusterbench.host_facts import cpus, mappings
from clusterbench.words import few, listed, plural


class NumaAffinity(HostCheck):
    """CPUs that a process may use, against the NUMA nodes of the GPUs.

    A rank whose CPUs are on the other socket reaches its GPU and card through the link between the sockets. Where the
    process may use CPUs of no GPU's node it is a warning. Where it may use those of some it is a note: a launcher that
    binds ranks one by one does that, and a single agent for all GPUs then runs half of its ranks far away. Source:
    NCCL's user guide (``NCCL_IGNORE_CPU_AFFINITY``).
    """

    number = 68
    question = "May processes use CPUs that are near the GPUs?"
    severity = "warning"
    source = f"{STATUS}, NUMA nodes of CPUs and GPUs"
    confirm = "taskset -pc $$; nvidia-smi topo -m"
    fix = "srun --cpu-bind or --gpu-bind=closest, mpirun --map-by numa --bind-to numa, or numactl by local rank"

    def judge(self, host: Host) -> Judged:
        if not num_gpus(host):
            return Judged(not_applicable="no GPU here")
        gpus = _gpus_by_node(host)
        usable = known((facts := host.of(Processor)), facts.usable, STATUS)
        nodes = {node.get("node"): cpus(node.get("cpus")) for node in mappings(host.environment.get("numa_nodes"))}
        if len(nodes) == 1:
            return Judged(not_applicable="one NUMA node, to which all CPUs and GPUs belong")
        unplaced = [address for node, of_node in gpus.items() if not nodes.get(node) for address in of_node]
        far = {node: of_node for node, of_node in gpus.items() if nodes.get(node) and not nodes[node] & cpus(usable)}
        near = [address for node, of_node in gpus.items() if nodes.get(node) and node not in far for address in of_node]
        faults = (_fault(far, near, usable),) if far else ()
        why = f"no NUMA node is said of {plural(len(unplaced), 'GPU')}: {few(unplaced)}"
        unknown = (Unknown(why, "a firmware or hypervisor that says it"),) if unplaced else ()
        healthy = f"CPUs near {plural(len(near), 'GPU')} may be used" if near and not far else ""
        return Judged(faults, healthy, unknown)


def _gpus_by_node(host: Host) -> Mapping[int, Sequence[str]]:
    if not (cards := gpu_cards(host)):
        raise NotKnown("PCIe shows none of the GPUs", "a host that shows /sys/bus/pci/devices")
    nodes = defaultdict(list)
    for card in cards:
        node = card.get("numa_node")
        nodes[node if isinstance(node, int) else -1].append(str(card.get("address")))
    return nodes


def _fault(far: Mapping[int, Sequence[str]], near: Sequence[str], usable: str) -> Fault:
    addresses = [address for of_node in far.values() for address in of_node]
    where = listed("NUMA node", sorted(far))
    verb = "has" if len(far) == 1 else "have"
    what = f"{where} {verb} {plural(len(addresses), 'GPU')} and no CPU that may be used ({usable})"
    evidence = f"{STATUS}: Cpus_allowed_list {usable}; GPUs {few(addresses, 8)}"
    if not near:
        return Fault("", what, evidence)
    return Fault("", f"{what}: right for ranks of the other {plural(len(near), 'GPU')} only", evidence, severity="note")
