from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

FOLDER = "/sys/class/infiniband"


@dataclass(frozen=True)
class Gid:
    """An address of a port: ``kind`` is ``IB/RoCE v1`` or ``RoCE v2``, ``interface`` the network device behind it."""

    index: int
    address: str
    kind: str | None
    interface: str | None


@dataclass(frozen=True)
class Port:
    """A port in the kernel's words: ``4: ACTIVE``, ``5: LinkUp``, ``400 Gb/sec (4X NDR)``, ``InfiniBand``.

    ``counters`` and ``hw_counters`` are numbers since the driver was loaded or they were reset.
    """

    device: str
    number: int
    state: str | None
    physical_state: str | None
    rate: str | None
    link_layer: str | None
    lid: int | None
    subnet_manager_lid: int | None
    gids: tuple[Gid, ...]
    counters: Mapping[str, int]
    hw_counters: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.device} port {self.number}"

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.device}/ports/{self.number}"


@dataclass(frozen=True)
class Device:
    """An RDMA device; ``node_type`` tells InfiniBand and RoCE (``1: CA``) from iWARP (``4: RNIC``) and EFA.

    ``driver`` is the kernel module of its PCIe function, ``interfaces`` its network devices.
    """

    name: str
    address: str | None
    node_type: str | None
    firmware: str | None
    hca_type: str | None
    board: str | None
    numa_node: int | None
    driver: str | None
    interfaces: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Infiniband(Facts):
    """RDMA devices of any kind (InfiniBand, RoCE, iWARP, EFA) with their ports; none where the host has none."""

    devices: tuple[Device, ...]
    ports: tuple[Port, ...]

    @classmethod
    def read(cls, files: Files) -> Self:
        names = files.names(FOLDER)
        devices = tuple(_device(files, name) for name in names)
        ports = tuple(
            _port(files, name, int(number))
            for name in names
            for number in files.names(f"{FOLDER}/{name}/ports")
            if number.isdecimal()
        )
        return cls(devices=devices, ports=ports, unread=files.unread)


def _device(files: Files, name: str) -> Device:
    folder = f"{FOLDER}/{name}"
    target, driver = (files.link(f"{folder}/device{part}") for part in ("", "/driver"))
    return Device(
        name=name,
        address=target,
        node_type=files.text(f"{folder}/node_type", optional=True),
        firmware=files.text(f"{folder}/fw_ver", optional=True),
        hca_type=files.text(f"{folder}/hca_type", optional=True),
        board=files.text(f"{folder}/board_id", optional=True),
        numa_node=files.number(f"{folder}/device/numa_node", optional=True),
        driver=driver,
        interfaces=tuple(files.names(f"{folder}/device/net")),
    )


def _port(files: Files, device: str, number: int) -> Port:
    folder = f"{FOLDER}/{device}/ports/{number}"
    return Port(
        device=device,
        number=number,
        state=files.text(f"{folder}/state"),
        physical_state=files.text(f"{folder}/phys_state"),
        rate=files.text(f"{folder}/rate"),
        link_layer=files.text(f"{folder}/link_layer"),
        lid=files.number(f"{folder}/lid", optional=True),
        subnet_manager_lid=files.number(f"{folder}/sm_lid", optional=True),
        gids=_gids(files, folder),
        counters=_counters(files, f"{folder}/counters"),
        hw_counters=_counters(files, f"{folder}/hw_counters"),
    )


def _gids(files: Files, folder: str) -> tuple[Gid, ...]:
    """Entries that are in use: the table has 256, most of them zero."""
    gids = []
    for index in sorted(int(name) for name in files.names(f"{folder}/gids") if name.isdecimal()):
        address = files.text(f"{folder}/gids/{index}", optional=True)
        if address and address.strip("0:"):
            kind = files.text(f"{folder}/gid_attrs/types/{index}", optional=True)
            interface = files.text(f"{folder}/gid_attrs/ndevs/{index}", optional=True)
            gids.append(Gid(index, address, kind, interface))
    return tuple(gids)


def _counters(files: Files, folder: str) -> dict[str, int]:
    counted = {name: files.number(f"{folder}/{name}", optional=True) for name in files.names(folder)}
    return {name: value for name, value in counted.items() if value is not None}
