from __future__ import annotations

import re

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._gpus import gpus_of
from clusterbench.facts import Host, known
from clusterbench.facts.fabric import IMEX, Fabric
from clusterbench.words import few, plural

_MULTI_NODE = re.compile(r"NVIDIA GB[23]00")


class ImexDomain(HostCheck):
    """Hosts of an NVL72 rack that do not share GPU memory: NCCL then leaves NVLink between them, or fails.

    The domain must be UP and its nodes READY and connected (NVIDIA's IMEX guide; NCCL's user guide, multi-node NVLink).
    """

    number = 35
    question = "Is the IMEX domain of NVLink between hosts up?"
    severity = "error"
    source = IMEX
    programs = "nvidia-imex-ctl"
    confirm = "nvidia-imex-ctl -H -N"
    fix = "systemctl restart nvidia-imex on the nodes named; one driver version, one /etc/nvidia-imex/nodes_config.cfg"

    def judge(self, host: Host) -> Judged:
        if not any(_MULTI_NODE.match(gpu.name or "") for gpu in gpus_of(host)):
            return Judged(not_applicable="no GPU of a multi-node NVLink domain (GB200, GB300) here")
        fabric = host.of(Fabric)
        domain = known(fabric, fabric.imex, IMEX)
        faults = []
        for node in domain.nodes:
            if node.status != "READY":
                faults.append(
                    Fault(f"IMEX node {node.name}", f"is {node.status}", f"{IMEX}: {node.name} {node.status}")
                )
            elif node.broken:
                what = f"is not connected to {plural(len(node.broken), 'node')}: {few(node.broken)}"
                faults.append(Fault(f"IMEX node {node.name}", what, f"{IMEX}: {node.name}: {few(node.broken)}"))
        if domain.status != "UP":
            faults.insert(0, Fault("", f"the IMEX domain is {domain.status}", f"{IMEX}: {domain.status}"))
        healthy = "" if faults else f"the IMEX domain of {plural(len(domain.nodes), 'node')} is UP"
        return Judged(tuple(faults), healthy)
