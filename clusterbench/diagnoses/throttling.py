from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.host_facts import mapping
from clusterbench.measured.disturbed import HELD_BACK
from clusterbench.types import SEVERITIES, Severity
from clusterbench.units import format_value
from clusterbench.words import few, plural

# Names of engine/telemetry.py. Reasons not listed here are warnings, so that a new one is never silent.
_SEVERITY: Mapping[str, Severity] = {
    **dict.fromkeys(HELD_BACK, "error"),
    # The power limit is where a busy GPU is meant to be.
    "sw_power_cap": "note",
    "sync_boost": "note",
}
_HARMLESS = ("gpu_idle", "application_clocks", "display_clocks")
# With locked clocks NVML gave neither idle nor any other reason: JuliaGPU/CUDA.jl, pull request 2194.
_LOCKED_BELOW, _FEWEST_SAMPLES, _SAME_CLOCK_HZ = 0.95, 10, 1e6

_Gpu = tuple[str, str]
"""Host and number."""


@dataclass
class _Lowered:
    """What lowered the clocks of one GPU: the share of samples in each case, and the lowest mean clock of a case, while
    busy."""

    reasons: dict[str, None] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    clock_hz: float | None = None

    def add(self, reason: str, case: str, share: float, clock_hz: float | None) -> None:
        self.reasons[reason.replace("_", " ")] = None
        self.shares[case] = max(share, self.shares.get(case, 0.0))
        if clock_hz is not None:
            self.clock_hz = min(clock_hz, self.clock_hz or clock_hz)


class Throttling(Diagnosis):
    """GPUs whose clocks were lowered by heat or power while they were timed.

    What it looks for
    -----------------
    Reasons that NVML gave for lowered clocks while a case ran. Slowdown by the hardware, for heat, and by the power
    brake void the figures of the case; others are warnings. The power limit is a note, with the lowest mean clock it
    left beside the highest of the GPU. Idle and the clocks an administrator set are not reasons to worry.

    Clocks that were locked (``nvidia-smi -lgc``) have no reason in NVML: a note names GPUs whose clock stood still
    below 0.95 of their highest in every sample they were busy in, while nothing lowered it.

    Why it matters
    --------------
    A hot GPU is slower than its peers and all of them wait for it. The figures of the case are those of the cooling,
    not of the layout.

    How to confirm
    --------------
    nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER on that host while the case runs again; compare clocks with a GPU
    that is not named.

    What usually fixes it
    ---------------------
    Air flow, inlet temperature, dust, a fan or pump, a loose power cable (power brake), a power limit below the
    default. A note about the power limit at full load needs no action.
    """

    def answer(self, reading: Reading) -> Answer:
        lowered: dict[tuple[Severity, str], dict[_Gpu, _Lowered]] = {}
        for history in reading.histories:
            for observation in history.observations:
                for host, gpu, reason, share, clock_hz in _reasons(observation.telemetry):
                    of_gpu = lowered.setdefault(_kind(reason), {}).setdefault((host, gpu), _Lowered())
                    of_gpu.add(reason, history.case.id, share, clock_hz)
        kinds = sorted(lowered.items())
        findings = [finding for (severity, _), gpus in kinds for finding in _findings(severity, gpus, reading)]
        findings += _locked(reading)
        findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
        sampled = set(_sampled(reading))
        held_back = {gpu for (severity, _), gpus in kinds if severity != "note" for gpu in gpus}
        well = len(sampled) - len(held_back)
        healthy = (f"clocks of {plural(well, 'GPU')} were not lowered by heat or a fault",) if well > 0 else ()
        if sampled or not any(history.case.device == "cuda" and history.observations for history in reading.histories):
            return Answer(tuple(findings), healthy)
        why = "no sample says why clocks were lowered"
        return Answer(not_judged=(NotJudged("GPU clocks", why, "NVML on every host (pip install nvidia-ml-py)"),))


def _sampled(reading: Reading) -> Iterator[tuple[str, str]]:
    """Host and GPU of everything that NVML gave reasons for, if only that there are none."""
    for history in reading.histories:
        for observation in history.observations:
            for host, gpus in observation.telemetry.items():
                yield from ((host, uuid) for uuid, gpu in gpus.items() if gpu.get("throttle_reasons") is not None)


def _kind(reason: str) -> tuple[Severity, str]:
    """What is told together: of one GPU all that is a fault, as heat has two names; of notes each reason."""
    severity = _SEVERITY.get(reason, "warning")
    return severity, reason if severity == "note" else ""


def _findings(severity: Severity, gpus: Mapping[_Gpu, _Lowered], reading: Reading) -> Iterator[Finding]:
    """One for each GPU; of a note, which all GPUs of a cluster may share, one for all."""
    by_host = sorted(gpus, key=lambda gpu: gpu[0])
    groups = [[gpu] for gpu in by_host] if severity != "note" else [by_host]
    for group in groups:
        shares: dict[str, float] = {}
        for gpu in group:
            for case, share in gpus[gpu].shares.items():
                shares[case] = max(share, shares.get(case, 0.0))
        reasons = dict.fromkeys(reason for gpu in group for reason in gpus[gpu].reasons)
        what = f"clocks were lowered ({', '.join(reasons)})"
        if severity == "error":
            what += f"; figures of {plural(len(shares), 'case')} are void"
        evidence = (
            f"in {len(shares)} of {len(reading.histories)} cases; most in {max(shares, key=shares.__getitem__)}, "
            f"in {100 * max(shares.values()):.0f} % of the samples{_cost(group, gpus, reading)}"
        )
        yield _of_gpus(group, what, severity, evidence)


