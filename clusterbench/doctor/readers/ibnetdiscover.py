"""Links of an InfiniBand fabric, those of each kind held against each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import ibnetdiscover
from clusterbench.tools.ibnetdiscover import Fabric, FabricLink
from clusterbench.types import Severity
from clusterbench.words import few, plural

_FEWEST = 3
_MINORITY = 0.25
"""Where more links than this share are slower, the fabric has two kinds of links, and none is a fault."""


class IbnetdiscoverLinks(HostText):
    """Links that are narrower or slower than most of their kind: a cable or a transceiver is broken or badly seated.

    Of one kind are links of adapters of one model, and links between switches of the same two models. Two lanes of
    four are a warning, as a port may be split so on purpose; switches' own aggregation nodes are left alone.
    """

    kind = "ibnetdiscover"

    def holds(self, text: str) -> bool:
        return ibnetdiscover.is_ibnetdiscover(text)

    def read(self, text: str, name: str) -> Said:
        fabric = ibnetdiscover.parse(text)
        found: list[Found] = []
        unclear: list[str] = []
        judged = 0
        for kind, links in _kinds(fabric).items():
            rates = Counter(link.bits_per_s for link in links)
            usual = max(rates, key=lambda rate: (rates[rate], rate))
            slow = [link for link in links if link.bits_per_s < usual]
            if len(links) < _FEWEST:
                continue
            judged += len(links)
            if len(slow) > max(1, _MINORITY * len(links)):
                words = few([f"{link.width}x{link.speed}" for link in slow])
                unclear.append(f"{len(slow)} of {len(links)} links {kind} are slower than the others: {words}")
            else:
                found += _found(fabric, slow, next(link for link in links if link.bits_per_s == usual), name)
        if not judged:
            unclear.append(f"no kind of link is there {_FEWEST} times")
        unknown = tuple(
            NotJudged("fabric_links", (name,), why, "iblinkinfo, which says what each could be") for why in unclear
        )
        what = f"{plural(judged, 'link')} of the fabric as wide and as fast as others of their kind"
        healthy = () if found or unknown else (Healthy("fabric_links", (name,), what),)
        return Said(found=tuple(found), healthy=healthy, not_judged=unknown, hosts=(name,))


def _kinds(fabric: Fabric) -> dict[str, list[FabricLink]]:
    """Links by what joins what, in words."""
    kinds: dict[str, list[FabricLink]] = defaultdict(list)
    for link in fabric.links:
        ends = [fabric.nodes.get(node) for node, _ in link.ends]
        adapters = [node for node, _ in link.ends if not node.startswith("S-")]
        if "Aggregation Node" in link.line or any(end and "Aggregation Node" in end.description for end in ends):
            continue
        if adapters:
            node = fabric.nodes.get(adapters[0])
            kinds[f"of adapters {node.model if node and node.model else 'of an unknown model'}"].append(link)
        else:
            models = sorted(end.model or "" if end else "" for end in ends)
            kinds[f"between switches {' and '.join(dict.fromkeys(models))}"].append(link)
    return kinds


def _found(fabric: Fabric, slow: Sequence[FabricLink], usual: FabricLink, name: str) -> Iterator[Found]:
    fix = "reseat or replace cable and transceiver; look at the width and speed that the switch's port is set to"
    for link in slow:
        where = " and ".join(f"{_words(fabric, node)} port {port}" for node, port in link.ends)
        what = f"its link runs at {link.width}x{link.speed}, and most of its kind at {usual.width}x{usual.speed}"
        is_split = link.width == 2 and link.speed == usual.speed
        severity: Severity = "warning" if is_split else "error"
        yield Found("fabric_links", severity, (name,), where, what, f"{name}: {link.line}", "iblinkinfo; ibstat", fix)


def _words(fabric: Fabric, node: str) -> str:
    return fabric.nodes[node].description if node in fabric.nodes else node
