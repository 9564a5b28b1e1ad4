"""States of NVLinks (``dcgmi nvlink -s``)."""

from __future__ import annotations

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import nvlink_errors
from clusterbench.words import few, plural

_NAME = "nvlink_inactive"


class DcgmiNvlink(HostText):
    """Links that are down; one that is disabled may be so on this board, and is not judged."""

    kind = "dcgmi nvlink -s"

    def holds(self, text: str) -> bool:
        return nvlink_errors.is_states(text)

    def read(self, text: str, name: str) -> Said:
        states = nvlink_errors.parse_states(text)
        found = []
        for gpu, letters in states.items():
            down = [link for link, letter in enumerate(letters) if letter == "D"]
            if down:
                what = f"{plural(len(down), 'NVLink')} of {len(letters)} down: {few(down, 20)}"
                evidence = f"{name}: {' '.join(letters)}"
                confirm = "nvidia-smi nvlink -s; nvidia-smi topo -m"
                fix = "reset the GPU; restart the fabric manager; look for Xid 74 in the kernel's log"
                found.append(Found(_NAME, "error", (name,), f"GPU {gpu}", what, evidence, confirm, fix))
        unclear = [gpu for gpu, letters in states.items() if "D" not in letters and set(letters) != {"U"}]
        well = [gpu for gpu, letters in states.items() if set(letters) == {"U"}]
        what = f"{plural(len(well), 'GPU')} with all NVLinks up"
        healthy = (Healthy(_NAME, (name,), what),) if well else ()
        places = few([f"GPU {gpu}" for gpu in unclear])
        why = f"links of {places} are disabled or not there" if states else "no link is listed"
        unknown = (NotJudged(_NAME, (name,), why, "nvidia-smi nvlink -s"),) if unclear or not states else ()
        return Said(found=tuple(found), healthy=healthy, not_judged=unknown, hosts=(name,))
