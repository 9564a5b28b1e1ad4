from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._interfaces import packet_bytes
from clusterbench.checks._ports import PortCheck
from clusterbench.checks._training import active_verbs_ports
from clusterbench.facts import Host
from clusterbench.facts.infiniband import Port

LARGEST_BYTES = 4096


class RdmaMtu(PortCheck):
    """Training ports that carry packets of less than 4096 bytes, the largest of InfiniBand and RoCE.

    RoCE takes the largest of 1024, 2048 and 4096 that fits the interface with its headers: 1024 of 1500, and 4096 from
    4200 on (NVIDIA, *MTU considerations for RoCE based applications*); clusters use 9000. Where ``ibv_devinfo`` is
    absent, the interface's MTU tells it. On InfiniBand the subnet manager's partition gives it.
    """

    number = 50
    question = "Does every training port carry packets of 4096 bytes?"
    severity = "warning"
    source = "ibv_devinfo; of RoCE /sys/class/net/*/mtu"
    programs = "ibv_devinfo"
    confirm = "ibv_devinfo | grep -E 'hca_id|active_mtu'; ip link"
    fix = (
        "RoCE: 'ip link set DEVICE mtu 9000' here and on the switch; InfiniBand: the subnet manager's partition (mtu=5)"
    )
    parts = "active training ports"
    in_order = f"with packets of {LARGEST_BYTES} bytes"

    def parts_of(self, host: Host) -> Sequence[Port]:
        return active_verbs_ports(host)

    def fault(self, host: Host, part: Port) -> Fault | None:
        mtu, evidence = packet_bytes(host, part)
        if mtu >= LARGEST_BYTES:
            return None
        reason = "its interface's MTU allows no more" if part.is_roce else "its partition allows no more"
        return Fault(part.name, f"carries packets of {mtu} bytes, and could of {LARGEST_BYTES}: {reason}", evidence)
