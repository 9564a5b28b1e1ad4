"""``nvidia-smi topo -p2p``: whether GPUs of a host may reach each other's memory."""

from __future__ import annotations

import re
from collections import Counter

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import nvidia_topo
from clusterbench.words import few, plural

_ROW = re.compile(r"(?m)^\s*GPU\d+\s+(?:(?:X|OK|CNS|GNS|TNS|NS|DR|U)\s+)*(?:X|OK|CNS|GNS|TNS|NS|DR|U)\s*$")

_OF_THE_HOST = {"CNS", "TNS", "U"}
"""Chipset or topology do not support it, or nothing is known of it."""
_FEWEST = 4
"""Of fewer GPUs one may be of another kind."""


class NvidiaP2pMatrix(HostText):
    """Pairs that may not, where other pairs may and the host's plan does not explain it.

    GeForce cards refuse all pairs, and some hosts refuse those of two sockets, for every GPU alike: no fault of one.
    """

    kind = "nvidia-smi topo -p2p"

    def holds(self, text: str) -> bool:
        return _ROW.search(text) is not None

    def read(self, text: str, name: str) -> Said:
        try:
            said = nvidia_topo.parse_peers(text)
        except ToolError as error:
            return Said(not_judged=(NotJudged("peer_access", (name,), str(error), "the whole matrix"),), hosts=(name,))
        pairs = {(a, b): said.status[a][b] for a in said.devices for b in said.devices if a != b}
        refused = [pair for pair, status in pairs.items() if status != "OK"]
        if not refused and pairs:
            what = f"{plural(len(pairs), 'pair')} of GPUs may reach each other's memory"
            return Said(healthy=(Healthy("peer_access", (name,), what),), hosts=(name,))
        often = Counter(gpu for pair in refused for gpu in pair)
        reasons = {pairs[pair] for pair in refused}
        words = ", ".join(sorted(reasons))
        is_one_of_few = len(said.devices) < _FEWEST and any(number == len(refused) for number in often.values())
        if len({often[gpu] for gpu in said.devices}) == 1 or is_one_of_few or reasons <= _OF_THE_HOST:
            why = f"{len(refused)} of {len(pairs)} pairs may not: {words}"
            takes = "the products: GeForce cards refuse it, and hosts may between sockets"
            return Said(not_judged=(NotJudged("peer_access", (name,), why, takes),), hosts=(name,))
        shown = few([f"{a} -> {b}" for a, b in refused])
        what = f"{len(refused)} of {len(pairs)} pairs may not reach each other's memory, unlike the others: {words}"
        first = refused[0][0]
        row = next(line.strip() for line in text.splitlines() if line.split()[:1] == [first] and "X" in line.split())
        fix = "remove settings that disable peer-to-peer (NVreg_RegistryDwords, ForceP2P); look at ACS, IOMMU and MIG"
        found = Found("peer_access", "error", (name,), shown, what, f"{name}: {row}", "nvidia-smi topo -p2p r", fix)
        return Said(found=(found,), hosts=(name,))
