"""``nvidia-smi`` without options: its table of GPUs, or the sentence with which it fails.

Columns are those of drivers 375 to 595: name, persistence mode, PCIe address, uncorrected ECC errors since the driver
was loaded (``Off`` where ECC is off), compute mode and MIG mode. In place of persistence mode Windows has its driver
model. A value that a GPU does not answer is ``ERR!``.

Source: NVIDIA, nvidia-smi's manual page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FIRST = re.compile(
    r"\| *(?P<number>\d+) +(?P<name>\S.*?) +(?P<persistence>On|Off|N/A|WDDM|TCC|MCDM|ERR!) *\|"
    r" *(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]) +\S+ *\| *(?P<ecc>\S+) *\|"
)
_SECOND = re.compile(
    r"\| *(?P<fan>\S+) +(?P<temperature>\S+) +(?P<performance>\S+) +(?P<power>\S+) */ *\S+ *\|"
    r" *(?P<memory>\S+) */ *\S+ *\| *(?P<utilization>\S+) +(?P<compute_mode>\S.*?) *\|"
)
_PROCESS = re.compile(r"\| +(?P<gpu>\d+) +(?:\S+ +\S+ +)?(?P<pid>\d+) +[CGM+]+ +(?P<name>\S.*?) +(?:\d+MiB|N/A) *\|")
_MIG = re.compile(r"\| +\| +\| *(Enabled|Disabled)\*? *\|")
_FAILURES = {
    "Driver/library version mismatch": "mismatch",
    "couldn't communicate with the NVIDIA driver": "no driver",
    "No devices were found": "no device",
    "Failed to initialize NVML: Unknown Error": "no permission",
}
_INFOROM = re.compile(r"(?m)^\s*WARNING: infoROM is corrupted at gpu ([0-9A-Fa-f:.]+).*$")
_LISTED = re.compile(r"(?:GPU \d+: .+|MIG \S+ +Device +\d+:) \(UUID: \S+\)")
_ERROR = "ERR!"
_COMPUTE_MODES = {"Default": "default", "E. Process": "exclusive process", "E. Thread": "exclusive thread"}


@dataclass(frozen=True)
class TableGpu:
    """One GPU of the table.

    Attributes
    ----------
    name
        As it is printed: a long one ends in three dots.
    address
        ``0000:1b:00.0``.
    uncorrectable
        ECC errors that could not be corrected since the driver was loaded; None where the board has none or it is off.
    compute_mode
        ``default``, ``prohibited``, ``exclusive process`` or ``exclusive thread``.
    unanswered
        The columns in which it answered ``ERR!``.
    memory_used_bytes
        With what the driver keeps for itself, some MiB.
    busy
        The share of the last second or less in which a kernel ran; None where it is cut by MIG, or does not say.
    """

    number: int
    name: str
    address: str
    persistence: bool | None
    ecc: bool | None
    uncorrectable: int | None
    compute_mode: str | None
    mig: bool | None
    unanswered: tuple[str, ...]
    memory_used_bytes: int | None = None
    busy: float | None = None


def is_table(text: str) -> bool:
    """Whether a text is one, or what nvidia-smi says in place of one."""
    return "Volatile Uncorr. ECC" in text or failure(text) is not None


def listed(text: str) -> int:
    """How many GPUs ``nvidia-smi -L`` lists; 0 for a text that is, or holds, anything else."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return sum(line.startswith("GPU") for line in lines) if all(map(_LISTED.fullmatch, lines)) else 0


def failure(text: str) -> tuple[str, str] | None:
    """Why there is no table, ``mismatch``, ``no driver``, ``no device`` or ``no permission``, and its line."""
    for line in text.splitlines():
        if line.startswith(("NVIDIA-SMI has failed", "Failed to initialize NVML", "No devices were found")):
            return next(((kind, line) for words, kind in _FAILURES.items() if words in line), None)
    return None


def corrupt_inforoms(text: str) -> dict[str, str]:
    """The line below a table, or behind ``-q``, for each GPU whose own records cannot be read, by address.

    Source: Azure/azhpc-diagnostics, ``Linux/test/samples/nvidia-smi-inforom.out``.
    """
    return {_short(match[1]): match[0].strip() for match in _INFOROM.finditer(text)}


def _short(address: str) -> str:
    """``0000:1b:00.0``, of which newer drivers write the domain with eight digits."""
    return address[-len("0000:00:00.0") :].lower()


def parse(text: str) -> tuple[TableGpu, ...]:
    """The GPUs of a table, in its order; a last one whose second line is cut off is left out."""
    lines = text.splitlines()
    return tuple(
        _gpu(first.groupdict() | second.groupdict(), lines[index + 2 : index + 3])
        for index, line in enumerate(lines)
        if (first := _FIRST.match(line)) and (second := _SECOND.match("".join(lines[index + 1 : index + 2])))
    )


def _gpu(said: Mapping[str, str], below: Sequence[str]) -> TableGpu:
    mig = _MIG.match("".join(below))
    ecc, mode = said["ecc"], said["compute_mode"]
    return TableGpu(
        number=int(said["number"]),
        name=said["name"],
        address=_short(said["address"]),
        persistence={"On": True, "Off": False}.get(said["persistence"]),
        ecc=True if ecc.isdigit() else False if ecc == "Off" else None,
        uncorrectable=int(ecc) if ecc.isdigit() else None,
        compute_mode=None if mode == _ERROR else _COMPUTE_MODES.get(mode, mode.lower()),
        mig=None if mig is None else mig[1] == "Enabled",
        unanswered=tuple(column for column, value in said.items() if _ERROR in value),
        memory_used_bytes=int(said["memory"][:-3]) * 2**20 if re.fullmatch(r"\d+MiB", said["memory"]) else None,
        busy=int(said["utilization"][:-1]) / 100 if re.fullmatch(r"\d+%", said["utilization"]) else None,
    )


def processes(text: str) -> list[tuple[int, str]]:
    """GPU and ``python (pid 4711)`` of each process below a table; in a container none is listed."""
    found = (_PROCESS.match(line) for line in text.splitlines())
    return [(int(line["gpu"]), f"{line['name']} (pid {line['pid']})") for line in found if line]
