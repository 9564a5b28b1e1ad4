from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._pcie_devices import PcieCheck, devices
from clusterbench.facts import Host, known
from clusterbench.facts.pcie import CONFIG, Device, Pcie
from clusterbench.facts.virtualization import PROGRAM, Virtualization

HARMFUL = frozenset({"SrcValid", "ReqRedir", "CmpltRedir"})
"""Controls of a bridge, by lspci's names, that send traffic up to the CPU."""


class Acs(PcieCheck):
    """PCIe bridges above GPUs and RDMA cards that send traffic between these up to the CPU.

    Access control services (ACS) redirect it: GPUs and network cards then reach each other at a part of the rate, or
    hang. NCCL's user guide (troubleshooting, GPU Direct) asks for ``SrcValid-`` on every bridge of a bare-metal host. A
    virtual machine needs ACS: it is a note there, and address translation services (ATS) make up for it.
    """

    number = 11
    question = "Do PCIe bridges let GPUs and network cards talk directly?"
    severity = "error"
    source = CONFIG
    right = "root"
    confirm = "lspci -vvv | grep -i acsctl"
    fix = "turn ACS (often with VT-d or IOMMU) off in the BIOS, or with setpci on each bridge after every boot"
    parts = "PCIe bridges above GPUs and network cards"
    in_order = "redirect nothing (ACS off)"

    def parts_of(self, host: Host) -> Sequence[Device]:
        return devices(host, "bridge")

    def fault(self, host: Host, part: Device) -> Fault | None:
        on = known(host.of(Pcie), part.acs, CONFIG)
        if not HARMFUL & {*on}:
            return None
        below = [each.place for each in devices(host, "gpu", "nic") if each.above == part.address]
        where = f"{part.place}{' above ' + ', '.join(below) if below else ''}"
        evidence = f"{part.path}/config: ACSCtl {' '.join(f'{name}+' for name in on)}"
        virtualization = host.of(Virtualization)
        if virtualization.is_virtual:
            what = "has access control services (ACS) on, as a virtual machine needs"
            return Fault(where, what, f"{evidence}; {PROGRAM}: {virtualization.machine}", severity="note")
        return Fault(
            where, "sends traffic between devices up to the CPU: access control services (ACS) are on", evidence
        )
