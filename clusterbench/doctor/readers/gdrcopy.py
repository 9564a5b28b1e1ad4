"""The programs of gdrcopy: that its driver works, and not how fast it is."""

from __future__ import annotations

import re

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import gdrcopy
from clusterbench.types import Severity
from clusterbench.words import few, plural

_PROGRAMS = (
    (re.compile(r"(?:write|read) BW:\s*\S+?MB/s"), "gdrcopy_copybw", gdrcopy.parse_copybw),
    (re.compile(r"Test\s+Size\(B\)\s+(?:Avg\.|Median )Time\(us\)"), "gdrcopy_copylat", gdrcopy.parse_copylat),
    (re.compile(r"Round-trip latency per iteration is \S.* us"), "gdrcopy_pplat", gdrcopy.parse_pplat),
)
_PIN = re.compile(r"(?m)^Histogram of gdr_pin_buffer latency for \d+ bytes")
_DEVICE = re.compile(r"(?m)^\s*GPU id:\s?\d+; name: .+; Bus id: \S+")
_NO_DRIVER = re.compile(r"(?im)^\s*(?:error: )?gdr_open (?:error|failed)")
_FAILED = re.compile(
    r"(?im)^.*(?:gdr_open (?:error|failed)|error: gdr_open|gdrdrv driver installed|Assertion .*gdr.* failed"
    r"|gdr_(?:pin_buffer|map) (?:error|failed)).*$"
)


_SANITY = re.compile(r"(?m)^\s*Total: (\d+), Passed: (\d+), Failed: (\d+), Waived: \d+")
_LIST = re.compile(r"List of failed tests:\s*\n((?:[ \t]+\S+\s*(?:\n|$))+)")
_OF_DATA = "data_validation"


class GdrcopyPrograms(HostText):
    """Whether GPU memory was mapped and copied. A rate depends on processor and slot, and has no peer in the text."""

    kind = "gdrcopy"

    def holds(self, text: str) -> bool:
        is_ours = "gdr" in text or any(pattern.search(text) for pattern, _, _ in _PROGRAMS)
        if _SANITY.search(text):
            return True
        return is_ours and (_DEVICE.search(text) is not None or _NO_DRIVER.search(text) is not None)

    def read(self, text: str, name: str) -> Said:
        if sanity := _SANITY.search(text):
            return _sanity(text, name, sanity)
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


def _sanity(text: str, name: str, total: re.Match[str]) -> Said:
    """The program's own tests; those of data say that what was read back is not what was written."""
    number = int(total[3])
    if not number:
        what = f"{total[2]} of {total[1]} tests of gdrcopy_sanity passed, none failed"
        return Said(healthy=(Healthy("gdrdrv", (name,), what),), hosts=(name,))
    listed = _LIST.search(text)
    names = listed[1].split() if listed else []
    what = f"{plural(number, 'test')} of gdrcopy_sanity failed{f': {few(names)}' if names else ''}"
    severity: Severity = "error" if any(each.startswith(_OF_DATA) for each in names) else "warning"
    fix = "load gdrdrv of the same version as libgdrapi; a test of data: ACS and IOMMU off for bare metal, BIOS, slot"
    evidence = f"{name}: {total[0].strip()}"
    found = Found("gdrdrv", severity, (name,), "", what, evidence, "gdrcopy_sanity -v", fix)
    return Said(found=(found,), hosts=(name,))
