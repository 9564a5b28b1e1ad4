"""``lspci -vvv | grep ACSCtl``: access control services without the bridges that they are of."""

from __future__ import annotations

import re

from clusterbench.checks.acs import HARMFUL, Acs
from clusterbench.doctor import Found, Healthy
from clusterbench.doctor.said import HostText, Said
from clusterbench.words import plural

_CONTROL = re.compile(r"\s*ACSCtl:((?:\s+\w+[+-])+)\s*")
_CAPABILITY = re.compile(r"\s*ACSCap:.*")
_REDIRECTS = {f"{control}+" for control in HARMFUL}


class LspciAcs(HostText):
    """Bridges that send traffic between devices up to the CPU.

    NVIDIA's *NCCL: Troubleshooting* asks for this very text, and takes any ``SrcValid+`` for ACS that may be on.
    """

    kind = "lspci -vvv | grep ACSCtl"

    def holds(self, text: str) -> bool:
        lines = [line for line in text.splitlines() if line.strip()]
        controls = sum(map(bool, map(_CONTROL.fullmatch, lines)))
        return controls > 0 and 2 * (controls + sum(map(bool, map(_CAPABILITY.fullmatch, lines)))) > len(lines)

    def read(self, text: str, name: str) -> Said:
        lines = [line.strip() for line in text.splitlines() if _CONTROL.fullmatch(line)]
        on = [line for line in lines if _REDIRECTS & {*line.split()}]
        if not on:
            what = f"{plural(len(lines), 'bridge or function', 'bridges and functions')} {Acs.in_order}"
            return Said(healthy=(Healthy("acs", (name,), what),), hosts=(name,))
        what = (
            f"{len(on)} of {len(lines)} bridges and functions send traffic between devices up to the CPU: access "
            "control services (ACS) are on; right in a VM only. Which ones, the text does not say"
        )
        found = Found("acs", "warning", (name,), "", what, f"{name}: {on[0]}", "lspci -vvv as root", Acs.fix)
        return Said(found=(found,), hosts=(name,))
