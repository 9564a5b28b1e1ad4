from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files
from clusterbench.facts.infiniband import FOLDER as RDMA

GROUPS = "/sys/kernel/iommu_groups"
_PCI = "/sys/bus/pci/devices"
_GPU_CLASSES = ("0x03", "0x12")
_GPU_MAKERS = ("0x10de", "0x1002")


@dataclass(frozen=True)
class Guarded:
    """A GPU or RDMA device and how the IOMMU treats it: ``identity`` is pass-through, ``DMA`` and ``DMA-FQ`` are not.

    ``kind`` is None where it may not be read.
    """

    address: str
    group: str
    kind: str | None


@dataclass(frozen=True, kw_only=True)
class Iommu(Facts):
    """The IOMMU's groups of GPUs and RDMA devices; ``num_groups`` is 0 where the kernel uses none.

    Source of ``kind``: the kernel's Documentation/ABI/testing/sysfs-kernel-iommu_groups.
    """

    num_groups: int | None
    devices: tuple[Guarded, ...]

    @classmethod
    def read(cls, files: Files) -> Self:
        if not files.exists(GROUPS):
            files.unread[GROUPS] = "is not there"
            return cls(num_groups=None, devices=(), unread=files.unread)
        found = ((address, files.link(f"{_PCI}/{address}/iommu_group")) for address in _addresses(files))
        devices = tuple(
            Guarded(address, group, files.text(f"{GROUPS}/{group}/type")) for address, group in found if group
        )
        return cls(num_groups=len(files.names(GROUPS)), devices=devices, unread=files.unread)


def _addresses(files: Files) -> Sequence[str]:
    """Of GPUs and of cards with an RDMA device; virtual functions of cards that are not used are left out."""
    gpus = [
        address
        for address in files.names(_PCI)
        if (files.text(f"{_PCI}/{address}/class", optional=True) or "").startswith(_GPU_CLASSES)
        and files.text(f"{_PCI}/{address}/vendor", optional=True) in _GPU_MAKERS
    ]
    cards = [files.link(f"{RDMA}/{name}/device") for name in files.names(RDMA)]
    return sorted({*gpus, *filter(None, cards)})
