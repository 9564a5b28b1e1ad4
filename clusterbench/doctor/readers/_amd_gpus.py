"""What is made of values of AMD's GPUs, whichever program printed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import Said
from clusterbench.tools.amd_smi import AmdGpu
from clusterbench.types import Severity
from clusterbench.words import plural

_FEWEST = 3
_SLOWED = ("PROCHOT", "SOCKET_THERMAL", "VR_THERMAL", "HBM_THERMAL")
"""Not PPT: a GPU that works at its power limit."""


def judged(gpus: Sequence[AmdGpu], name: str) -> Said:
    """Errors that were not corrected, narrow links, heat, and power limits unlike those of the others."""
    found = tuple(each for gpu in gpus for each in _found(gpu, name)) + tuple(_limits(gpus, name))
    healthy = []
    bad = {each.name for each in found}
    counted = [gpu for gpu in gpus if _uncorrectable(gpu)]
    if counted and not {"uncorrectable_ecc"} & bad:
        what = f"{plural(len(counted), 'GPU')} without errors that ECC could not correct"
        healthy.append(Healthy("uncorrectable_ecc", (name,), what))
    wide = [gpu for gpu in gpus if _widths(gpu)]
    if wide and "pcie_width" not in bad:
        healthy.append(Healthy("pcie_width", (name,), f"{plural(len(wide), 'GPU')} at full width"))
    cool = [gpu for gpu in gpus if any(gpu.paths("_VIOLATION_STATUS"))]
    if cool and "gpu_slowdown" not in bad:
        healthy.append(Healthy("gpu_slowdown", (name,), f"{plural(len(cool), 'GPU')} not slowed down by heat"))
    unknown: tuple[NotJudged, ...] = ()
    if not counted:
        why = "the text does not say errors of memory and links"
        unknown = (NotJudged("uncorrectable_ecc", (name,), why, "amd-smi metric --ecc --ecc-blocks"),)
    return Said(found=found, healthy=tuple(healthy), not_judged=unknown, hosts=(name,))


def _uncorrectable(gpu: AmdGpu) -> list[str]:
    paths = (path for end in ("UNCORRECTABLE_COUNT", "DEFERRED_COUNT") for path in gpu.paths(end))
    return [path for path in paths if gpu.count(path) is not None]


def _widths(gpu: AmdGpu) -> tuple[int, int] | None:
    most = next((count for path in ("PCIE.MAX_WIDTH", "BUS.MAX_PCIE_WIDTH") if (count := gpu.count(path))), None)
    width = gpu.count("PCIE.WIDTH")
    return (width, most) if width and most else None


def _found(gpu: AmdGpu, name: str) -> Iterator[Found]:
    def fault(check: str, severity: Severity, what: str, path: str, confirm: str, fix: str) -> Found:
        return Found(check, severity, (name,), f"GPU {gpu.number}", what, f"{name}: {gpu.lines[path]}", confirm, fix)

    blocks = [path for path in _uncorrectable(gpu) if path.startswith("ECC_BLOCKS.") and gpu.count(path)]
    for path in blocks or [path for path in _uncorrectable(gpu) if gpu.count(path)]:
        block, _, kind = path.removeprefix("ECC_BLOCKS.").removeprefix("ECC.").rpartition(".")
        words = "could not be corrected" if "UNCORRECTABLE" in kind else "marked as poison, to fail where it is read"
        what = f"{plural(gpu.count(path) or 0, 'error')} {f'of {block} ' if block else ''}{words}"
        fix = "drain the host and reset the GPU; amd-smi bad-pages; if they come back, RMA"
        yield fault("uncorrectable_ecc", "warning", what, path, "amd-smi metric --ecc --ecc-blocks; amd-smi ras", fix)
    if gpu.count("XGMI.ERROR"):
        what, fix = "XGMI reports errors since they were last read", "reset the GPU; look for XGMI in the kernel's log"
        yield fault("xgmi_errors", "warning", what, "XGMI.ERROR", "rocm-smi --showxgmierr; dmesg | grep -i xgmi", fix)
    if (widths := _widths(gpu)) and widths[0] < widths[1]:
        what = f"its PCIe link is x{widths[0]}, and could be x{widths[1]}"
        fix = "reseat the card; look at riser, cable and the slot's bifurcation"
        yield fault("pcie_width", "error", what, "PCIE.WIDTH", "amd-smi metric --pcie; lspci -vv | grep LnkSta", fix)
    for reason in _SLOWED:
        path = f"THROTTLE.{reason}_VIOLATION_STATUS"
        if gpu.values.get(path) == "ACTIVE":
            what = f"is slowed down: {reason.replace('_', ' ').lower()}"
            yield fault(
                "gpu_slowdown", "warning", what, path, "amd-smi metric --throttle --temperature", "cooling; power"
            )


def _limits(gpus: Sequence[AmdGpu], name: str) -> Iterator[Found]:
    caps = {gpu.number: gpu.values["LIMIT.POWER_CAP"] for gpu in gpus if "LIMIT.POWER_CAP" in gpu.values}
    usual = Counter(caps.values()).most_common(1)
    if len(caps) < _FEWEST or usual[0][1] <= len(caps) / 2:
        return
    for gpu in gpus:
        if (cap := caps.get(gpu.number)) not in (None, usual[0][0]):
            what = f"its power limit is {cap.removesuffix(' W')} W, and most have {usual[0][0].removesuffix(' W')} W"
            evidence = f"{name}: {gpu.lines['LIMIT.POWER_CAP']}"
            confirm, fix = "rocm-smi --showmaxpower", "rocm-smi --resetpoweroverdrive, where nobody set it on purpose"
            yield Found("power_limit", "warning", (name,), f"GPU {gpu.number}", what, evidence, confirm, fix)
