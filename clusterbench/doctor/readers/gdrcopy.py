"""The programs of gdrcopy: that its driver works, and not how fast it is."""

from __future__ import annotations

import re

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import gdrcopy

_PROGRAMS = (
    (re.compile(r"(?:write|read) BW:\s*\S+?MB/s"), "gdrcopy_copybw", gdrcopy.parse_copybw),
    (re.compile(r"Test\s+Size\(B\)\s+Avg\.Time\(us\)"), "gdrcopy_copylat", gdrcopy.parse_copylat),
    (re.compile(r"Round-trip latency per iteration is \S+ us"), "gdrcopy_pplat", gdrcopy.parse_pplat),
)
_PIN = re.compile(r"(?m)^Histogram of gdr_pin_buffer latency for \d+ bytes")
_DEVICE = re.compile(r"(?m)^\s*GPU id:\s?\d+; name: .+; Bus id: \S+")
_NO_DRIVER = re.compile(r"(?im)^\s*(?:error: )?gdr_open (?:error|failed)")
_FAILED = re.compile(
    r"(?im)^.*(?:gdr_open (?:error|failed)|error: gdr_open|gdrdrv driver installed|Assertion .*gdr.* failed"
    r"|gdr_(?:pin_buffer|map) (?:error|failed)).*$"
)


class GdrcopyPrograms(HostText):
    """Whether GPU memory was mapped and copied. A rate depends on processor and slot, and has no peer in the text."""

    kind = "gdrcopy"

    def holds(self, text: str) -> bool:
        is_ours = "gdr" in text or any(pattern.search(text) for pattern, _, _ in _PROGRAMS)
        return is_ours and (_DEVICE.search(text) is not None or _NO_DRIVER.search(text) is not None)

    def read(self, text: str, name: str) -> Said:
        if failed := _FAILED.search(text):
            what, fix = (
                "GPU memory cannot be mapped and copied by the CPU",
                "load gdrdrv of the same version as libgdrapi",
            )
            evidence = f"{name}: {failed[0].strip()}"
            found = Found("gdrdrv", "warning", (name,), "", what, evidence, "lsmod | grep gdrdrv; gdrcopy_sanity", fix)
            return Said(found=(found,), hosts=(name,))
        takes = "another host's or another GPU's output of the same program"
        program = next((program for pattern, program, _ in _PROGRAMS if pattern.search(text)), "")
        ended = "gdrcopy_apiperf" if _PIN.search(text) else ""
        for pattern, each, parse in _PROGRAMS:
            if pattern.search(text):
                try:
                    parse(text)
                    ended = program
                except ToolError as error:
                    part = NotJudged("gdrdrv", (name,), f"{each}: {error}", "the whole output")
                    return Said(not_judged=(part,), hosts=(name,))
        if not ended:
            return Said(
                not_judged=(NotJudged("gdrdrv", (name,), "no result is printed", "the whole output"),), hosts=(name,)
            )
        rate = NotJudged("gdrcopy_rate", (name,), f"{ended} has no peer in the text to be held against", takes)
        healthy = Healthy("gdrdrv", (name,), f"{ended} ran without an error: GPU memory can be mapped")
        return Said(healthy=(healthy,), not_judged=(rate,), hosts=(name,))
