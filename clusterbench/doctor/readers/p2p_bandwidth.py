"""``p2pBandwidthLatencyTest`` of CUDA's samples: copies between every two GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.peers import WeakPairs, weak_pairs
from clusterbench.doctor.said import HostText, Said, quoted
from clusterbench.tools import p2p_bandwidth
from clusterbench.words import plural

_SLOWED = 0.9
"""Copies that are slower with peer access than this share of those without: something on the way works against it."""
_CONFIRM = "nvidia-smi topo -m; nvidia-smi topo -p2p r"
_FIX = "NVLink's state; ACS and IOMMU off for bare metal"


class P2pBandwidthTable(HostText):
    """Pairs far slower than the others, and copies that are slower with peer access than without."""

    kind = "p2pBandwidthLatencyTest"

    def holds(self, text: str) -> bool:
        return p2p_bandwidth.is_p2p_bandwidth(text)

    def read(self, text: str, name: str) -> Said:
        said = p2p_bandwidth.parse(text)
        pairs = weak_pairs(said.one_way)
        found = (*_weak(said, pairs, name, text), *_slowed(said, pairs, name, text))
        unknown = (NotJudged("weak_pair", (name,), pairs.unclear, "nvidia-smi topo -m"),) if pairs.unclear else ()
        number = len(said.names) * (len(said.names) - 1)
        what = f"{plural(number, 'pair')} of GPUs at rates alike for every GPU"
        what += ", none slowed by peer access" if said.one_way_off else ""
        healthy = () if found or unknown or not number else (Healthy("weak_pair", (name,), what),)
        return Said(found=found, healthy=healthy, not_judged=unknown, hosts=(name,))


def _figures(said: p2p_bandwidth.P2pBandwidth, pair: tuple[int, int], name: str, text: str) -> str:
    without = f", without {said.one_way_off[pair] / 1e9:.1f} GB/s" if said.one_way_off else ""
    figures = f"with peer access {said.one_way[pair] / 1e9:.1f} GB/s{without}"
    return quoted(name, text, p2p_bandwidth.row_of(text, pair[0]), figures)


def _weak(said: p2p_bandwidth.P2pBandwidth, weak: WeakPairs, name: str, text: str) -> Iterator[Found]:
    worst = sorted(weak.pairs, key=lambda pair: said.one_way[pair])
    for pair in worst[:1] if weak.gpu is not None else weak.pairs:
        place = f"GPU {pair[0]} -> GPU {pair[1]}" if weak.gpu is None else f"GPU {weak.gpu} and all others"
        what = f"copies {said.one_way[pair] / 1e9:.1f} GB/s, the median pair {weak.usual / 1e9:.1f} GB/s"
        figures = _figures(said, pair, name, text)
        yield Found("weak_pair", "error", (name,), place, what, figures, _CONFIRM, _FIX)


def _slowed(said: p2p_bandwidth.P2pBandwidth, weak: WeakPairs, name: str, text: str) -> Iterator[Found]:
    for pair, rate in said.one_way.items():
        off = said.one_way_off.get(pair, 0.0)
        if pair[0] != pair[1] and pair not in weak.pairs and said.peers.get(pair) and rate < _SLOWED * off:
            place, figures = f"GPU {pair[0]} -> GPU {pair[1]}", _figures(said, pair, name, text)
            what = f"copies {rate / 1e9:.1f} GB/s with peer access and {off / 1e9:.1f} GB/s without"
            yield Found("slowed_by_peer_access", "error", (name,), place, what, figures, _CONFIRM, _FIX)
