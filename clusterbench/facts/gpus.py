from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pynvml

from clusterbench.engine.nvml import Handle, Reader, every_handle, opened
from clusterbench.facts import Facts, Files

NVML = "NVML"
BUS = "/sys/bus/pci/devices"
COMPLETED = "completed"
DEFAULT_MODE = "default"

REMAPPED = "nvmlDeviceGetRemappedRows"
SRAM = "nvmlDeviceGetSramEccErrorStatus"
SRAM_OLD = "nvmlDeviceGetMemoryErrorCounter"
PERSISTENCE = "nvmlDeviceGetPersistenceMode"
POWER_LIMIT, DEFAULT_POWER_LIMIT = "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPowerManagementDefaultLimit"
CLOCK, DEFAULT_CLOCK = "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock"
MAX_CLOCK = "nvmlDeviceGetMaxClockInfo"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses"
FABRIC = "nvmlDeviceGetGpuFabricInfoV"
FABRIC_OLD = "nvmlDeviceGetGpuFabricInfo"
MIG, COMPUTE_MODE, VBIOS = "nvmlDeviceGetMigMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetVbiosVersion"
ECC = "nvmlDeviceGetEccMode"
GENERATION, WIDTH = "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth"
MOST_GENERATION, MOST_WIDTH = "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth"
GPU_GENERATION = "nvmlDeviceGetGpuMaxPcieLinkGeneration"
REPLAYS = "nvmlDeviceGetPcieReplayCounter"
REASONS, REASONS_OLD = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
RECOVERY = "nvmlDeviceGetFieldValues"
MEMORY = "nvmlDeviceGetMemoryInfo"
VOLATILE = "nvmlDeviceGetTotalEccErrors"
"""Functions of NVML whose answers are judged: what a check names as its source."""

_NVIDIA, _DISPLAY = "0x10de", ("0x03", "0x12")
_COMPUTE_MODES = {0: DEFAULT_MODE, 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: COMPLETED}
_SRAM_LOCATION = 7  # nvml.h, NVML_MEMORY_LOCATION_SRAM
_SLOWDOWNS = {
    0x08: "HW Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
    0x20: "SW Thermal Slowdown",
}
"""Bits of nvml.h, nvmlClocksEventReason*, as ``nvidia-smi`` names them: those that hold a GPU back."""
_RECOVERY_ACTION = 230  # nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older nvidia-ml-py does not name
NO_ACTION = "None"
_ACTIONS = {
    0: NO_ACTION,
    1: "GPU Reset",
    2: "Node Reboot",
    3: "Drain P2P",
    4: "Drain and Reset",
    5: "Recover IMEX Domain",
    6: "Bus Reset",
    7: "System Reboot",
}
"""Of nvml.h, nvmlDeviceGpuRecoveryAction_t, as ``nvidia-smi`` names them."""
_MOST_PROCESSES = 8


@dataclass(frozen=True)
class Process:
    """A process that computes on a GPU; of another container its name is not known."""

    pid: int
    name: str | None
    memory_bytes: int | None


