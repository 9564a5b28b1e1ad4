"""What NVIDIA's management library says of the GPUs of this host, sampled by a process of its own.

``python -m clusterbench.engine.telemetry --interval 0.5`` writes one JSON line per sample to stdout until its stdin
closes, so it cannot outlive who started it. It imports no torch and never initialises CUDA. A value the driver does not
give is null; nothing is guessed. A GPU that is lost keeps its line, with the error in place of values.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import pynvml

from clusterbench.cluster import Found
from clusterbench.engine.nvml import Handle, Reader, every_handle, opened
from clusterbench.words import plural

# nvml.h, nvmlClocksEventReason* (before driver 535: nvmlClocksThrottleReason*, same bits).
REASONS = {
    0x001: "gpu_idle",
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Why clocks are not at their highest. ``gpu_idle`` is no fault; ``hw_slowdown`` has its cause in a second bit."""

MOST_POINTS = 60
"""Of a case's samples at most so many are kept over time; of more, each is the mean of some that follow each other."""


@dataclass(frozen=True)
class GpuInfo:
    """One GPU as it stands before a run; None where the driver does not say."""

    index: int
    """What CUDA calls it in a process with this environment: its place in ``CUDA_VISIBLE_DEVICES``."""
    name: str | None
    uuid: str | None
    memory_bytes: int | None
    driver_version: str | None
    cuda_driver_version: str | None
    """Newest CUDA the driver can run, such as ``13.0``."""
    max_sm_clock_hz: float | None = None
    power_limit_w: float | None = None
    error: str | None = None
    """Why there are no values: the GPU is lost or needs a reset."""


class GpuList(list[GpuInfo]):
    """GPUs, and where there are none or fewer than asked for, the sentence that says why."""

    reason: str | None = None


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment; None where the driver does not say."""

    index: int
    uuid: str | None = None
    name: str | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    """On Ampere and later the driver's mean over the last second."""
    temperature_c: float | None = None
    memory_used_bytes: int | None = None
    """By all processes, with contexts and NCCL's buffers."""
    utilization: float | None = None
    """Share of time in which any kernel ran; 1.0 says nothing about how well it ran."""
    throttle_reasons: Sequence[str] | None = None
    energy_j: float | None = None
    """Counter since the driver was loaded; differences count."""
    counters: Mapping[str, int] | None = None
    """Errors since the driver was loaded, by names of ``tools/error_counters.py``; those the board lacks are left out.
    """
    pcie_generation: int | None = None
    """Of the link at this moment: idle GPUs lower it."""
    most_pcie_generation: int | None = None
    """What GPU and slot can do together."""
    pcie_width: int | None = None
    most_pcie_width: int | None = None
    error: str | None = None


def list_gpus() -> GpuList:
    """GPUs a CUDA process started from here would see, in its order.

    ``CUDA_VISIBLE_DEVICES`` is honoured: indices, or UUIDs (abbreviated, too); like CUDA, the list ends at the first
    entry that names no GPU. Indices are taken in PCI order, which is CUDA's as well unless a host mixes models and
    ``CUDA_DEVICE_ORDER`` is unset. MIG instances are not supported: a GPU that is cut into them is left out with a
    reason, as what a process sees of it is one instance under the name, and so the peaks, of the whole.
    """
    gpus = GpuList()
    with opened() as reason:
        gpus.reason = reason
        if reason is None:
            handles, gpus.reason = _visible_handles()
            gpus += [_info(index, handle) for index, handle in enumerate(handles)]
    return gpus


def found_here() -> Found:
    """What this host has to plan for."""
    gpus = list_gpus()
    return Found(tuple(gpu.name for gpu in gpus), gpus.reason)


def samples(interval_s: float, wait: Callable[[float], bool]) -> Iterator[dict[str, Any]]:
    """One mapping per sample, ready for JSON, until ``wait(seconds)`` says True.

    Without a driver, or without GPUs, there is one sample with no GPUs and a ``reason``.
    """
    with opened() as reason:
        handles: list[Handle] = []
        if reason is None:
            handles, reason = _visible_handles()
        if not handles:
            yield {"time_s": time.time(), "gpus": [], "reason": reason}
            return
        while True:
            due_s = time.monotonic() + interval_s
            yield {"time_s": time.time(), "gpus": [asdict(_sample(i, handle)) for i, handle in enumerate(handles)]}
            if wait(max(0.0, due_s - time.monotonic())):
                return


