"""``ibstat``: RDMA devices and their ports."""

from __future__ import annotations

from dataclasses import replace

from clusterbench.doctor import Found, NotJudged
from clusterbench.doctor.readers._ports import OF_PORTS, device_of, odd_layers, port_of
from clusterbench.doctor.said import HostText, Said
from clusterbench.facts.infiniband import Infiniband
from clusterbench.tools import ibstat

_STATES = {"Active": "4: ACTIVE", "Down": "1: DOWN", "Initializing": "2: INIT", "Armed": "3: ARMED"}
_PHYSICAL = {"LinkUp": "5: LinkUp", "Polling": "2: Polling", "Disabled": "3: Disabled", "Sleep": "1: Sleep"}


class IbstatPorts(HostText):
    """Ports for the checks of hosts, and a device at which ibstat itself failed."""

    kind = "ibstat"

    def holds(self, text: str) -> bool:
        return ibstat.is_ibstat(text)

    def read(self, text: str, name: str) -> Said:
        listed = ibstat.parse(text)
        devices = tuple(device_of(each.name, each.firmware, each.model, None) for each in listed.devices)
        ports = tuple(
            replace(
                port_of(
                    device.name,
                    port.number,
                    _STATES.get(port.state, f"0: {port.state}"),
                    _PHYSICAL.get(port.physical_state, f"0: {port.physical_state}"),
                    None if port.rate_gb is None else f"{port.rate_gb:g} Gb/sec",
                    port.link_layer,
                ),
                lid=port.lid,
                subnet_manager_lid=port.subnet_manager_lid,
            )
            for device in listed.devices
            for port in device.ports
        )
        found: tuple[Found, ...] = ()
        if listed.failure:
            behind = f"behind {listed.devices[-1].name}" if devices else "at the first device"
            what = f"ibstat failed {behind}: a device is there that cannot be read"
            evidence, confirm = f"{name}: {listed.failure}", "ls /sys/class/infiniband; dmesg -T | grep mlx5"
            fix = "reload the driver; reset or replace the card"
            found = (Found("rdma_device_failed", "error", (name,), "", what, evidence, confirm, fix),)
        if not devices:
            return Said(found=found, hosts=(name,))
        facts = Infiniband(devices=devices, ports=ports)
        not_judged = tuple(odd_layers(facts, name))
        if not listed.cut:
            return Said((facts,), OF_PORTS, found, not_judged=not_judged)
        unknown = NotJudged("ibstat", (name,), f"the text ends within {listed.cut}", "the whole output")
        checks_of_all = tuple(check for check in OF_PORTS if check != "rdma_device_count")
        return Said((facts,), checks_of_all, found, not_judged=(*not_judged, unknown))