@dataclass(frozen=True)
class BusGpu:
    """An NVIDIA GPU as the PCIe bus shows it. ``answers`` is false where its configuration space reads all ones."""

    address: str
    driver: str | None
    answers: bool | None


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML describes it; None where the driver does not say.

    Attributes
    ----------
    index
        NVML's number, as in ``nvidia-smi``.
    error
        Why there are no values: the GPU is lost, or its driver failed to start it.
    lacks
        Functions that this board does not support: there is then nothing to judge.
    pcie_generation, pcie_width
        Of the link now; an idle GPU lowers its generation.
    most_pcie_generation, most_pcie_width
        What GPU and slot can do together. ``gpu_pcie_generation`` is what the GPU alone could do.
    pcie_replays
        Since the driver was loaded.
    application_clock_hz, default_application_clock_hz, max_clock_hz
        Of the SMs.
    sram_uncorrectable
        Uncorrectable errors in caches and registers in the life of the GPU; ``sram_threshold_exceeded`` is the board's
        own verdict, of drivers since 550.
    volatile_uncorrectable
        Errors of memory and caches that ECC could not correct since the driver was loaded.
    remapped_correctable, remapped_uncorrectable
        Rows of memory that were replaced.
    slowdowns
        What lowers the clocks now: ``HW Power Brake Slowdown``; idle and a power cap are not among them.
    recovery_action
        What the driver asks for: ``GPU Reset``; ``None`` where it asks for nothing.
    memory_bytes, memory_used_bytes
        Of its memory; what the driver keeps for itself is not used.
    fabric_state
        ``completed`` where NVLink's fabric took the GPU in; ``fabric_status`` is the error it met.
    """

    index: int
    error: str | None = None
    lacks: tuple[str, ...] = ()
    name: str | None = None
    uuid: str | None = None
    serial: str | None = None
    address: str | None = None
    vbios: str | None = None
    pcie_generation: int | None = None
    most_pcie_generation: int | None = None
    gpu_pcie_generation: int | None = None
    pcie_width: int | None = None
    most_pcie_width: int | None = None
    pcie_replays: int | None = None
    persistence: bool | None = None
    compute_mode: str | None = None
    mig: bool | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    application_clock_hz: float | None = None
    default_application_clock_hz: float | None = None
    max_clock_hz: float | None = None
    ecc: bool | None = None
    sram_uncorrectable: int | None = None
    sram_threshold_exceeded: bool | None = None
    volatile_uncorrectable: int | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    slowdowns: tuple[str, ...] | None = None
    recovery_action: str | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    processes: tuple[Process, ...] | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None

    @property
    def place(self) -> str:
        """``GPU 3 (0000:8f:00.0, serial 1650123000000)``: how ``nvidia-smi``, its slot and its label call it."""
        known = [self.address] if self.address else []
        known += [f"serial {self.serial}"] if self.serial else []
        return f"GPU {self.index}" + (f" ({', '.join(known)})" if known else "")


@dataclass(frozen=True, kw_only=True)
class Gpus(Facts):
    """NVIDIA GPUs, by NVML and by the PCIe bus, whatever ``CUDA_VISIBLE_DEVICES`` says.

    ``on_bus`` is None where there is no such bus to look at.
    """

    gpus: tuple[Gpu, ...]
    driver_version: str | None
    on_bus: tuple[BusGpu, ...] | None

    @classmethod
    def read(cls, files: Files) -> Self:
        gpus, driver = _asked(files)
        return cls(gpus=gpus, driver_version=driver, on_bus=_on_bus(files), unread=files.unread)


def _asked(files: Files) -> tuple[tuple[Gpu, ...], str | None]:
    if files.root != Path("/"):  # a folder of files has no driver, and this host's would answer
        files.unread[NVML] = f"knows nothing of the files below {files.root}"
        return (), None
    with opened() as reason:
        handles: list[Handle] = []
        if reason is None:
            handles, reason = every_handle()
        if reason is not None:
            files.unread[NVML] = f"gave nothing: {reason}"
            return (), None
        return tuple(_gpu(index, handle, files) for index, handle in enumerate(handles)), _driver_version()


def _driver_version() -> str | None:
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def _gpu(index: int, handle: Handle, files: Files) -> Gpu:
    """All of one GPU, a group of questions after the other. If it is lost in between, only that is said."""
    read = Reader(handle)
    identity = _identity(read)
    said: dict[str, Any] = {}
    for part in (_pcie, _modes, _limits, _memory, _now, _fabric):
        said |= part(read)
    for function, why in read.refused.items():
        files.unread.setdefault(function, f"{why}, for GPU {index}" if why.startswith("said") else why)
    identity |= {"name": handle.name, "uuid": handle.uuid}
    if read.device is None:
        return Gpu(index, error=read.error, **identity)
    return Gpu(index, lacks=tuple(read.lacks), **identity, **said)


def _identity(read: Reader) -> dict[str, Any]:
    pci = read("nvmlDeviceGetPciInfo")
    return {
        "serial": _text(read("nvmlDeviceGetSerial")),
        "vbios": _text(read(VBIOS)),
        "address": _address(_text(getattr(pci, "busId", None))),
    }


def _pcie(read: Reader) -> dict[str, Any]:
    return {
        "pcie_generation": read(GENERATION),
        "most_pcie_generation": read(MOST_GENERATION),
        "gpu_pcie_generation": read(GPU_GENERATION),
        "pcie_width": read(WIDTH),
        "most_pcie_width": read(MOST_WIDTH),
        "pcie_replays": read(REPLAYS),
    }


def _modes(read: Reader) -> dict[str, Any]:
    mode, mig, ecc = read(COMPUTE_MODE), read(MIG), read(ECC)
    return {
        "persistence": _flag(read(PERSISTENCE)),
        "compute_mode": None if mode is None else _COMPUTE_MODES.get(mode, f"number {mode}"),
        "mig": None if mig is None else bool(mig[0]),
        "ecc": None if ecc is None else bool(ecc[0]),
        "processes": _processes(read),
    }


def _limits(read: Reader) -> dict[str, Any]:
    sm = pynvml.NVML_CLOCK_SM
    return {
        "power_limit_w": _scaled(read(POWER_LIMIT), 1e-3),
        "default_power_limit_w": _scaled(read(DEFAULT_POWER_LIMIT), 1e-3),
        "application_clock_hz": _scaled(read(CLOCK, sm), 1e6),
        "default_application_clock_hz": _scaled(read(DEFAULT_CLOCK, sm), 1e6),
        "max_clock_hz": _scaled(read(MAX_CLOCK, sm), 1e6),
    }


def _memory(read: Reader) -> dict[str, Any]:
    status = _filled(read, SRAM, "c_nvmlEccSramErrorStatus_v1_t", 104)
    if status is not None:
        uncorrectable: int | None = int(status.aggregateUncParity) + int(status.aggregateUncSecDed)
    else:
        uncorrectable = read(
            SRAM_OLD, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC, _SRAM_LOCATION
        )
    volatile = read(VOLATILE, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    correctable, rows, pending, failed = read(REMAPPED) or (None,) * 4
    return {
        "sram_uncorrectable": uncorrectable,
        "sram_threshold_exceeded": None if status is None else bool(status.bThresholdExceeded),
        "volatile_uncorrectable": volatile,
        "remapped_correctable": correctable,
        "remapped_uncorrectable": rows,
        "remap_pending": _flag(pending),
        "remap_failed": _flag(failed),
    }


def _now(read: Reader) -> dict[str, Any]:
    """How it stands, rather than how it is made or set."""
    reasons = read(f"{REASONS}|{REASONS_OLD}")
    memory = read(MEMORY, pynvml.nvmlMemory_v2)  # the first version counts what the driver keeps for itself as used
    return {
        "slowdowns": None if reasons is None else tuple(name for bit, name in _SLOWDOWNS.items() if reasons & bit),
        "recovery_action": _recovery_action(read),
        "memory_bytes": None if memory is None else int(memory.total),
        "memory_used_bytes": None if memory is None else int(memory.used),
    }


def _recovery_action(read: Reader) -> str | None:
    """Of drivers since 565."""
    (field,) = read(RECOVERY, [_RECOVERY_ACTION]) or (None,)
    if field is None:
        return None
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        read.lacks.append(RECOVERY)
        return None
    action = int(field.value.uiVal)
    return _ACTIONS.get(action, f"number {action}")


def _fabric(read: Reader) -> dict[str, Any]:
    info = _filled(read, FABRIC, "c_nvmlGpuFabricInfo_v2_t", 36) or _filled(
        read, FABRIC_OLD, "c_nvmlGpuFabricInfo_t", 28
    )
    if info is None:
        return {}
    status = int(info.status)
    return {
        "fabric_state": _FABRIC_STATES.get(int(info.state), f"number {info.state}"),
        "fabric_status": "success" if status == pynvml.NVML_SUCCESS else str(pynvml.NVMLError(status)),
    }


def _filled(read: Reader, function: str, structure: str, size_bytes: int) -> Any:
    """The structure that a function fills in; None where it does not, or this nvidia-ml-py has no such structure.

    Nor one of the size of nvml.h's: up to 13.595 nvidia-ml-py has 80 bytes where a fabric's UUID has 16, and reads its
    state behind what the driver wrote: 0, so "not supported" of a GPU that is to be part of one.
    """
    made: type[ctypes.Structure] | None = getattr(pynvml, structure, None)
    if made is None or ctypes.sizeof(made) != size_bytes:
        read.refused[function] = "is not in this nvidia-ml-py"
        return None
    answer = made()
    return None if read(function, pynvml.byref(answer)) is None else answer


def _processes(read: Reader) -> tuple[Process, ...] | None:
    found = read(PROCESSES)
    if found is None:
        return None
    return tuple(Process(each.pid, _process_name(each.pid), each.usedGpuMemory) for each in found[:_MOST_PROCESSES])


def _process_name(pid: int) -> str | None:
    """The program's name without its path and arguments, which are none of a report's business."""
    try:
        path = _text(pynvml.nvmlSystemGetProcessName(pid)) or ""
    except pynvml.NVMLError:
        return None
    return os.path.basename((path.split() or [""])[0])[:40] or None


def _on_bus(files: Files) -> tuple[BusGpu, ...] | None:
    if not files.exists(BUS):
        files.unread[BUS] = "is not there"
        return None
    gpus = []
    for address in files.names(BUS):
        folder = f"{BUS}/{address}"
        kind = files.text(f"{folder}/class", optional=True) or ""
        if kind.startswith(_DISPLAY) and files.text(f"{folder}/vendor", optional=True) == _NVIDIA:
            start = files.data(f"{folder}/config", 4)
            answers = start != b"\xff" * 4 if start else None
            gpus.append(BusGpu(address, files.link(f"{folder}/driver"), answers))
    return tuple(gpus)


def _address(bus_id: str | None) -> str | None:
    """As the kernel writes it.

    >>> _address("00000000:8F:00.0")
    '0000:8f:00.0'
    """
    if not bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return str(value).strip() or None if value is not None else None


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
