"""``ibstatus``: RDMA ports."""

from __future__ import annotations

from dataclasses import replace

from clusterbench.doctor.readers._ports import OF_LINKS, device_of, port_of
from clusterbench.doctor.said import HostText, Said
from clusterbench.facts.infiniband import Infiniband
from clusterbench.tools import ibstatus


class IbstatusPorts(HostText):
    """Ports for the checks of hosts, without models and firmware."""

    kind = "ibstatus"

    def holds(self, text: str) -> bool:
        return "Infiniband device '" in text and "phys state" in text

    def read(self, text: str, name: str) -> Said:
        listed = ibstatus.parse(text)
        # A device without a model is taken for one of software; ibstatus names none.
        devices = tuple(device_of(device, None, "", None) for device in dict.fromkeys(port.device for port in listed))
        ports = tuple(
            replace(
                port_of(port.device, port.number, port.state, port.physical_state, port.rate, port.link_layer),
                lid=port.lid,
                subnet_manager_lid=port.subnet_manager_lid,
            )
            for port in listed
        )
        return Said((Infiniband(devices=devices, ports=ports),), OF_LINKS)
