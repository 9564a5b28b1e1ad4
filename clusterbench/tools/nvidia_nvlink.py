"""``nvidia-smi nvlink -s``: the rate of each NVLink of each GPU, or that it is inactive.

Under a line for each GPU stands one for each link, ``Link 0: 26.562 GB/s`` or ``Link 0: <inactive>``; where none is
active, a sentence of NVML's instead. What other commands print before and behind it is passed over.

GB is 1e9 bytes, in one direction: 26.562 GB/s are 53.125 Gbit/s on four lanes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from clusterbench.errors import ToolError

_GPU = re.compile(r"GPU (\d+): (.+) \(UUID: (\S+)\)")
_LINK = re.compile(r"\s+Link (\d+): (?:(\d+(?:\.\d+)?) GB/s|<inactive>)")
_LISTED = re.compile(r"\s*Link \d+:")
_LEFT_OUT = re.compile(r"\s*(?:\[?\.{2,}\]?|\u2026)\s*")
_NONE = re.compile(r".*all links are inactive.*", re.IGNORECASE)


@dataclass(frozen=True)
class GpuLinks:
    """One GPU's links.

    ``bytes_per_s`` is by link, 0.0 for one that is inactive; it is empty where NVML lists no link because none is
    active. ``is_cut`` where somebody wrote dots for what followed.
    """

    gpu: int
    name: str
    uuid: str
    bytes_per_s: Mapping[int, float]
    is_cut: bool = False

    @property
    def num_active(self) -> int:
        return sum(rate > 0 for rate in self.bytes_per_s.values())

    @property
    def inactive(self) -> list[int]:
        """Numbers of the links that are listed and inactive."""
        return [link for link, rate in self.bytes_per_s.items() if rate == 0]


def is_status(text: str) -> bool:
    """Whether a text names a GPU and one of its links, or says that it has none; ``nvidia-smi -L`` names GPUs only."""
    lines = text.splitlines()
    return any(_GPU.fullmatch(line.strip()) for line in lines) and any(
        _LINK.fullmatch(line.rstrip()) or _NONE.fullmatch(line) for line in lines
    )


def parse(text: str) -> list[GpuLinks]:
    """Every GPU in the order of the text.

    Raises
    ------
    ToolError
        If no GPU is named, one is listed twice, one has neither links nor the sentence that there are none, or a line
        of its block is neither.
    """
    gpus: list[tuple[tuple[int, str, str], dict[int, float]]] = []
    without: set[int] = set()
    cut: set[int] = set()
    is_open = False
    for line in text.splitlines():
        if gpu := _GPU.fullmatch(line.strip()):
            gpus = [(about, links) for about, links in gpus if links or about[0] != int(gpu[1])]  # -L names it alone
            if int(gpu[1]) in [about[0] for about, _ in gpus]:
                raise ToolError(f"nvidia-smi nvlink -s names GPU {gpu[1]} twice: {line.strip()!r}")
            gpus.append(((int(gpu[1]), gpu[2], gpu[3]), {}))
            is_open = True
        elif not line.strip() or not gpus or not (is_open or _LISTED.match(line)):
            continue
        elif is_open and (link := _LINK.fullmatch(line.rstrip())):
            links = gpus[-1][1]
            if int(link[1]) in links:
                raise ToolError(f"nvidia-smi nvlink -s names a link of GPU {gpus[-1][0][0]} twice: {line.strip()!r}")
            links[int(link[1])] = float(link[2]) * 1e9 if link[2] else 0.0
        elif _NONE.fullmatch(line):
            without.add(gpus[-1][0][0])
        elif _LEFT_OUT.fullmatch(line):
            cut.add(gpus[-1][0][0])
        elif not line[0].isspace():
            is_open = False
        else:
            raise ToolError(f"nvidia-smi nvlink -s printed a line that cannot be read: {line.strip()!r}")
    if not gpus:
        raise ToolError(f"nvidia-smi nvlink -s names no GPU: {text.strip()[:200]!r}")
    for (gpu_number, *_), links in gpus:
        if not links and gpu_number not in without:
            raise ToolError(f"nvidia-smi nvlink -s says nothing of the links of GPU {gpu_number}")
    return [GpuLinks(*about, links, about[0] in cut) for about, links in gpus]
