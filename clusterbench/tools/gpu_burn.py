"""gpu-burn: products on all GPUs at once, each compared with the first, and a verdict of each GPU at the end.

Source: wilicc/gpu-burn, ``gpu_burn-drv.cpp``. What it says while it runs stands on one line, whose parts end in
returns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PROGRESS = re.compile(r"%\s+proc'd: (?P<calls>.*?)\s+errors: (?P<errors>.*?)\s+temps: ")
_CALLS = re.compile(r"(?P<calls>-?\d+) \((?P<rate>\d+) Gflop/s\)")
_TESTED = re.compile(r"(?m)^\s*Tested (?P<number>\d+) GPUs:\s*$")
_VERDICT = re.compile(r"(?m)^\s*GPU (?P<gpu>\d+): (?P<word>OK|FAULTY)\s*$")


@dataclass(frozen=True)
class GpuBurn:
    """Everything by the GPU's number.

    Attributes
    ----------
    faulty
        The verdicts, as far as they are in the text, of several runs the worst; ``num_tested`` is None where it ends
        before them.
    errors
        Most elements that were unlike: it begins to count anew with each tenth of its time.
    died
        Whose process ended before its time.
    flops_per_s
        The last rate that is above zero.
    """

    faulty: Mapping[int, bool]
    num_tested: int | None
    errors: Mapping[int, int]
    died: frozenset[int]
    flops_per_s: Mapping[int, float]


def is_gpu_burn(text: str) -> bool:
    return _TESTED.search(text) is not None or ("proc'd: " in text and "  errors: " in text)


def parse(text: str) -> GpuBurn:
    """What the whole text says of each GPU."""
    errors: dict[int, int] = {}
    rates: dict[int, float] = {}
    died: set[int] = set()
    for said in _PROGRESS.finditer(text):
        for gpu, call in enumerate(_CALLS.finditer(said["calls"])):
            if float(call["rate"]) > 0:
                rates[gpu] = float(call["rate"]) * 1e9
        for gpu, part in enumerate(said["errors"].split(" - ")):
            if number := re.match(r"\s*(\d+)", part):
                errors[gpu] = max(errors.get(gpu, 0), int(number[1]))
            if "DIED!" in part:
                died.add(gpu)
    tested = _TESTED.search(text)
    verdicts: dict[int, bool] = {}
    for said in _VERDICT.finditer(text, tested.end() if tested else len(text)):
        verdicts[int(said["gpu"])] = verdicts.get(int(said["gpu"]), False) or said["word"] == "FAULTY"
    return GpuBurn(verdicts, int(tested["number"]) if tested else None, errors, frozenset(died), rates)
