from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.words import plural

LEAST_SAMPLES = 3


class SlowPcie(Diagnosis):
    """GPUs whose PCIe link stayed below what GPU and slot can do, while they worked.

    What it looks for
    -----------------
    Generation and width of each GPU's link, sampled while cases ran. Samples in which the GPU was idle do not count,
    since it then lowers its generation; of the others, three or more, over all cases, the highest is held against the
    most that NVML says GPU and slot can do.

    Why it matters
    --------------
    Each generation, and each half of the lanes, halves the rate to the host's memory and to the network cards. What a
    link does at rest says nothing of it.

    How to confirm
    --------------
    nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current --format=csv -l 1 on
    that host while the case runs again; lspci -vv shows the link of the GPU and of the bridge above it.

    What usually fixes it
    ---------------------
    Reseating the GPU, its riser or cable; the slot's speed in the firmware's setup; a reset of the link by a reboot;
    else another board.
    """

    def answer(self, reading: Reading) -> Answer:
        gpus = _seen(reading)
        judged = {place: links for place, links in gpus.items() if sum(link[0] for link in links) >= LEAST_SAMPLES}
        findings = [
            Finding(f"GPU {gpu} on {host}", what, "error", evidence, host=host)
            for (host, gpu), links in sorted(judged.items())
            for what, evidence in _below(links)
        ]
        well = len(judged) - len({finding.where for finding in findings})
        healthy = (f"PCIe links of {plural(well, 'GPU')} ran at their most under load",) if well else ()
        if judged or not any(history.case.device == "cuda" and history.observations for history in reading.histories):
            return Answer(tuple(findings), healthy)
        why = "no GPU was sampled at work with the state of its PCIe link"
        return Answer(not_judged=(NotJudged("PCIe under load", why, "NVML on every host, and cases of some seconds"),))


_Link = tuple[int, int, int, int | None, int | None]
"""Busy samples, highest generation of these, the most there could be, and so for the width, where known."""


def _seen(reading: Reading) -> dict[tuple[str, str], list[_Link]]:
    gpus: dict[tuple[str, str], list[_Link]] = {}
    for history in reading.histories:
        for observation in history.observations:
            for host, gpu, link in _links(observation.telemetry):
                gpus.setdefault((host, gpu), []).append(link)
    return gpus


def _links(telemetry: Mapping[str, Any]) -> Iterator[tuple[str, str, _Link]]:
    for host, gpus in telemetry.items():
        for uuid, gpu in gpus.items():
            now, most = gpu.get("max_busy_pcie_generation"), gpu.get("most_pcie_generation")
            if now is not None and most is not None:
                widths = gpu.get("max_busy_pcie_width"), gpu.get("most_pcie_width")
                yield host, str(gpu.get("index", uuid)), (gpu.get("num_busy_samples") or 0, now, most, *widths)


def _below(links: list[_Link]) -> Iterator[tuple[str, str]]:
    """What is below the most there could be, over all cases."""
    samples = plural(sum(link[0] for link in links), "sample")
    now, most = max(link[1] for link in links), max(link[2] for link in links)
    if now < most:
        what = f"its PCIe link ran at generation {now} under load, and could at {most}"
        yield what, f"NVML: at most generation {now} in {samples} of a busy GPU"
    width = max((link[3] for link in links if link[3] is not None), default=None)
    widest = max((link[4] for link in links if link[4] is not None), default=None)
    if width is not None and widest is not None and width < widest:
        what = f"its PCIe link ran on {width} lanes under load, and could on {widest}"
        yield what, f"NVML: at most {width} lanes in {samples} of a busy GPU"
