"""Rates of pairs of GPUs, and of single GPUs, held against those of their peers in one table.

A rate is a fault only where peers of the same kind reach more, and where it does not look like the way in which the
host was built: pairs of two sockets, or of the corners of a mesh of NVLinks, are slower alike for every GPU. Rates that
differ without being clearly a fault are not judged, since a plan and a fault look the same in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from clusterbench.formulas.slow_pairs import FEWEST_PEERS, SMALLEST_EFFECT, WOULD_SHOW, attribute, is_uniform

WEAK = 0.5
"""A pair of GPUs with less than this share of the median pair is not joined as the others are."""
_WEAK_ALONE = 0.7
"""A GPU with less than this share of the median GPU: half of its lanes are half, and sockets differ by less."""
_BEYOND_PCIE = 64e9
"""B/s; a pair that is faster is joined by NVLink. 16 lanes of generation 5 carry 63 GB/s."""
_FEW = 2
_FEWEST_ON_PCIE = 6
"""Of fewer GPUs without NVLink one may be in a slot or on a socket of its own: boards of workstations are built so."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class WeakPairs:
    """What is slow among ``usual`` B/s.

    Attributes
    ----------
    pairs
        Those that are faulty, from and to.
    gpu
        The one that all of them have in common, where they are more than one link; else None.
    unclear
        Why pairs that differ are not judged; empty where all are.
    """

    usual: float
    pairs: Sequence[Pair] = ()
    gpu: int | None = None
    unclear: str = ""


@dataclass(frozen=True)
class WeakGpus:
    """GPUs that are slow among ``usual`` B/s; ``unclear`` says why some that differ are not judged."""

    usual: float
    gpus: Sequence[int] = ()
    unclear: str = ""


def weak_pairs(rates: Mapping[Pair, float]) -> WeakPairs:
    """Pairs that are far slower than the median pair; a pair of a GPU with itself is left out.

    >>> ring = {(a, b): 250e9 for a in range(8) for b in range(8)}
    >>> weak_pairs(ring | {(2, 5): 170e9}).pairs
    [(2, 5)]
    >>> weak_pairs(ring | {(2, 5): 200e9}).unclear.partition(",")[0]
    'pairs reach 80 % to 100 % of the median pair'
    """
    rates = {pair: rate for pair, rate in rates.items() if pair[0] != pair[1]}
    if not rates or _is_alike_for_every_gpu(rates):
        return WeakPairs(_usual(rates.values()) if rates else 0.0)
    if odd := _odd_gpu(rates):
        return odd
    usual = _usual(rates.values())
    is_fabric = usual > _BEYOND_PCIE and len(rates) >= FEWEST_PEERS and is_uniform(rates.values())
    weak = [pair for pair, rate in rates.items() if rate < (1 - WOULD_SHOW if is_fabric else WEAK) * usual]
    gpus = {gpu for pair in rates for gpu in pair}
    often = Counter(gpu for pair in weak for gpu in pair)
    both_ways = all((destination, source) in weak for source, destination in weak)
    if both_ways and len({often[gpu] for gpu in gpus}) == 1:
        low, high = (f"{100 * end(rates.values()) / usual:.0f} %" for end in (min, max))
        differ = f"pairs reach {low} to {high} of the median pair, not alike for every GPU"
        return WeakPairs(usual, unclear=f"{differ}: the host's plan and a fault look the same")
    common = [gpu for gpu in gpus if often[gpu] == len(weak)] if len(weak) > _FEW else []
    if {*often} == gpus and usual < _BEYOND_PCIE and len(gpus) > _FEW:
        what = f"{len(weak)} of {len(rates)} pairs copy less than half of what the median pair does"
        return WeakPairs(usual, unclear=f"{what}, and every GPU is in one: slots of two sockets look the same")
    return WeakPairs(usual, weak, common[0] if len(common) == 1 else None)


def _is_alike_for_every_gpu(rates: Mapping[Pair, float]) -> bool:
    """Whether the fastest pair of each GPU is as fast as that of every other GPU, and so on to its slowest."""
    of_gpu: dict[int, list[float]] = {}
    for (source, _), rate in sorted(rates.items(), key=lambda item: item[1]):
        of_gpu.setdefault(source, []).append(rate)
    if len({*map(len, of_gpu.values())}) > 1:
        return False
    return all(_is_alike(same_place) for same_place in zip(*of_gpu.values(), strict=True))


def _odd_gpu(rates: Mapping[Pair, float]) -> WeakPairs | None:
    """The one GPU all of whose pairs are clearly slower than those of the others are among themselves."""
    gpus = {gpu for pair in rates for gpu in pair}
    if len(gpus) < (FEWEST_PEERS if max(rates.values()) > _BEYOND_PCIE else _FEWEST_ON_PCIE):
        return None
    for fault in attribute(rates, host_of=dict.fromkeys(gpus, 0)):
        own = {pair for pair in rates if fault.units[0] in pair}
        usual = median(rate for pair, rate in rates.items() if pair not in own)
        if fault.kind == "node" and all(rates[pair] < (1 - WOULD_SHOW) * usual for pair in own):
            return WeakPairs(usual, sorted(own), fault.units[0])
    return None


def weak_gpus(rates: Mapping[int, float]) -> WeakGpus:
    """GPUs whose rate is far below the usual one.

    >>> weak_gpus({0: 26e9, 1: 26e9, 2: 13e9}).gpus
    [2]
    """
    usual = _usual(rates.values())
    weak = [gpu for gpu, rate in rates.items() if rate < _WEAK_ALONE * usual]
    others = {gpu: rate for gpu, rate in rates.items() if gpu not in weak and rate < usual}
    slowest = min(others, key=others.__getitem__, default=None)
    if slowest is None or _is_alike((rates[slowest], usual)):
        return WeakGpus(usual, weak)
    share = f"GPU {slowest} reaches {100 * rates[slowest] / usual:.0f} % of the median GPU"
    return WeakGpus(usual, weak, f"{share}: another socket and a slower link look the same")


def _is_alike(rates: Collection[float]) -> bool:
    return min(rates) >= (1 - SMALLEST_EFFECT) * median(rates) and max(rates) <= (1 + SMALLEST_EFFECT) * median(rates)


def _usual(rates: Collection[float]) -> float:
    """The median; of two the faster, which the other one is held against."""
    return median(rates) if len(rates) > 2 else max(rates)
