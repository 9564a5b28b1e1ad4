from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._ports import PortCheck
from clusterbench.facts import Host, known
from clusterbench.facts.infiniband import Infiniband, Port

_NO_LID = (0, 0xFFFF)


class SubnetManager(PortCheck):
    """InfiniBand ports to which no subnet manager has given an address (LID).

    Only ports whose link is up: one that is down has none either, and is found by its state. 0 and 65535 stand for no
    LID. Source: InfiniBand specification, volume 1, section 4.1.3; NCCL user guide, networking troubleshooting.
    """

    number = 51
    question = "Has a subnet manager given every InfiniBand port an address?"
    severity = "error"
    source = "/sys/class/infiniband/*/ports/*/lid, sm_lid"
    confirm = "sminfo; ibstat | grep -i lid"
    fix = "start a subnet manager: opensm on one host, the switch's own, or UFM; look at its log for this port's GUID"
    parts = "InfiniBand ports with a link"
    in_order = "with an address from a subnet manager"

    def parts_of(self, host: Host) -> Sequence[Port]:
        return [
            port
            for port in host.of(Infiniband).own_ports
            if port.link_layer == "InfiniBand" and (port.physical_state or "").endswith("LinkUp")
        ]

    def fault(self, host: Host, part: Port) -> Fault | None:
        facts = host.of(Infiniband)
        lid = known(facts, part.lid, f"{part.path}/lid")
        manager = known(facts, part.subnet_manager_lid, f"{part.path}/sm_lid")
        evidence = f"{part.path}/lid: {lid}; sm_lid: {manager}"
        if lid in _NO_LID:
            return Fault(part.name, "has no LID: no subnet manager has reached it", evidence)
        if manager in _NO_LID:
            return Fault(part.name, f"has LID {lid}, and no subnet manager any more", evidence)
        return None
