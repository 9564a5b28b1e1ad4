"""What the first rank of each host records of how its GPUs are joined. Neither torch nor NVIDIA's library is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clusterbench.run_folder.passes import Pass
from clusterbench.tools.nvidia_topo import Topology


@dataclass(frozen=True)
class NvLink:
    """One link of one GPU at one moment; None where the driver does not say.

    Attributes
    ----------
    gpu
        What CUDA calls it in a process with this environment.
    version
        Of the protocol, such as ``4.0``.
    errors
        Counters since the driver was loaded, by the names of :data:`clusterbench.engine.nvlink.ERRORS`; those the
        driver lacks are left out.
    sent_bytes, received_bytes
        Payload since the driver was loaded.
    """

    gpu: int
    link: int
    is_active: bool | None
    version: str | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    sent_bytes: int | None = None
    received_bytes: int | None = None


@dataclass(frozen=True)
class NvLinkReadings:
    """Every NVLink of a host before, during and after copies between its GPUs; ``reason`` says why there is none."""

    before: Sequence[NvLink] = ()
    during: Sequence[NvLink] = ()
    after: Sequence[NvLink] = ()
    reason: str | None = None


@dataclass(frozen=True)
class HostTopology:
    """How the devices of a host are joined, by nvidia-smi.

    ``nvlinks`` counts the active ones by GPU. What is not known is left out, and ``no_matrix`` or ``no_nvlinks`` says
    why.
    """

    matrix: Topology | None = None
    nvlinks: Mapping[str, int] = field(default_factory=dict)
    no_matrix: str = ""
    no_nvlinks: str = ""


NVLINK: Pass[NvLinkReadings] = Pass("nvlink", NvLinkReadings)
"""Empty on all ranks of a host but its first."""

TOPOLOGY: Pass[HostTopology] = Pass("topology", HostTopology)
"""Empty on all ranks of a host but its first."""


def grown(before: Sequence[NvLink], after: Sequence[NvLink]) -> dict[tuple[int, int], dict[str, int]]:
    """By how much each error counter grew, by GPU and link; a counter that either reading lacks is left out.

    >>> grown([NvLink(0, 3, True, errors={"replay": 5})], [NvLink(0, 3, True, errors={"replay": 7, "recovery": 1})])
    {(0, 3): {'replay': 2}}
    """
    first = {(link.gpu, link.link): link.errors for link in before}
    return {
        (link.gpu, link.link): {
            name: count - first[link.gpu, link.link][name]
            for name, count in link.errors.items()
            if name in first[link.gpu, link.link]
        }
        for link in after
        if (link.gpu, link.link) in first
    }
