"""Times that say nothing of a case, because something broke or held back its host meanwhile: void, with the place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from clusterbench.measured.speed import is_timed
from clusterbench.tools.error_counters import MEANINGS, what_voids
from clusterbench.types import PROOF_TIME, VOID, Metric, Observation
from clusterbench.words import few

DISTURBED = f"{VOID}while it ran"
UNDISTURBED = "the run again without what made figures void"
"""What it takes to judge by figures that are void."""
"""Begins the basis of such a figure."""

HELD_BACK = {
    "hw_slowdown": "slowed down by its hardware",
    "hw_thermal": "slowed down by its hardware for heat",
    "hw_power_brake": "slowed down by its power supply",
    "sw_thermal": "slowed down by its driver for heat",
}
"""Reasons for lowered clocks that are a fault of the machine, by their names in engine/telemetry.py.

Of ``hw_slowdown`` the cause is mostly in a second one. Source: nvml.h, nvmlClocksEventReason*.
"""


def without_disturbed(metrics: Sequence[Metric], observations: Iterable[Observation]) -> list[Metric]:
    """The figures of a case; where a repeat was disturbed those that rest on a clock without a value.

    Low and high stay.

    >>> from clusterbench.types import HostCounters
    >>> flap = {"mlx5_0 port 1": {"link_downed": 1, "packets": 10**6}}
    >>> seen = Observation("c", "", 1, 1, ("a",), [[1.0]], counters={"a": HostCounters(2.0, {"port": 1}, flap)})
    >>> [time] = without_disturbed([Metric("step_time", "s", 1.0)], [seen])
    >>> time.value, time.basis
    (None, 'void: while it ran mlx5_0 port 1 on a: the link went down')
    """
    why = list(dict.fromkeys(words for observation in observations for words in disturbances(observation)))
    if not why:
        return list(metrics)
    basis = f"{DISTURBED} {few(why, 3)}"
    return [
        metric._replace(value=None, basis=basis)
        if metric.value is not None and is_timed(metric) and metric.name != PROOF_TIME
        else metric
        for metric in metrics
    ]


def undisturbed(observations: Iterable[Observation]) -> list[Observation]:
    """Those whose times say something."""
    return [observation for observation in observations if not any(disturbances(observation))]


def disturbances(observation: Observation) -> Iterator[str]:
    """Each thing for which the times of a record say nothing, with its place and host."""
    for host, counters in observation.counters.items():
        for place, words in what_voids(counters):
            yield f"{place} on {host}: {words}"
    for host, gpus in observation.telemetry.items():
        for uuid, gpu in gpus.items():
            if words := _of_a_gpu(gpu.get("throttle_reasons") or {}, gpu.get("busy_share"), gpu.get("grown") or {}):
                yield f"GPU {gpu.get('index', uuid)} on {host}: {words}"


def _of_a_gpu(reasons: Mapping[str, float], busy_share: float | None, grown: Mapping[str, int]) -> str:
    """Empty where nothing disturbed it; one that was idle all the time holds nobody up."""
    for name in grown:
        if name in MEANINGS and MEANINGS[name].voids:
            return MEANINGS[name].words
    held = [reason for reason in HELD_BACK if reasons.get(reason, 0) > 0 and busy_share != 0.0]
    narrow = [reason for reason in held if reason != "hw_slowdown"] or held
    return HELD_BACK[narrow[0]] if narrow else ""
