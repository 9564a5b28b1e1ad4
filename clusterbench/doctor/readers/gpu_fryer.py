"""gpu-fryer: GPUs that it calls slow or throttled while all of them work."""

from __future__ import annotations

import re

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.words import plural

_NAME = "burn_in"
_WELL = re.compile(r"(?m)^\s*All GPUs seem healthy\s*$")
_ILL = re.compile(r"(?m)^\s*Some GPUs are not healthy\. Reasons:")
_REASON = re.compile(r"(?m)^\s*- GPU (?P<gpu>\d+) - (?P<reason>GPU .+?)\s*$")
_RATE = re.compile(r"(?m)^\s*GPU #(?P<gpu>\d+): +(?P<rate>\d+) Gflops/s \(min: .*\)\s*$")
_CONFIRM = "gpu-fryer 300; nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE; dmesg | grep -i xid"


class GpuFryer(HostText):
    """Its own verdict: 10 % below the best GPU, throttled by hardware or heat, or without any product.

    It compares no results, so a GPU that computes wrong passes.
    """

    kind = "gpu-fryer"

    def holds(self, text: str) -> bool:
        return any(each.search(text) for each in (_WELL, _ILL, _RATE))

    def read(self, text: str, name: str) -> Said:
        rates = {said["gpu"]: said for said in _RATE.finditer(text)}
        found = []
        for said in _REASON.finditer(text):
            rate = rates.get(said["gpu"])
            at = f" (at {int(rate['rate']) / 1e3:.1f} TFLOP/s)" if rate else ""
            what = f"gpu-fryer{at}: {said['reason'].partition('. ')[0]}"
            fix = "power limit, cooling, clocks and Xids of this GPU; reset it and run again; if it fails again, RMA"
            evidence = f"{name}: {said[0].strip()}"
            found.append(Found(_NAME, "error", (name,), f"GPU {said['gpu']}", what, evidence, _CONFIRM, fix))
        if not found and not _WELL.search(text):
            why = "the text ends before the verdict"
            return Said(
                not_judged=(NotJudged(_NAME, (name,), why, "a run that ends, with its last lines"),), hosts=(name,)
            )
        well = f"{plural(len(rates), 'GPU')} at alike rates, none throttled" if rates else "all GPUs at alike rates"
        healthy = () if found else (Healthy(_NAME, (name,), well),)
        return Said(found=tuple(found), healthy=healthy, hosts=(name,))
