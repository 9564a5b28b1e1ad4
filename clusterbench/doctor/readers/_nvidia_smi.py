"""What both forms of ``nvidia-smi`` say alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterbench.doctor import Found
from clusterbench.tools import nvidia_smi_table
from clusterbench.types import Severity


def smi(check: str, severity: Severity, host: str, where: str, what: str, said: str, fix: str) -> Found:
    return Found(check, severity, (host,), where, what, f"{host}: {said}", "nvidia-smi -q", fix)


def inforoms(text: str, name: str, places: Mapping[str, str]) -> Iterator[Found]:
    """GPUs whose records of themselves, of retired pages and remapped rows among them, are damaged."""
    for address, line in nvidia_smi_table.corrupt_inforoms(text).items():
        what, fix = "its infoROM is corrupted", "reset the GPU or reboot; if it stays so, the vendor's diagnostics; RMA"
        yield smi("gpu_inforom", "error", name, places.get(address, f"GPU {address}"), what, line, fix)
