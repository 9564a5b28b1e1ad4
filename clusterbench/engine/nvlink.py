"""State and counters of every NVLink of the GPUs that this process sees, through NVIDIA's management library.

Counters only grow, so two readings and their difference say what happened in between. A value that the driver or the
board does not give is None; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from clusterbench.engine.telemetry import list_gpus
from clusterbench.tools.host_links import NvLink

ERRORS = {
    "replay": pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    "recovery": pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    "crc_flit": pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    "crc_data": pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
}
"""Error counters of a link, by the names of nvml.h: nvmlNvLinkErrorCounter_t."""

# nvml.h, nvmlNvLinkVersion_t: an enumeration, not a number.
VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}

_SENT, _RECEIVED = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
_KIB = 1024
"""nvml.h counts the data of these two fields in KiB."""


class NvLinkList(list[NvLink]):
    """Links, and where there are none, the sentence that says why."""

    reason: str | None = None


def read_links() -> NvLinkList:
    """Every NVLink of the GPUs that a CUDA process started from here would see; GPUs as in ``list_gpus``."""
    gpus, links = list_gpus(), NvLinkList()
    links.reason = gpus.reason
    if not gpus:
        return links
    pynvml.nvmlInit()
    try:
        for gpu in gpus:
            if gpu.uuid is not None and gpu.error is None:
                links += _links_of(gpu.index, gpu.uuid)
            elif gpu.error is not None:
                links.reason = gpu.error
    except pynvml.NVMLError as error:  # a GPU that is lost meanwhile
        links.reason = str(error)
    finally:
        pynvml.nvmlShutdown()
    if not links and links.reason is None:
        links.reason = "these GPUs have no NVLink"
    return links


def _links_of(gpu: int, uuid: str) -> list[NvLink]:
    """Links up to the first that the board does not have."""
    device, links = pynvml.nvmlDeviceGetHandleByUUID(uuid), []
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _answer(pynvml.nvmlDeviceGetNvLinkState, device, number)
        if state is None:
            break
        version = _answer(pynvml.nvmlDeviceGetNvLinkVersion, device, number)
        counts = {
            name: _answer(pynvml.nvmlDeviceGetNvLinkErrorCounter, device, number, code) for name, code in ERRORS.items()
        }
        sent, received = _moved(device, number)
        links.append(
            NvLink(
                gpu,
                number,
                bool(state),
                None if version is None else VERSIONS.get(version, f"number {version}"),
                {name: int(count) for name, count in counts.items() if count is not None},
                sent,
                received,
            )
        )
    return links


def _moved(device: Any, link: int) -> tuple[int | None, int | None]:
    """Bytes sent and received over one link."""
    values = _answer(pynvml.nvmlDeviceGetFieldValues, device, [(_SENT, link), (_RECEIVED, link)])
    if values is None:
        return None, None
    sent, received = (
        int(value.value.ullVal) * _KIB if value.nvmlReturn == pynvml.NVML_SUCCESS else None for value in values
    )
    return sent, received


def _answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """The driver's answer, or None where it has none. A lost GPU still raises."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
            raise
        return None
