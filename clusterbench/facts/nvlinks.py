from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pynvml

from clusterbench.engine.nvlink import VERSIONS
from clusterbench.engine.nvml import Handle, Reader, every_handle, opened
from clusterbench.facts import Facts, Files

NVML = "NVML"
STATE = "nvmlDeviceGetNvLinkState"
P2P = "nvmlDeviceGetP2PStatus"

_READ, _NVLINK = 0, 2  # nvml.h, nvmlGpuP2PCapsIndex_t; nvidia-ml-py's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake
_STATUS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by the driver's settings",
    5: "not supported",
}


@dataclass(frozen=True)
class GpuLinks:
    """NVLinks of one GPU: numbers of those that are up and of those that are not, as the driver lists them."""

    gpu: int
    up: tuple[int, ...]
    down: tuple[int, ...]
    version: str | None
    error: str | None


@dataclass(frozen=True)
class Pair:
    """Two GPUs of which one may not read the other's memory; ``nvlink`` says whether NVLink joins them."""

    first: int
    second: int
    status: str
    nvlink: bool | None


@dataclass(frozen=True, kw_only=True)
class Nvlinks(Facts):
    """NVLinks of every GPU, and the pairs of GPUs that may not read each other (``num_pairs`` were asked about)."""

    gpus: tuple[GpuLinks, ...] | None
    num_pairs: int | None
    refused: tuple[Pair, ...]

    @classmethod
    def read(cls, files: Files) -> Self:
        if files.root != Path("/"):  # a folder of files has no driver, and this host's would answer
            files.unread[NVML] = f"knows nothing of the files below {files.root}"
            return cls(gpus=None, num_pairs=None, refused=(), unread=files.unread)
        with opened() as reason:
            handles: list[Handle] = []
            if reason is None:
                handles, reason = every_handle()
            if reason is not None:
                files.unread[NVML] = f"gave nothing: {reason}"
                return cls(gpus=None, num_pairs=None, refused=(), unread=files.unread)
            gpus = tuple(_links(index, handle) for index, handle in enumerate(handles))
            num_pairs, refused = _pairs(handles, files)
        return cls(gpus=gpus, num_pairs=num_pairs, refused=refused, unread=files.unread)


def _links(index: int, handle: Handle) -> GpuLinks:
    """Links up to the first that the board does not have."""
    read = Reader(handle)
    states: list[bool] = []
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = read(STATE, number)
        if state is None:
            break
        states.append(bool(state))
    lost = read.device is None
    version = read("nvmlDeviceGetNvLinkVersion", states.index(True)) if True in states and not lost else None
    return GpuLinks(
        index,
        up=tuple(number for number, state in enumerate(states) if state),
        down=tuple(number for number, state in enumerate(states) if not state),
        version=None if version is None else VERSIONS.get(version, f"number {version}"),
        error=read.error if lost else None,
    )


def _pairs(handles: Sequence[Handle], files: Files) -> tuple[int | None, tuple[Pair, ...]]:
    """How many pairs the driver said something of, and those that are refused."""
    number, refused = 0, []
    for first in range(len(handles)):
        for second in range(first + 1, len(handles)):
            status = _status(handles[first], handles[second], _READ, files)
            if status is None:
                continue
            number += 1
            if status != 0:
                nvlink = _status(handles[first], handles[second], _NVLINK, files)
                joined = None if nvlink is None else nvlink == 0
                refused.append(Pair(first, second, _STATUS.get(status, f"status {status}"), joined))
    return (number if number or len(handles) < 2 else None), tuple(refused)


def _status(first: Handle, second: Handle, kind: int, files: Files) -> int | None:
    if first.device is None or second.device is None:
        return None
    try:
        return int(pynvml.nvmlDeviceGetP2PStatus(first.device, second.device, kind))
    except pynvml.NVMLError as error:
        files.unread.setdefault(P2P, f"said: {error}")
        return None
