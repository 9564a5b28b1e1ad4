"""Ports of an InfiniBand fabric that run below what both ends can, do not come up, or are missing on one host."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import iblinkinfo
from clusterbench.tools.iblinkinfo import LinkPort
from clusterbench.types import Severity
from clusterbench.words import few, plural

_NAME = "fabric_links"
_MINORITY = 0.25
"""Where more links than this share could be faster, the fabric is set or built so, and none is a fault."""
_FEWEST_HOSTS = 3
_ADAPTER = re.compile(r"(?P<host>\S+) (?:mlx\d+_\d+|HCA-\d+|hfi1_\d+|\w*ib\w*\d+)")
_CONFIRM = "iblinkinfo; ibstat; mlxlink -d DEVICE -m -c"
_CABLE = "reseat or replace cable and transceiver; look at the width and speed that both ports are set to"


class IblinkinfoPorts(HostText):
    """Links held against what both of their ends say that they can, and hosts against their peers.

    A port of a switch that is down may have no cable; a host that has one link fewer than most has lost one. Two lanes
    of four are a warning, as a port may be split so on purpose.
    """

    kind = "iblinkinfo"

    def holds(self, text: str) -> bool:
        return iblinkinfo.is_iblinkinfo(text)

    def read(self, text: str, name: str) -> Said:
        ports = iblinkinfo.parse(text)
        links = [*{port.ends: port for port in reversed(ports) if port.remote}.values()][::-1]
        found = [*_stuck(links, name), *_hosts(links, name), *_slow([link for link in links if _is_single(link)], name)]
        slow = [link for link in links if link.could and not _is_single(link)]
        unclear = []
        if len(slow) > max(1, _MINORITY * len(links)):
            words = few(sorted({" and ".join(link.could) for link in slow}))
            unclear.append(f"{len(slow)} of {len(links)} links could be {words}: the fabric is set or built so")
        else:
            found += _slow(slow, name)
        if not links:
            unclear.append(f"none of {plural(len(ports), 'port')} has a link")
        unknown = tuple(
            NotJudged(_NAME, (name,), why, "iblinkinfo of the whole fabric; which links are meant to be slower")
            for why in unclear
        )
        down = sum(port.state == "Down" for port in ports)
        what = f"{plural(len(links), 'link')} of the fabric as wide and as fast as both ends can"
        what += f"; {plural(down, 'port')} without a link" if down else ""
        healthy = () if found or unknown else (Healthy(_NAME, (name,), what),)
        return Said(found=tuple(found), healthy=healthy, not_judged=unknown, hosts=(name,))


def _is_single(link: LinkPort) -> bool:
    """Whether a link has one lane of several, as none is built."""
    return link.width == 1 and any(could.endswith("X") for could in link.could)


def _both(link: LinkPort) -> str:
    return f"{link.where} and {link.remote} port {link.remote_port}"


def _slow(links: Sequence[LinkPort], name: str) -> Iterator[Found]:
    for link in links:
        is_split = link.width == 2 and not any("Gbps" in could or "FDR" in could for could in link.could)
        severity: Severity = "warning" if is_split else "error"
        what = f"its link runs at {link.width}X {link.lane_gbit_per_s:.8g} Gb/s, and both ends could at "
        what += " and ".join(could.replace("Gbps", "Gb/s") for could in link.could)
        yield Found(_NAME, severity, (name,), _both(link), what, f"{name}: {link.line}", _CONFIRM, _CABLE)


def _stuck(links: Sequence[LinkPort], name: str) -> Iterator[Found]:
    """Links that carry nothing: without a subnet manager, or always in recovery."""
    for link in links:
        if link.physical != "LinkUp" and link.state != "Down":
            what, fix = f"its link is in the state {link.physical}, not LinkUp", _CABLE
        elif link.state in ("Initialize", "Armed"):
            what = f"its link is up and in the state {link.state}: no subnet manager made it active"
            fix = "start a subnet manager; look at the log of the one that runs"
        else:
            continue
        yield Found(_NAME, "error", (name,), _both(link), what, f"{name}: {link.line}", _CONFIRM, fix)


def _hosts(links: Sequence[LinkPort], name: str) -> Iterator[Found]:
    """Hosts that have fewer links than most, and more than half as many: others are hosts of another kind."""
    of_hosts: dict[str, list[LinkPort]] = defaultdict(list)
    for link in links:
        for end in (link.node, link.remote):
            if adapter := _ADAPTER.fullmatch(end):
                of_hosts[adapter["host"]].append(link)
    numbers = Counter(len(of_host) for of_host in of_hosts.values())
    usual, many = numbers.most_common(1)[0] if numbers else (0, 0)
    if len(of_hosts) < _FEWEST_HOSTS or 2 * many <= len(of_hosts):
        return
    for host, of_host in of_hosts.items():
        if usual / 2 < len(of_host) < usual:
            what = f"has {plural(len(of_host), 'link')} to the fabric, and most hosts {usual}"
            fix = "ibstat on that host: which port is down; cable and transceiver of that port"
            yield Found(_NAME, "error", (name,), host, what, f"{name}: {of_host[0].line}", "ibstat; iblinkinfo", fix)
