from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault, PartsCheck
from clusterbench.facts import Host, known
from clusterbench.facts.infiniband import Infiniband, Port


class PortState(PartsCheck[Port]):
    """Ports of RDMA devices that are not ACTIVE, or whose link is not up.

    A port that no cable reaches (``Disabled``, or polling on a device whose kind is used nowhere else) cannot be told
    from one whose cable broke: it is found all the same, and can be accepted by name.
    """

    number = 41
    question = "Is every RDMA port ACTIVE, with its link up?"
    severity = "error"
    source = "/sys/class/infiniband/*/ports/*/state, phys_state"
    confirm = "ibstat"
    fix = "reseat or replace cable and transceiver; look at the switch's port; for INIT: is a subnet manager running?"
    parts = "RDMA ports"
    in_order = "ACTIVE"

    def parts_of(self, host: Host) -> Sequence[Port]:
        return host.of(Infiniband).ports

    def fault(self, host: Host, part: Port) -> Fault | None:
        facts = host.of(Infiniband)
        state = known(facts, part.state, f"{part.path}/state")
        physical = known(facts, part.physical_state, f"{part.path}/phys_state")
        if state.endswith("ACTIVE") and physical.endswith("LinkUp"):
            return None
        words = state.partition(": ")[2] or state
        evidence = f"{part.path}/state: {state}; phys_state: {physical}"
        return Fault(part.name, f"is {words}, its link {physical.partition(': ')[2] or physical}", evidence)
