"""What checks of ports of RDMA devices have in common: where a port is."""

from __future__ import annotations

from clusterbench.checks import PartsCheck
from clusterbench.facts import Host
from clusterbench.facts.infiniband import Infiniband, Port


class PortCheck(PartsCheck[Port]):
    """A check of each port, whose card has a slot."""

    def slot(self, host: Host, part: Port) -> str:
        devices = host.of(Infiniband).devices
        return next((device.address for device in devices if device.name == part.device and device.address), "")