def _of_gpus(group: Sequence[_Gpu], what: str, severity: Severity, evidence: str) -> Finding:
    hosts = tuple(dict.fromkeys(host for host, _ in group))
    which = f"GPU {group[0][1]}" if len(group) == 1 else plural(len(group), "GPU")
    if len(hosts) == 1:
        return Finding(f"{which} on {hosts[0]}", what, severity, evidence, host=hosts[0])
    return Finding(f"{which} on {len(hosts)} hosts ({few(hosts)})", what, severity, evidence, among=hosts)


def _locked(reading: Reading) -> list[Finding]:
    """GPUs whose clock never moved while they were busy, though it could have been higher and no reason is given."""
    stood: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for history in reading.histories:
        for observation in history.observations:
            for host, gpus in observation.telemetry.items():
                for uuid, gpu in gpus.items():
                    if gpu.get("num_busy_samples"):
                        stood.setdefault((host, str(gpu.get("index", uuid))), []).append(gpu)
    alike: dict[tuple[str, str], list[_Gpu]] = {}
    for (host, index), gpus_of_cases in stood.items():
        clock_hz, highest_hz = _still(gpus_of_cases), _highest(reading, host, index)
        if clock_hz is not None and highest_hz is not None and clock_hz <= _LOCKED_BELOW * highest_hz:
            alike.setdefault((format_value(clock_hz, "Hz"), format_value(highest_hz, "Hz")), []).append((host, index))
    findings = []
    for (clock, highest), group in alike.items():
        which, was = ("its clock", "it was") if len(group) == 1 else ("their clocks", "they were")
        samples = sum(gpu["num_busy_samples"] for place in group for gpu in stood[place])
        evidence = f"in all {samples:,} samples in which {was} busy, without a reason; nvidia-smi -lgc locks clocks so"
        findings.append(_of_gpus(group, f"{which} stood at {clock}, and can be {highest}", "note", evidence))
    return findings


def _still(gpus: Sequence[Mapping[str, Any]]) -> float | None:
    """The one clock of all samples; None where it moved, something lowered it, or samples are few."""
    clocks = [gpu.get(name) for gpu in gpus for name in ("min_busy_sm_clock_hz", "mean_busy_sm_clock_hz")]
    known = [clock for clock in clocks if isinstance(clock, (int, float))]
    lowered = any(reason not in _HARMLESS for gpu in gpus for reason in (gpu.get("throttle_reasons") or {}))
    if lowered or len(known) < len(clocks) or sum(gpu["num_busy_samples"] for gpu in gpus) < _FEWEST_SAMPLES:
        return None
    return min(known) if max(known) - min(known) < _SAME_CLOCK_HZ else None


def _highest(reading: Reading, host: str, index: str) -> float | None:
    described = mapping(mapping(reading.environment.get("hosts")).get(host)).get("gpus")
    gpus = map(mapping, described if isinstance(described, list) else ())
    highest_hz = next((gpu.get("max_sm_clock_hz") for gpu in gpus if str(gpu.get("index")) == index), None)
    return highest_hz if isinstance(highest_hz, (int, float)) else None


def _cost(group: Sequence[_Gpu], gpus: Mapping[_Gpu, _Lowered], reading: Reading) -> str:
    """The lowest mean clock beside the highest there is, as the end of a sentence; nothing where one is not known."""
    clocks = [(clock_hz, place) for place in group if (clock_hz := gpus[place].clock_hz) is not None]
    if not clocks:
        return ""
    clock_hz, (host, gpu) = min(clocks)
    highest_hz = _highest(reading, host, gpu)
    if highest_hz is None or highest_hz < clock_hz:
        return f"; its clock while it was busy was {format_value(clock_hz, 'Hz')}, the lowest mean of a case"
    which = f"GPU {gpu}" if len({host for host, _ in group}) == 1 else f"GPU {gpu} on {host}"
    return (
        f"; {which} ran at {format_value(clock_hz, 'Hz')} while it was busy, the lowest mean of a case and "
        f"{100 * (1 - clock_hz / highest_hz):.0f} % below its highest, {format_value(highest_hz, 'Hz')}"
    )


def _reasons(telemetry: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float, float | None]]:
    """Host, GPU, reason, share of samples and mean clock of everything that was seen and is not harmless."""
    for host, gpus in telemetry.items():
        for uuid, gpu in gpus.items():
            clock_hz = gpu.get("mean_busy_sm_clock_hz")
            for reason, share in (gpu.get("throttle_reasons") or {}).items():
                if reason not in _HARMLESS and share > 0:
                    clock = clock_hz if isinstance(clock_hz, (int, float)) else None
                    yield host, str(gpu.get("index", uuid)), reason, share, clock
