"""Whether a host is one that trains: what slows training says nothing of a laptop or a login node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import Infiniband
from clusterbench.host_facts import mappings

NVIDIA, AMD = "10de:", "1002:"
NO_TRAINING_NODE = "neither a GPU nor an RDMA device here"


def trains(host: Host) -> bool:
    """Whether a host has an NVIDIA or AMD GPU or an RDMA device that is no software.

    Raises
    ------
    NotKnown
        If it was not recorded which it has.
    """
    return has_rdma(host) or num_gpus(host) > 0


def has_rdma(host: Host) -> bool:
    """Whether a host has an RDMA device that is no software."""
    return any(device.kind != "software" for device in host.of(Infiniband).devices)


def num_gpus(host: Host) -> int:
    """Those that a job may use; of a driver that says nothing, those on PCIe.

    Raises
    ------
    NotKnown
        If neither was recorded.
    """
    if not isinstance(host.environment.get("gpus"), list):
        raise NotKnown("nothing was recorded of GPUs", "a run of this version of clusterbench")
    return len(host.environment["gpus"]) or len(gpu_cards(host))


def gpu_cards(host: Host, *makers: str) -> list[Mapping[str, Any]]:
    """GPUs as PCIe shows them, with ``address`` and ``numa_node``: of these makers, or NVIDIA's and AMD's."""
    return [
        card
        for card in mappings(host.environment.get("pcie"))
        if card.get("kind") in ("display", "accelerator") and str(card.get("id")).startswith(makers or (NVIDIA, AMD))
    ]


def has_nvidia_gpu(host: Host) -> bool:
    """Whether NVIDIA's driver lists a GPU, or PCIe shows one.

    Raises
    ------
    NotKnown
        If neither was recorded.
    """
    num_gpus(host)
    return bool(host.environment["gpus"]) or bool(gpu_cards(host, NVIDIA))
