from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.facts import Host, known
from clusterbench.facts.virtualization import PROGRAM, Virtualization


class Virtualised(HostCheck):
    """A virtual machine: other rules hold for PCIe, and what is slow may lie outside of it.

    Access control services of PCIe (ACS) must be on there and address translation services (ATS) make up for it
    (NCCL's user guide, GPU Direct); NUMA nodes and links are what the hypervisor shows.
    """

    number = 77
    question = "Is this bare metal?"
    severity = "note"
    source = f"{PROGRAM}, /proc/cpuinfo"
    programs = "systemd-detect-virt"
    confirm = PROGRAM
    fix = "nothing to mend; hold its figures against those of the same kind of instance"

    def judge(self, host: Host) -> Judged:
        facts = host.of(Virtualization)
        machine = known(facts, facts.machine, f"{PROGRAM} --vm")
        if not facts.is_virtual:
            return Judged(healthy="bare metal")
        product = f" ({' '.join(filter(None, (facts.maker, facts.product)))})" if facts.maker or facts.product else ""
        evidence = f"{PROGRAM} --vm: {machine}"
        return Judged((Fault("", f"is a virtual machine of {machine}{product}", evidence),))
