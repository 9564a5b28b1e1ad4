from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._ports import PortCheck
from clusterbench.checks._training import training
from clusterbench.facts import Host, known
from clusterbench.facts.infiniband import Infiniband, Port


class PortState(PortCheck):
    """Ports of RDMA devices that are not ACTIVE, or whose link is not up.

    A port that training does not use (``NCCL_IB_HCA``, or another kind of card than most) is a note: storage ports that
    no cable reaches are common. A training port that is not cabled on purpose can be accepted by name. Virtual
    functions that this host keeps for virtual machines are left out.
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
        return host.of(Infiniband).own_ports

    def fault(self, host: Host, part: Port) -> Fault | None:
        facts = host.of(Infiniband)
        state = known(facts, part.state, f"{part.path}/state")
        physical = known(facts, part.physical_state, f"{part.path}/phys_state")
        if state.endswith("ACTIVE") and physical.endswith("LinkUp"):
            return None
        words = state.partition(": ")[2] or state
        what = f"is {words}, its link {physical.partition(': ')[2] or physical}"
        evidence = f"{part.path}/state: {state}; phys_state: {physical}"
        if part in training(host).ports:
            return Fault(part.name, what, evidence)
        return Fault(part.name, f"{what}; training does not use it", evidence, severity="note")
