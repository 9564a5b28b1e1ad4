"""``nvidia-smi nvlink -s``: state and rate of every NVLink."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median

from clusterbench.checks.nvlink_state import LINKS
from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import nvidia_nvlink
from clusterbench.words import few, plural

_LINK_RATE, _BLACKWELL_LINK_RATE = 25e9, 50e9
"""Of one NVLink in one direction, by the data sheets of products since V100 and since B200 (18 links, 900 GB/s)."""
_SLOW_LINK = 0.9


class NvidiaNvlink(HostText):
    """Links that are inactive or slow, by what the product has, else by what the others of its kind have."""

    kind = "nvidia-smi nvlink -s"

    def holds(self, text: str) -> bool:
        return nvidia_nvlink.is_status(text)

    def read(self, text: str, name: str) -> Said:
        gpus = nvidia_nvlink.parse(text)
        found = tuple(_found(gpus, name))
        if cut := next((gpu for gpu in gpus if gpu.is_cut or (gpu is gpus[-1] and _is_cut(gpu))), None):
            ends = "lines are left out behind" if cut.is_cut else "the text ends at"
            where = f"{ends} link {max(cut.bytes_per_s, default='...')} of GPU {cut.gpu}"
            unknown = NotJudged("nvlink_inactive", (name,), where, "the whole output")
            return Said(found=found, not_judged=(unknown,), hosts=(name,))
        if found:
            return Said(found=found, hosts=(name,))
        if any(gpu.name not in LINKS and (gpu.inactive or not gpu.num_active) for gpu in gpus):
            why = "links are inactive on a board that may be so"
            unknown = NotJudged("nvlink_inactive", (name,), why, "the board's model")
            return Said(not_judged=(unknown,), hosts=(name,))
        what = f"{plural(len(gpus), 'GPU')} with {gpus[0].num_active} NVLinks active"
        return Said(healthy=(Healthy("nvlink_inactive", (name,), what),), hosts=(name,))


def _is_cut(last: nvidia_nvlink.GpuLinks) -> bool:
    """Whether the last GPU lists fewer links than it has, and none as inactive."""
    return 0 < len(last.bytes_per_s) < LINKS.get(last.name, 0) and not last.inactive


def _found(gpus: Sequence[nvidia_nvlink.GpuLinks], name: str) -> Iterator[Found]:
    """Links that are missing or slow by what the product has, else by what the others of its kind have."""
    confirm = "nvidia-smi nvlink -s; nvidia-smi topo -m"
    fix = "reset the GPU; restart the fabric manager; look for Xid 74 in the kernel's log"
    for gpu in gpus:
        alike = [other for other in gpus if other.name == gpu.name]
        most = LINKS.get(gpu.name, max(other.num_active for other in alike))
        if gpu.is_cut:
            is_missing = bool(gpu.inactive)
            what = f"has inactive NVLinks: {', '.join(map(str, gpu.inactive))}"
        else:
            is_whole = not (gpu is gpus[-1] and _is_cut(gpu))
            is_missing = (gpu.num_active < most and is_whole) or (most == 0 and "SXM" in gpu.name)
            what = f"has {gpu.num_active} of {most or 'its'} NVLinks active"
        if is_missing:
            unlisted = sorted({*range(most)} - {*gpu.bytes_per_s, *gpu.inactive}) if gpu.num_active else []
            parts = {"inactive": gpu.inactive, "not listed": unlisted}
            links = "; ".join(f"{word}: {', '.join(map(str, of))}" for word, of in parts.items() if of)
            said = f"{name}: {gpu.name}, {links or 'inactive: all'}"
            yield Found("nvlink_inactive", "error", (name,), f"GPU {gpu.gpu}", what, said, confirm, fix)
        usual = _usual_rate(gpu.name, [rate for other in alike for rate in other.bytes_per_s.values() if rate])
        slow = {link: rate for link, rate in gpu.bytes_per_s.items() if 0 < rate < _SLOW_LINK * usual}
        if slow:
            rates = ", ".join(f"{rate / 1e9:g}" for rate in dict.fromkeys(slow.values()))
            what = (
                f"{plural(len(slow), 'NVLink')} ({few([*slow])}) at {rates} GB/s, and should be at {usual / 1e9:g} GB/s"
            )
            said = f"{name}: Link {next(iter(slow))}: {next(iter(slow.values())) / 1e9:g} GB/s"
            yield Found("nvlink_slow", "error", (name,), f"GPU {gpu.gpu}", what, said, confirm, fix)


def _usual_rate(product: str, rates: Sequence[float]) -> float:
    """What a link of a product carries at least, and where its data sheet is not on record what most links do."""
    if product in LINKS:
        return _BLACKWELL_LINK_RATE if re.search(r"G?B[23]00", product) else _LINK_RATE
    return median(rates) if rates else 0.0
