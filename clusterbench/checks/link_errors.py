from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._ports import PortCheck
from clusterbench.checks._training import training
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import Infiniband, Port

THRESHOLDS = {
    "symbol_error": 10,
    "link_error_recovery": 10,
    "link_downed": 10,
    "port_rcv_errors": 10,
    "local_link_integrity_errors": 10,
    "excessive_buffer_overrun_errors": 10,
    "port_rcv_remote_physical_errors": 100,
    "port_xmit_discards": 100,
    "VL15_dropped": 100,
}
"""Counts above which a port is reported. Source: linux-rdma/rdma-core, ``infiniband-diags/etc/error_thresholds``."""
_TOLD_AT_ONCE = 10  # of those, the ones of which any is worth knowing


class LinkErrors(PortCheck):
    """Error counters of active RDMA ports, since the driver was loaded or they were reset.

    More than rdma-core's thresholds is a warning; fewer symbol errors, recoveries or losses of the link are a note, and
    so is a port that training does not use. When they were counted is not known: whether they grow, a run shows.
    """

    number = 52
    question = "Are the error counters of RDMA ports low?"
    severity = "warning"
    source = "/sys/class/infiniband/*/ports/*/counters"
    confirm = "perfquery -x; grep . /sys/class/infiniband/*/ports/*/counters/{symbol_error,link_downed}"
    fix = "clean, reseat or replace cable and transceiver, then reset the counters (perfquery -R) and look again"
    parts = "active RDMA ports"
    in_order = "without link errors"

    def parts_of(self, host: Host) -> Sequence[Port]:
        facts = host.of(Infiniband)
        verbs = {device.name for device in facts.devices if device.kind == "verbs"}
        return [port for port in facts.ports if port.is_active and port.device in verbs]

    def fault(self, host: Host, part: Port) -> Fault | None:
        counted = {name: part.counters[name] for name in THRESHOLDS if name in part.counters}
        if not counted:
            raise NotKnown(f"{part.path}/counters shows none of them", "a host that shows them: no virtual function")
        high = [name for name, count in counted.items() if count > THRESHOLDS[name]]
        told = high or [name for name, count in counted.items() if count and THRESHOLDS[name] == _TOLD_AT_ONCE]
        if not told:
            return None
        what = ", ".join(f"{counted[name]:,} {name}" for name in told)
        evidence = "; ".join(f"{part.path}/counters/{name}: {counted[name]}" for name in told)
        if not high:
            return Fault(part.name, f"has counted {what}: few", evidence, severity="note")
        limits = ", ".join(str(THRESHOLDS[name]) for name in told)
        is_ours = part in training(host).ports
        what = f"has counted {what}, and rdma-core reports more than {limits}"
        return Fault(part.name, what, evidence, severity=None if is_ours else "note")
