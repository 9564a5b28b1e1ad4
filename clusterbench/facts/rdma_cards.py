from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

FOLDER = "/sys/bus/pci/devices"
_FABRICS = ("0x0207", "0x0208")
_NETWORK = "0x02"
_MODULES = {
    "0x15b3:0x100": "mlx4_ib",
    "0x15b3": "mlx5_ib",
    "0x1d0f:0xefa": "efa",
    "0x1ded:0x107f": "erdma",
    "0x8086:0x24f": "hfi1",
}
"""The kernel module that makes RDMA devices of a maker's cards, by the beginning of vendor and device.

Cards that do RDMA only where somebody wants it (Broadcom, Intel E800) are not among them.
"""


@dataclass(frozen=True)
class RdmaCard:
    """A function of the PCIe bus that can do RDMA, whatever the kernel made of it.

    Attributes
    ----------
    id
        ``15b3:1021``.
    is_fabric
        Whether it is InfiniBand or Omni-Path by its class: a card that does nothing else.
    module
        The kernel module that makes its RDMA device: ``mlx5_ib``.
    driver
        What it is bound to: ``mlx5_core``; ``vfio-pci`` of one that a virtual machine has; None where it is bound to
        nothing.
    is_virtual
        Whether it is a virtual function of another one.
    """

    address: str
    id: str
    is_fabric: bool
    module: str
    driver: str | None
    is_virtual: bool

    @property
    def slot(self) -> str:
        """Without the function: ports of one card, which a bond may join to one RDMA device."""
        return self.address.rpartition(".")[0]


@dataclass(frozen=True, kw_only=True)
class RdmaCards(Facts):
    """Network cards for RDMA that the PCIe bus shows; None where there is no such bus to look at."""

    cards: tuple[RdmaCard, ...] | None

    @classmethod
    def read(cls, files: Files) -> Self:
        if not files.exists(FOLDER):
            files.unread[FOLDER] = "is not there"
            return cls(cards=None, unread=files.unread)
        every = (_card(files, address) for address in files.names(FOLDER))
        return cls(cards=tuple(card for card in every if card), unread=files.unread)


def _card(files: Files, address: str) -> RdmaCard | None:
    folder = f"{FOLDER}/{address}"
    kind = files.text(f"{folder}/class", optional=True) or ""
    if not kind.startswith(_NETWORK):
        return None
    vendor, device = (files.text(f"{folder}/{name}", optional=True) or "" for name in ("vendor", "device"))
    module = next((module for start, module in _MODULES.items() if f"{vendor}:{device}".startswith(start)), None)
    if module is None:
        return None
    return RdmaCard(
        address=address,
        id=f"{vendor}:{device}".replace("0x", ""),
        is_fabric=kind.startswith(_FABRICS) or module in ("efa", "erdma"),
        module=module,
        driver=files.link(f"{folder}/driver"),
        is_virtual=files.exists(f"{folder}/physfn"),
    )
