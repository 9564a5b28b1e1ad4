from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.types import Severity
from clusterbench.words import plural

# Names of engine/telemetry.py. Reasons not listed here are warnings, so that a new one is never silent.
_SEVERITY: Mapping[str, Severity] = {
    # The power limit is where a busy GPU is meant to be.
    "sw_power_cap": "note",
    "sync_boost": "note",
}
_HARMLESS = ("gpu_idle", "application_clocks", "display_clocks")
_WORST_FIRST = ("error", "warning", "note")


class Throttling(Diagnosis):
    """GPUs whose clocks were lowered by heat or power while they were timed.

    What it looks for
    -----------------
    Reasons that NVML gave for lowered clocks while a case ran: hardware slowdown, heat, power brake, and, as a note,
    the power limit. Idle and the clocks an administrator set are not reasons to worry.

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
        cases: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
        for history in reading.histories:
            for observation in history.observations:
                for host, gpu, reason, share in _reasons(observation.telemetry):
                    shares = cases[host, gpu, reason]
                    shares[history.case.id] = max(share, shares.get(history.case.id, 0.0))
        findings = [
            Finding(
                f"GPU {gpu} on {host}",
                f"clocks were lowered ({reason.replace('_', ' ')})",
                _SEVERITY.get(reason, "warning"),
                f"in {len(shares)} of {len(reading.histories)} cases; most in {max(shares, key=shares.__getitem__)}, "
                f"in {100 * max(shares.values()):.0f} % of the samples",
                host=host,
            )
            for (host, gpu, reason), shares in sorted(cases.items())
        ]
        findings.sort(key=lambda finding: _WORST_FIRST.index(finding.severity))
        sampled = set(_sampled(reading))
        healthy = (f"clocks of {plural(len(sampled), 'GPU')} were not lowered by heat or a fault",) if sampled else ()
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


def _reasons(telemetry: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float]]:
    """Host, GPU, reason and share of samples of everything that was seen and is not harmless."""
    for host, gpus in telemetry.items():
        for uuid, gpu in gpus.items():
            for reason, share in (gpu.get("throttle_reasons") or {}).items():
                if reason not in _HARMLESS and share > 0:
                    yield host, str(gpu.get("index", uuid)), reason, share