def summarise(
    samples: Iterable[Mapping[str, Any]], start_s: float = float("-inf"), end_s: float = float("inf")
) -> dict[str, dict[str, Any]]:
    """What happened to each GPU between two times (seconds since 1970), by UUID.

    Each entry has ``index, name, num_samples``, ``min_`` and ``mean_sm_clock_hz``, ``min_`` and
    ``mean_memory_clock_hz``, ``mean_`` and ``max_power_w``, ``max_temperature_c``, ``max_memory_used_bytes``,
    ``energy_j`` (last minus first) and ``energy_over_s`` (the time between the two), ``throttle_reasons`` (reason ->
    share of the samples that gave reasons, idleness left out), ``busy_share`` (of the samples that gave reasons, those
    without idleness), ``min_`` and ``mean_busy_sm_clock_hz`` of these, ``num_busy_samples``, their highest PCIe
    generation and width beside the most there could be, ``grown`` (counters of errors), ``errors`` and ``course``: of
    up to 60 moments
    ``elapsed_s`` since the first sample of this host, ``sm_clock_hz``, ``power_w`` and ``temperature_c``, each a list
    as long. None stands where no sample had a value: no sample, no statement.
    """
    within = [sample for sample in samples if start_s <= sample["time_s"] <= end_s]
    of_gpu: dict[str, list[Mapping[str, Any]]] = {}
    times_s: dict[str, list[float]] = {}
    for sample in within:
        for gpu in sample["gpus"]:
            key = gpu["uuid"] or f"index {gpu['index']}"
            of_gpu.setdefault(key, []).append(gpu)
            times_s.setdefault(key, []).append(sample["time_s"] - within[0]["time_s"])
    return {
        key: {
            **_summary(gpu_samples),
            "energy_over_s": _counted_over_s(times_s[key], gpu_samples),
            "course": _course(times_s[key], gpu_samples),
        }
        for key, gpu_samples in of_gpu.items()
    }


