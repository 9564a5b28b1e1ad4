"""``ibv_devinfo``, and ``ibv_devinfo -v``: RDMA devices and their ports."""

from __future__ import annotations

from dataclasses import replace

from clusterbench.doctor.readers._ports import OF_PORTS, OF_VERBS, device_of, odd_layers, port_of
from clusterbench.doctor.said import HostText, Said
from clusterbench.facts.infiniband import Infiniband
from clusterbench.tools import ibv_devinfo


class IbvDevinfo(HostText):
    """Without ``-v`` it says nothing of the link, so that an active port is taken for one whose link is up."""

    kind = "ibv_devinfo"

    def holds(self, text: str) -> bool:
        return ibv_devinfo.is_devinfo(text)

    def read(self, text: str, name: str) -> Said:
        listed = ibv_devinfo.parse(text)
        devices = tuple(device_of(each.name, each.firmware, each.model, each.board) for each in listed)
        ports = tuple(
            replace(
                port_of(
                    device.name,
                    port.number,
                    f"0: {port.state.split()[0].removeprefix('PORT_')}",
                    _link(port),
                    None if port.rate_gb is None else f"{port.rate_gb:g} Gb/sec",
                    port.link_layer,
                ),
                lid=port.lid,
                subnet_manager_lid=port.subnet_manager_lid,
                active_mtu_bytes=port.active_mtu_bytes,
            )
            for device in listed
            for port in device.ports
        )
        tells_rates = bool(ports) and all(port.rate is not None for port in ports)
        facts, asked = Infiniband(devices=devices, ports=ports), OF_PORTS if tells_rates else OF_VERBS
        return Said((facts,), asked, not_judged=tuple(odd_layers(facts, name)))


def _link(port: ibv_devinfo.DevinfoPort) -> str:
    if port.physical_state is None:
        return "5: LinkUp" if "ACTIVE" in port.state else "0: state is not said"
    return "5: LinkUp" if port.physical_state.startswith("LINK_UP") else f"0: {port.physical_state}"
