from __future__ import annotations

from collections.abc import Mapping

from clusterbench.checks import AlikeCheck, Trait
from clusterbench.checks._interfaces import packet_bytes
from clusterbench.checks._training import training
from clusterbench.facts import Host


class MtuAlike(AlikeCheck):
    """Packets of training ports that are smaller on some hosts than on others.

    NCCL takes the smaller of both ends, and every ring through that host with it; programs that take their own end's
    (``ib_write_bw -m``) time out.
    """

    number = 120
    question = "Do training ports of one name carry packets of one size on all hosts?"
    severity = "warning"
    source = "ibv_devinfo; of RoCE /sys/class/net/*/mtu"
    programs = "ibv_devinfo"
    confirm = "ibv_devinfo | grep -E 'hca_id|active_mtu'"
    fix = "give the odd hosts the MTU of the others, on interface and switch"

    def traits(self, host: Host) -> Mapping[str, Trait]:
        traits = {}
        for port in training(host).ports:
            if port.is_active:
                mtu, evidence = packet_bytes(host, port)
                traits[f"the packet size of {port.name}"] = Trait(f"{mtu} bytes", evidence, port.name)
        return traits