def _counted_over_s(elapsed_s: Sequence[float], gpu_samples: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds between the first and the last sample that have the counter of energy."""
    counted_s = [time_s for time_s, gpu in zip(elapsed_s, gpu_samples, strict=True) if gpu["energy_j"] is not None]
    return counted_s[-1] - counted_s[0] if counted_s else None


def _course(elapsed_s: Sequence[float], gpu_samples: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Figures over time, rounded to what the driver can tell: a long run keeps many of them."""
    stride = -(-len(gpu_samples) // MOST_POINTS)
    starts = range(0, len(gpu_samples), stride)

    def means(values: Sequence[float | None], digits: int) -> list[float | None]:
        stretches = ([value for value in values[start : start + stride] if value is not None] for start in starts)
        return [round(fmean(stretch), digits) if stretch else None for stretch in stretches]

    places = {"sm_clock_hz": -6, "power_w": 1, "temperature_c": 0}
    return {
        "elapsed_s": means(elapsed_s, 2),
        **{name: means([gpu[name] for gpu in gpu_samples], digits) for name, digits in places.items()},
    }


def _summary(gpu_samples: list[Mapping[str, Any]]) -> dict[str, Any]:
    def over(
        field: str, reduce: Callable[[list[float]], float], subset: Sequence[Mapping[str, Any]] = gpu_samples
    ) -> float | None:
        values = [gpu[field] for gpu in subset if gpu[field] is not None]
        return reduce(values) if values else None

    reasons = [gpu["throttle_reasons"] for gpu in gpu_samples if gpu["throttle_reasons"] is not None]
    # An idle GPU lowers its clocks, too, and that says nothing about how it works.
    busy = [
        gpu for gpu in gpu_samples if gpu["throttle_reasons"] is not None and "gpu_idle" not in gpu["throttle_reasons"]
    ]
    named = sorted({name for names in reasons for name in names} - {"gpu_idle"})
    return {
        "index": gpu_samples[0]["index"],
        "name": next((gpu["name"] for gpu in gpu_samples if gpu["name"] is not None), None),
        "num_samples": len(gpu_samples),
        "min_sm_clock_hz": over("sm_clock_hz", min),
        "mean_sm_clock_hz": over("sm_clock_hz", fmean),
        "min_memory_clock_hz": over("memory_clock_hz", min),
        "mean_memory_clock_hz": over("memory_clock_hz", fmean),
        "mean_power_w": over("power_w", fmean),
        "max_power_w": over("power_w", max),
        "max_temperature_c": over("temperature_c", max),
        "max_memory_used_bytes": over("memory_used_bytes", max),
        "energy_j": over("energy_j", lambda values: values[-1] - values[0]),
        "throttle_reasons": {name: sum(name in names for names in reasons) / len(reasons) for name in named}
        if reasons
        else None,
        "busy_share": len(busy) / len(reasons) if reasons else None,
        "min_busy_sm_clock_hz": over("sm_clock_hz", min, busy),
        "mean_busy_sm_clock_hz": over("sm_clock_hz", fmean, busy),
        "num_busy_samples": len(busy),
        "max_busy_pcie_generation": over("pcie_generation", max, busy),
        "most_pcie_generation": over("most_pcie_generation", max),
        "max_busy_pcie_width": over("pcie_width", max, busy),
        "most_pcie_width": over("most_pcie_width", max),
        "grown": _grown([gpu["counters"] for gpu in gpu_samples if gpu["counters"] is not None]),
        "errors": sorted({gpu["error"] for gpu in gpu_samples if gpu["error"] is not None}),
    }


def _grown(counters: Sequence[Mapping[str, int]]) -> dict[str, int] | None:
    """By how much each counter of errors grew, of those that did; None where no sample has any."""
    if not counters:
        return None
    first, last = counters[0], counters[-1]
    return {name: last[name] - first[name] for name in first if last.get(name, 0) > first[name]}


# NVML

_CUT = "cut into MIG instances, which are not supported"


def _visible_handles() -> tuple[list[Handle], str | None]:
    handles, reason = every_handle()
    if reason:
        return [], reason
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        whole = [handle for handle in handles if not _is_cut(handle)]
        if cut := len(handles) - len(whole):
            return whole, f"{cut} of {plural(len(handles), 'GPU')} {'is' if cut == 1 else 'are'} {_CUT}"
        return whole, None if whole else "the NVIDIA driver finds no GPU"
    if not visible.strip():
        return [], f"CUDA_VISIBLE_DEVICES is empty, which hides {plural(len(handles), 'GPU')}"
    chosen: list[Handle] = []
    for entry in visible.split(","):
        handle = _named(entry.strip(), handles)
        if handle is None or handle in chosen or _is_cut(handle):
            objection = _objection(entry, handle, chosen, len(handles))
            return chosen, f"CUDA_VISIBLE_DEVICES={visible!r} ends before {entry!r}: {objection}"
        chosen.append(handle)
    return chosen, None


def _is_cut(handle: Handle) -> bool:
    mode = Reader(handle)("nvmlDeviceGetMigMode")  # as it is, and as it will be after a reset
    return bool(mode and mode[0])


def _named(entry: str, handles: list[Handle]) -> Handle | None:
    if entry.isdecimal():
        return handles[int(entry)] if int(entry) < len(handles) else None
    matching = [handle for handle in handles if entry and (handle.uuid or "").startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def _objection(entry: str, handle: Handle | None, chosen: Sequence[Handle], count: int) -> str:
    if entry.strip().startswith("MIG-"):
        return "MIG instances are not supported"
    if handle is None:
        return f"the driver has {count} GPUs and none of that name"
    return "named twice" if handle in chosen else f"it is {_CUT}"


def _sample(index: int, handle: Handle) -> GpuSample:
    read = Reader(handle)
    sample = GpuSample(
        index,
        handle.uuid,
        handle.name,
        sm_clock_hz=_scaled(read("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM), 1e6),
        memory_clock_hz=_scaled(read("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM), 1e6),
        power_w=_scaled(read("nvmlDeviceGetPowerUsage"), 1e-3),
        temperature_c=_scaled(
            read("nvmlDeviceGetTemperatureV|nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU), 1.0
        ),
        memory_used_bytes=getattr(read("nvmlDeviceGetMemoryInfo"), "used", None),
        utilization=_scaled(getattr(read("nvmlDeviceGetUtilizationRates"), "gpu", None), 0.01),
        throttle_reasons=reason_names(
            read("nvmlDeviceGetCurrentClocksEventReasons|nvmlDeviceGetCurrentClocksThrottleReasons")
        ),
        energy_j=_scaled(read("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
        pcie_generation=read("nvmlDeviceGetCurrPcieLinkGeneration"),
        most_pcie_generation=read("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=read("nvmlDeviceGetCurrPcieLinkWidth"),
        most_pcie_width=read("nvmlDeviceGetMaxPcieLinkWidth"),
        counters=_counters(read),
    )
    # What was read before the GPU was lost belongs to no moment at which it worked.
    lost = read.device is None
    return GpuSample(index, handle.uuid, handle.name, error=read.error) if lost else _with_error(sample, read.error)


def _counters(read: Reader) -> dict[str, int] | None:
    volatile = pynvml.NVML_VOLATILE_ECC
    counts = {
        "ecc_uncorrected": read("nvmlDeviceGetTotalEccErrors", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile),
        "ecc_corrected": read("nvmlDeviceGetTotalEccErrors", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile),
        "pcie_replays": read("nvmlDeviceGetPcieReplayCounter"),
    }
    return {name: int(count) for name, count in counts.items() if count is not None} or None


def _with_error(sample: GpuSample, error: str | None) -> GpuSample:
    return sample if error is None else GpuSample(**{**asdict(sample), "error": error})


def _info(index: int, handle: Handle) -> GpuInfo:
    read = Reader(handle)
    memory = read("nvmlDeviceGetMemoryInfo")
    max_sm_clock = read("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)
    power_limit = read("nvmlDeviceGetEnforcedPowerLimit")
    cuda = _system("nvmlSystemGetCudaDriverVersion_v2") or _system("nvmlSystemGetCudaDriverVersion")
    return GpuInfo(
        index,
        handle.name,
        handle.uuid,
        memory_bytes=getattr(memory, "total", None),
        driver_version=_system("nvmlSystemGetDriverVersion"),
        cuda_driver_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        max_sm_clock_hz=_scaled(max_sm_clock, 1e6),
        power_limit_w=_scaled(power_limit, 1e-3),
        error=read.error,
    )


def _system(name: str) -> Any:
    try:
        return getattr(pynvml, name)()
    except (pynvml.NVMLError, AttributeError):
        return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def reason_names(bits: int | None) -> list[str] | None:
    """Names of a bit mask of clock reasons; bits newer than this file keep their number.

    >>> reason_names(0x48), reason_names(0), reason_names(0x8001)
    (['hw_slowdown', 'hw_thermal'], [], ['gpu_idle', 'reason_0x8000'])
    """
    if bits is None:
        return None
    return [REASONS.get(1 << i, f"reason_{1 << i:#x}") for i in range(bits.bit_length()) if bits >> i & 1]


def main(arguments: list[str] | None = None) -> int:
    """Samples until stdin or the reader of stdout closes."""
    parser = argparse.ArgumentParser(prog="python -m clusterbench.engine.telemetry", description=__doc__)
    parser.add_argument("--interval", type=float, default=0.5, metavar="SECONDS", help="between samples (0.5)")
    interval_s = parser.parse_args(arguments).interval
    try:
        for sample in samples(interval_s, _stdin_closed):
            print(json.dumps(sample), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains when it flushes stdout at exit
    return 0


def _stdin_closed(timeout_s: float) -> bool:
    """Waits so long, or until stdin closes. Whatever is written to it is read and ignored."""
    end_s = time.monotonic() + timeout_s
    while True:
        readable, _, _ = select.select([0], [], [], max(0.0, end_s - time.monotonic()))
        if not readable:
            return False
        if not os.read(0, 4096):
            return True


if __name__ == "__main__":
    sys.exit(main())
