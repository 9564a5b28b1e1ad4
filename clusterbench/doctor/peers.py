"""Rates of pairs of GPUs, and of single GPUs, held against those of their peers in one table.

A rate is a fault only where peers of the same kind reach more, and where it does not look like the way in which the
host was built: pairs of two sockets, or of the corners of a mesh of NVLinks, are slower alike for every GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

WEAK = 0.5
"""A pair of GPUs with less than this share of the median pair is not joined as the others are."""
_WEAK_ALONE = 0.7
"""A GPU with less than this share of the median GPU: half of its lanes are half, and sockets differ by less."""
_BEYOND_PCIE = 64e9
"""B/s; a pair that is faster is joined by NVLink. 16 lanes of generation 5 carry 63 GB/s."""
_FEW = 2

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
        Why pairs that are slow are not judged; empty where all are.
    """

    usual: float
    pairs: Sequence[Pair] = ()
    gpu: int | None = None
    unclear: str = ""


def weak_pairs(rates: Mapping[Pair, float]) -> WeakPairs:
    """Pairs that are far slower than the median pair; a pair of a GPU with itself is left out.

    >>> ring = {(a, b): 250e9 for a in range(8) for b in range(8)}
    >>> weak_pairs(ring | {(2, 5): 20e9}).pairs
    [(2, 5)]
    """
    rates = {pair: rate for pair, rate in rates.items() if pair[0] != pair[1]}
    if not rates:
        return WeakPairs(0.0)
    usual = _usual(rates.values())
    weak = [pair for pair, rate in rates.items() if rate < WEAK * usual]
    gpus = {gpu for pair in rates for gpu in pair}
    often = Counter(gpu for pair in weak for gpu in pair)
    both_ways = all((destination, source) in weak for source, destination in weak)
    if both_ways and len({often[gpu] for gpu in gpus}) == 1:
        return WeakPairs(usual)
    common = [gpu for gpu in gpus if often[gpu] == len(weak)] if len(weak) > _FEW else []
    if {*often} == gpus and usual < _BEYOND_PCIE and len(gpus) > _FEW:
        what = f"{len(weak)} of {len(rates)} pairs copy less than half of what the median pair does"
        return WeakPairs(usual, unclear=f"{what}, and every GPU is in one: slots of two sockets look the same")
    return WeakPairs(usual, weak, common[0] if len(common) == 1 else None)


def weak_gpus(rates: Mapping[int, float]) -> tuple[float, list[int]]:
    """The usual rate, and the GPUs whose rate is far below it.

    >>> weak_gpus({0: 26e9, 1: 26e9, 2: 13e9})
    (26000000000.0, [2])
    """
    usual = _usual(rates.values())
    return usual, [gpu for gpu, rate in rates.items() if rate < _WEAK_ALONE * usual]


def _usual(rates: Collection[float]) -> float:
    """The median; of two the faster, which the other one is held against."""
    return median(rates) if len(rates) > 2 else max(rates)
