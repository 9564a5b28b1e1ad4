"""Copies of SuperBench, those of each kind held against each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.peers import weak_gpus, weak_pairs
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import gpu_copy
from clusterbench.tools.gpu_copy import GpuCopy
from clusterbench.words import few, plural

_OF_PAIRS = "nvidia-smi topo -m; nvidia-smi nvlink -s", "NVLink's state; ACS and IOMMU off for bare metal"
_OF_HOST = (
    "nvidia-smi -q | grep -A8 'GPU Link Info'; lspci -vv | grep LnkSta",
    "reseat the card; look at riser and slot",
)


class GpuCopyTable(HostText):
    """Pairs of GPUs, and GPUs with the host, that copy far less than others do by the same engine.

    Of copies with the host the fastest NUMA node counts: the others are farther away. GPUs have numbers without a
    gap, so that one which is missing between two others ran no copy.
    """

    kind = "gpu_copy of SuperBench"

    def holds(self, text: str) -> bool:
        return gpu_copy.is_gpu_copy(text)

    def read(self, text: str, name: str) -> Said:
        copies = gpu_copy.parse(text)
        gpus = {end for copy in copies for end in (copy.source, copy.destination) if isinstance(end, int)}
        found = [*_missing(gpus, name)]
        unclear: list[str] = []
        num_kinds = 0
        for rates in _of_pairs(copies).values():
            num_kinds += len(rates) > 1
            said = weak_pairs({pair: copy.bytes_per_s for pair, copy in rates.items()})
            unclear += [said.unclear] if said.unclear else []
            worst = sorted(said.pairs, key=lambda pair: rates[pair].bytes_per_s)
            for pair in worst[:1] if said.gpu is not None else worst:
                where = f"GPU {pair[0]} -> GPU {pair[1]}" if said.gpu is None else f"GPU {said.gpu} and all others"
                found.append(_slow_copy("weak_pair", name, where, rates[pair], said.usual, "pair", *_OF_PAIRS))
        for best in _with_host(copies).values():
            num_kinds += len(best) > 1
            slow = weak_gpus({gpu: copy.bytes_per_s for gpu, copy in best.items()})
            unclear += [slow.unclear] if slow.unclear else []
            found += [
                _slow_copy("weak_copy", name, f"GPU {gpu}", best[gpu], slow.usual, "GPU", *_OF_HOST)
                for gpu in slow.gpus
            ]
        unknown = tuple(NotJudged("weak_pair", (name,), why, "nvidia-smi topo -m") for why in dict.fromkeys(unclear))
        if num_kinds == 0:
            why = "no copy has a peer: one GPU, or a text that ends early"
            return Said(not_judged=(NotJudged("weak_copy", (name,), why, "the whole output of a host"),), hosts=(name,))
        if found or unknown:
            return Said(found=tuple(found), not_judged=unknown, hosts=(name,))
        what = (
            f"{plural(len(copies), 'copy', 'copies')} of {plural(len(gpus), 'GPU')} alike for every GPU, of each kind"
        )
        return Said(healthy=(Healthy("weak_pair", (name,), what),), hosts=(name,))


def _missing(gpus: set[int], name: str) -> Iterator[Found]:
    missing = [gpu for gpu in range(max(gpus, default=0)) if gpu not in gpus]
    if missing:
        what = f"has no copy, though GPU {max(gpus)} has"
        where = f"GPU {few(missing)}"
        yield Found("missing_copy", "warning", (name,), where, what, f"{name}: no line names it", "nvidia-smi", "")


def _of_pairs(copies: Sequence[GpuCopy]) -> dict[str, dict[tuple[int, int], GpuCopy]]:
    """Of each kind the copies between two GPUs."""
    kinds: dict[str, dict[tuple[int, int], GpuCopy]] = defaultdict(dict)
    for copy in copies:
        if isinstance(copy.source, int) and isinstance(copy.destination, int) and copy.source != copy.destination:
            kinds[copy.kind][copy.source, copy.destination] = copy
    return kinds


def _with_host(copies: Sequence[GpuCopy]) -> dict[str, dict[int, GpuCopy]]:
    """Of each kind and direction the fastest copy of each GPU, on whatever NUMA node."""
    kinds: dict[str, dict[int, GpuCopy]] = defaultdict(dict)
    for copy in copies:
        ends = copy.source, copy.destination
        gpus = {end for end in ends if isinstance(end, int)}
        if len(gpus) != 1 or "gpu_all" in ends:
            continue
        (gpu,) = gpus
        kind = " ".join([copy.kind, *("gpu" if isinstance(end, int) else end for end in ends)])
        if gpu not in kinds[kind] or kinds[kind][gpu].bytes_per_s < copy.bytes_per_s:
            kinds[kind][gpu] = copy
    return kinds


def _slow_copy(
    check: str, name: str, where: str, copy: GpuCopy, usual: float, peer: str, confirm: str, fix: str
) -> Found:
    what = f"copies {copy.bytes_per_s / 1e9:.1f} GB/s, the median {peer} {usual / 1e9:.1f} GB/s"
    return Found(check, "error", (name,), where, what, f"{name}: {copy.line}", confirm, fix)
