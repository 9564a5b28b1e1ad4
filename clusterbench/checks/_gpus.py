"""What checks of NVIDIA GPUs have in common: which there are, how they are named, and what each check needs of NVML."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from clusterbench.checks import Fault, PartsCheck
from clusterbench.checks._training_node import AMD, gpu_cards
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.gpus import BUS, NVML, Gpu, Gpus

Value = TypeVar("Value")


def gpus_of(host: Host) -> tuple[Gpu, ...]:
    """The NVIDIA GPUs of a host; none where its PCIe bus shows none.

    Raises
    ------
    NotKnown
        If the driver named none and the bus shows some, or there is no bus to look at.
    """
    facts = host.of(Gpus)
    if facts.gpus or facts.on_bus == ():
        return facts.gpus
    if facts.on_bus is None:
        raise NotKnown(f"{NVML} {facts.unread.get(NVML, 'names no GPU')}, and {BUS} is not there", "the NVIDIA driver")
    why = facts.unread.get(NVML, "names no GPU that this process may use")
    raise NotKnown(f"{NVML} {why}", "the NVIDIA driver, and permission to use the GPUs")


def judged_by_nvml(host: Host) -> tuple[Gpu, ...]:
    """The NVIDIA GPUs of a host, for what would be asked of AMD's as well.

    Raises
    ------
    NotKnown
        As :func:`gpus_of`, and of a host whose GPUs are AMD's.
    """
    gpus = gpus_of(host)
    if not gpus and gpu_cards(host, AMD):
        raise NotKnown("NVML does not know the GPUs of AMD here", "a collector of AMD SMI, which clusterbench lacks")
    return gpus


def answer(host: Host, gpu: Gpu, value: Value | None, function: str) -> Value:
    """What NVML said of a GPU.

    Raises
    ------
    NotKnown
        If it said nothing, with the reason.
    """
    if gpu.error is not None:
        raise NotKnown(f"{gpu.place}: {gpu.error}", "a GPU that answers")
    return known(host.of(Gpus), value, function)


def is_on_pcie(gpu: Gpu) -> bool:
    """Whether PCIe is its way to the host; of Grace superchips (GH200, GB200, GB300) it is C2C."""
    return not re.match(r"NVIDIA G[HB]\d", gpu.name or "")


class GpuCheck(PartsCheck[Gpu]):
    """A check of each NVIDIA GPU.

    ``asks`` is the function of NVML that it cannot do without: boards that do not support it are left out.
    """

    asks: ClassVar[str]
    parts = "NVIDIA GPUs"

    def parts_of(self, host: Host) -> Sequence[Gpu]:
        return [gpu for gpu in judged_by_nvml(host) if self.asks not in gpu.lacks]

    @abstractmethod
    def fault(self, host: Host, part: Gpu) -> Fault | None: ...
