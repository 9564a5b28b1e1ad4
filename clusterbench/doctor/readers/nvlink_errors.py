"""Error counters of NVLinks (``nvidia-smi nvlink -e``, ``dcgmi nvlink -e``)."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import nvlink_errors
from clusterbench.tools.nvlink_errors import LinkErrors
from clusterbench.types import Severity
from clusterbench.words import few, plural

_NAME = "nvlink_errors"
_RETRAINED = ("Recovery Error", "Recovery Errors", "Local link integrity Errors", "Link recovery failed events")
_REPEATED = (
    "Replay Error",
    "Replay Errors",
    "CRC Errors",
    "CRC FLIT Error",
    "CRC Data Error",
    "Malformed packet Errors",
    "Buffer overrun Errors",
    "Rx Errors",
    "Rx General Errors",
    "Tx discards",
)
MOST_REPEATED = 100
"""Of one link. Our own: a link that sends a packet again now and then loses no speed."""


class NvlinkErrors(HostText):
    """Links that had to train again, and those with many packets that were damaged and sent again.

    Counters run since the driver was loaded: whether they grow takes a second reading.
    """

    kind = "nvidia-smi nvlink -e"

    def holds(self, text: str) -> bool:
        return nvlink_errors.is_errors(text)

    def read(self, text: str, name: str) -> Said:
        try:
            gpus = nvlink_errors.parse_errors(text)
        except ToolError as error:
            return Said(not_judged=(NotJudged(_NAME, (name,), str(error), "the whole output"),), hosts=(name,))
        known = [gpu for gpu in gpus if any(kind in (*_RETRAINED, *_REPEATED) for _, kind in gpu.counts)]
        if not known:
            part = NotJudged(_NAME, (name,), "no counter of a link is in the text", "nvidia-smi nvlink -e, whole")
            return Said(not_judged=(part,), hosts=(name,))
        found = tuple(each for gpu in known for each in _found(gpu, name))
        bad = {each.where for each in found}
        well = [gpu for gpu in known if f"GPU {gpu.gpu}" not in bad]
        links = sum(len({link for link, _ in gpu.counts}) for gpu in well)
        what = f"{plural(links, 'NVLink')} of {plural(len(well), 'GPU')} without errors"
        return Said(found=found, healthy=(Healthy(_NAME, (name,), what),) if well else (), hosts=(name,))


def _found(gpu: LinkErrors, name: str) -> Iterator[Found]:
    retrained = {key: count for key, count in gpu.counts.items() if count and key[1] in _RETRAINED}
    repeated = {key: count for key, count in gpu.counts.items() if count and key[1] in _REPEATED}
    if not retrained and not repeated:
        return
    many = any(count > MOST_REPEATED for count in repeated.values())
    severity: Severity = "warning" if retrained or many else "note"
    said = few([f"link {link}: {count:,} {kind}" for (link, kind), count in (retrained or repeated).items()])
    what = f"{'links had to train again' if retrained else 'packets were damaged or sent again'}: {said}"
    first = next(iter(retrained or repeated))
    confirm = "nvidia-smi nvlink -e, twice; dmesg | grep -i 'xid.*74'"
    fix = "look for Xid 74 and SXids; reseat the GPU or its tray; reset the GPU; if they grow, RMA"
    yield Found(_NAME, severity, (name,), f"GPU {gpu.gpu}", what, f"{name}: {gpu.lines[first]}", confirm, fix)
