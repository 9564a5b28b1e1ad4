"""``show_gids``: RoCE ports without an address of RoCE v2 that other hosts can reach."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from clusterbench.checks.gid_index import GidIndex
from clusterbench.checks.roce_gid import RoceGid
from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import show_gids
from clusterbench.tools.show_gids import GidRow
from clusterbench.words import few, plural

_NAME, _INDEX = "roce_gid", "gid_index"
_CONFIRM = "show_gids; ip addr"


class ShowGids(HostText):
    """Ports held against each other, as the table does not say which of them are up and meant for training.

    Where most have an address of IPv4, one without is a fault; where few have one, the others may be unused.
    """

    kind = "show_gids"

    def holds(self, text: str) -> bool:
        return show_gids.is_show_gids(text)

    def read(self, text: str, name: str) -> Said:
        table = show_gids.parse(text)
        ports = _roce_ports(table.rows)
        lacking = {where: rows for where, rows in ports.items() if not any(map(_is_good, rows))}
        found: list[Found] = []
        unclear: list[str] = []
        if not table.is_whole:
            last = table.rows[-1].where if table.rows else "the first port"
            unclear.append(f"the text ends within the table, at {last}")
            lacking.pop(last, None)
        if any(row.version is None for rows in ports.values() for row in rows):
            unclear.append("it does not tell RoCE v1 from v2")
        elif len(lacking) == len(ports) or 2 * len(lacking) < len(ports):
            found += _found(lacking, name)
        else:
            unclear.append(f"{len(lacking)} of {len(ports)} RoCE ports have no IPv4 address ({few(lacking)})")
        if not ports and table.rows:
            unclear.append("its ports are of InfiniBand")
        found += _indices(ports, name)
        takes = "show_gids, whole; which ports are meant for training"
        unknown = tuple(NotJudged(_NAME, (name,), why, takes) for why in unclear)
        what = f"{plural(len(ports), 'RoCE port')} with an IPv4 address of RoCE v2"
        is_well = not unknown and not any(each.name == _NAME for each in found)
        healthy = (Healthy(_NAME, (name,), what),) if is_well else ()
        return Said(found=tuple(found), healthy=healthy, not_judged=unknown, hosts=(name,))


def _roce_ports(rows: Sequence[GidRow]) -> Mapping[str, Sequence[GidRow]]:
    """A port of InfiniBand has addresses of version 1 alone, and no interface or one of IP over InfiniBand."""
    ports: dict[str, list[GidRow]] = defaultdict(list)
    for row in rows:
        ports[row.where].append(row)
    return {
        where: of_port
        for where, of_port in ports.items()
        if any(row.version == 2 or (row.interface and not row.interface.startswith("ib")) for row in of_port)
    }


def _is_good(row: GidRow) -> bool:
    return row.version == 2 and row.is_ipv4


def _found(lacking: Mapping[str, Sequence[GidRow]], name: str) -> Iterator[Found]:
    for where, rows in lacking.items():
        second = [row for row in rows if row.version == 2]
        if not second:
            what = "has no address of RoCE v2"
        elif all(row.is_link_local for row in second):
            what = "has link-local addresses of RoCE v2 only, and NCCL takes none of them"
        else:
            what = "has no IPv4 address of RoCE v2, and NCCL asks for one unless NCCL_IB_ADDR_FAMILY is AF_INET6"
        is_routable = any(not row.is_link_local and not row.is_ipv4 for row in second)
        row = (second or rows)[0]
        severity = "warning" if is_routable else RoceGid.severity
        yield Found(_NAME, severity, (name,), where, what, f"{name}: {row.line}", _CONFIRM, RoceGid.fix)


def _indices(ports: Mapping[str, Sequence[GidRow]], name: str) -> Iterator[Found]:
    """Ports whose address stands at another index than that of most: one index for all is then wrong for them."""
    first = {where: next(filter(_is_good, rows), None) for where, rows in ports.items()}
    good = {where: row for where, row in first.items() if row is not None}
    indices = Counter(row.index for row in good.values()).most_common()
    if len(indices) < 2 or 2 * indices[0][1] <= len(good):
        return
    for where, row in good.items():
        if row.index != indices[0][0]:
            what = f"its IPv4 address of RoCE v2 is at index {row.index}, and that of most ports at {indices[0][0]}"
            yield Found(_INDEX, "note", (name,), where, what, f"{name}: {row.line}", _CONFIRM, GidIndex.fix)
