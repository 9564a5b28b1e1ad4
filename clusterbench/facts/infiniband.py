from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv6Address
from typing import Self

from clusterbench.facts import Facts, Files

FOLDER = "/sys/class/infiniband"
IBV_DEVINFO = "ibv_devinfo"
COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors"),
    *("port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped"),
    *("port_xmit_packets", "port_rcv_packets", "port_xmit_wait"),
)
HW_COUNTERS = (
    *("packet_seq_err", "implied_nak_seq_err", "out_of_sequence", "local_ack_timeout_err", "rnr_nak_retry_err"),
    *("req_transport_retries_exceeded", "out_of_buffer", "roce_adp_retrans", "roce_adp_retrans_to"),
    *("roce_slow_restart", "np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored"),
    *("retrans_pkts", "retrans_timeout_events", "rx_drops"),  # EFA's
)
"""The counters that are kept: of some 50 a port has, those that tell a fault, and packets to hold them against."""
_KIND_OF_DRIVER = {"efa": "EFA", "erdma": "eRDMA"}


@dataclass(frozen=True)
class Gid:
    """An address of a port: ``kind`` is ``IB/RoCE v1`` or ``RoCE v2``, ``interface`` the network device behind it."""

    index: int
    address: str
    kind: str | None
    interface: str | None

    @property
    def is_link_local(self) -> bool:
        """Holds on one link only, ``fe80:...``: the one address of InfiniBand, useless between RoCE networks."""
        return (address := _address(self.address)) is not None and address.is_link_local

    @property
    def ipv4(self) -> str:
        """``10.1.2.3`` where the address stands for an IPv4 one; else empty."""
        address = _address(self.address)
        return str(address.ipv4_mapped) if address and address.ipv4_mapped else ""


@dataclass(frozen=True)
class Port:
    """A port in the kernel's words: ``4: ACTIVE``, ``5: LinkUp``, ``400 Gb/sec (4X NDR)``, ``InfiniBand``.

    ``counters`` and ``hw_counters`` are numbers since the driver was loaded or they were reset, of those named in
    :data:`COUNTERS` and :data:`HW_COUNTERS` that the port has. ``active_mtu_bytes`` is what ``ibv_devinfo`` says.
    """

    device: str
    number: int
    state: str | None
    physical_state: str | None
    rate: str | None
    link_layer: str | None
    lid: int | None
    subnet_manager_lid: int | None
    active_mtu_bytes: int | None
    gids: tuple[Gid, ...]
    counters: Mapping[str, int]
    hw_counters: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.device} port {self.number}"

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.device}/ports/{self.number}"

    @property
    def is_active(self) -> bool:
        return (self.state or "").endswith("ACTIVE")

    @property
    def is_roce(self) -> bool:
        return self.link_layer == "Ethernet"

    @property
    def bits_per_s(self) -> float | None:
        """``4e11`` of ``400 Gb/sec (4X NDR)``."""
        match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", self.rate or "")
        return float(match[1]) * 1e9 if match else None


@dataclass(frozen=True)
class Device:
    """An RDMA device; ``node_type`` is ``1: CA`` of InfiniBand and RoCE, ``4: RNIC`` of iWARP.

    ``driver`` is the kernel module of its PCIe function, ``interfaces`` its network devices. ``physical_function`` is
    the address of the card that it is a virtual function of, where this host shows that.
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
    physical_function: str | None = None

    @property
    def kind(self) -> str:
        """``verbs`` is InfiniBand or RoCE; ``EFA``, ``eRDMA``, ``iWARP``, ``usNIC`` and ``software`` speak otherwise.

        Alibaba's eRDMA calls itself an RNIC, and Amazon's EFA has no node type: both are known by their drivers. What
        belongs to no card and names no model (``rdma_rxe``, ``siw``) is made of software.
        """
        if self.address is None and self.hca_type is None:
            return "software"
        if self.driver in _KIND_OF_DRIVER:
            return _KIND_OF_DRIVER[self.driver]
        words = (self.node_type or "").partition(": ")[2]
        return "usNIC" if words.startswith("usNIC") else "iWARP" if words == "RNIC" else "verbs"


@dataclass(frozen=True, kw_only=True)
class Infiniband(Facts):
    """RDMA devices of any kind (InfiniBand, RoCE, iWARP, EFA) with their ports; none where the host has none."""

    devices: tuple[Device, ...]
    ports: tuple[Port, ...]

    @cached_property
    def own_ports(self) -> tuple[Port, ...]:
        """Without those of virtual functions whose card is here as well: these are for virtual machines."""
        cards = {device.address for device in self.devices}
        given = {device.name for device in self.devices if device.physical_function in cards - {None}}
        return tuple(port for port in self.ports if port.device not in given)

    @classmethod
    def read(cls, files: Files) -> Self:
        names = files.names(FOLDER)
        devices = tuple(_device(files, name) for name in names)
        mtus = active_mtus(files.output(IBV_DEVINFO) or "") if names else {}
        ports = tuple(
            _port(files, name, int(number), mtus.get((name, int(number))))
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
        physical_function=files.link(f"{folder}/device/physfn"),
    )


def active_mtus(printed: str) -> dict[tuple[str, int], int]:
    """The MTU of each port, in bytes, by device and port, of what ``ibv_devinfo`` prints."""
    mtus, device, port = {}, "", 0
    for row in printed.splitlines():
        word, _, value = (part.strip() for part in row.partition(":"))
        if word == "hca_id":
            device = value
        elif word == "port" and value.isdecimal():
            port = int(value)
        elif word == "active_mtu" and (match := re.match(r"\d+", value)):
            mtus[device, port] = int(match[0])
    return mtus


def _address(text: str) -> IPv6Address | None:
    try:
        return IPv6Address(text)
    except ValueError:
        return None


def _port(files: Files, device: str, number: int, active_mtu_bytes: int | None) -> Port:
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
        active_mtu_bytes=active_mtu_bytes,
        gids=_gids(files, folder),
        counters=_counters(files, f"{folder}/counters", COUNTERS),
        hw_counters=_counters(files, f"{folder}/hw_counters", HW_COUNTERS),
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


def _counters(files: Files, folder: str, names: tuple[str, ...]) -> dict[str, int]:
    counted = {name: files.number(f"{folder}/{name}", optional=True) for name in names}
    return {name: value for name, value in counted.items() if value is not None}
