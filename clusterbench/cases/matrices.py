"""Matrices of pairs: how fast each pair of nodes, ranks or GPUs of a case is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from clusterbench.formulas.pairing import Pair, num_links
from clusterbench.formulas.slow_pairs import Slow, Spread, attribute, between_hosts, spreads
from clusterbench.rows import Row
from clusterbench.units import format_value
from clusterbench.words import few

PAIRS = ("pair_bandwidth", "pair_bandwidth_both", "pair_latency")
COPIES = ("copy_bandwidth", "copy_bandwidth_both", "copy_latency")
_AGAIN = "proven_bandwidth"
CELLS = (*PAIRS, *COPIES, _AGAIN)
"""Metrics of pairs, with those of a second pass."""

_ONE_WAY = ("pair_bandwidth", "copy_bandwidth")
_NOT_COMPARED = ("host", "driver")  # over the hosts' memory: every such copy shares it


@dataclass(frozen=True)
class Matrix:
    """One metric of every pair of a case: ``cells[from, to]`` by the numbers of ``names``.

    ``category`` tells matrices of one metric apart (how a copy went); ``again`` are cells of the second pass.
    ``num_rails`` is how many ranks a host has where each is paired with those of the same place in other hosts, else 0.
    """

    case: str
    metric: str
    category: str
    hosts: tuple[str, ...]
    names: tuple[str, ...]
    cells: Mapping[Pair, Row] = field(repr=False)
    again: Mapping[Pair, Row] = field(default_factory=dict, repr=False)
    num_rails: int = 0

    @property
    def run(self) -> str:
        return next(iter(self.cells.values())).run

    @property
    def host_of(self) -> Mapping[int, int] | None:
        """The host of each unit, where a host may have several of them."""
        if not any(":" in name for name in self.names):
            return None
        places = {host: number for number, host in enumerate(dict.fromkeys(map(_host, self.names)))}
        return {unit: places[_host(name)] for unit, name in enumerate(self.names)}

    @property
    def rail_of(self) -> Mapping[int, int] | None:
        """The place of each unit in its host, where only those of one place are paired."""
        if not self.num_rails:
            return None
        return {unit: _number(name) % self.num_rails for unit, name in enumerate(self.names)}

    @property
    def num_links(self) -> int:
        """Links that there are between its units, or between those of each rail, or of each host and no other."""
        groups, host_of = self.rail_of, self.host_of
        if host_of is not None and all(host_of[source] == host_of[part] for source, part in self.cells):
            groups = host_of
        if groups is None:
            return num_links(len(self.names))
        return sum(num_links(count) for count in Counter(groups.values()).values())

    @cached_property
    def slow(self) -> list[Slow]:
        """What is to blame for its low cells; nothing where lower is better."""
        if not self.is_compared:
            return []
        best = {cell: row.high if row.high is not None else row.value or 0.0 for cell, row in self.cells.items()}
        faults = attribute(_values(self.cells), best, _values(self.again), self.host_of, self.rail_of)
        return faults if self.host_of is None else between_hosts(faults, self.cells, self.host_of)

    def place_of(self, fault: Slow) -> str:
        """Where a fault is: ``n1``, ``n1 <-> n2``, ``rail 2 (n0:2, n1:6)``."""
        names = [self.names[unit] for unit in fault.units]
        hosts = list(dict.fromkeys(map(_host, names)))
        if fault.kind in ("link", "links"):
            return f" {'<->' if fault.both_ways else '->'} ".join(names if fault.kind == "link" else hosts)
        if fault.kind == "rail" and self.rail_of is not None:
            return f"rail {self.rail_of[fault.units[0]]} ({few(names)})"
        if fault.kind == "node":
            return names[0] if len(names) == 1 else f"{hosts[0]}, in most rails"
        return few(hosts if self.num_rails else names)

    @property
    def is_compared(self) -> bool:
        """Whether its cells are held against each other: rates one way, over links that no other copy shares."""
        return self.metric in _ONE_WAY and self.category not in _NOT_COMPARED

    @cached_property
    def spreads(self) -> list[Spread]:
        """How far the cells that are held against each other are apart."""
        return spreads(_values(self.cells), self.host_of) if self.is_compared else []

    @cached_property
    def spreads_without_slow(self) -> list[Spread]:
        """The same of the cells that are left without the units that are to blame for low ones."""
        slow = {unit for fault in self.slow for unit in fault.units}
        left = {cell: value for cell, value in _values(self.cells).items() if slow.isdisjoint(cell)}
        return spreads(left, self.host_of) if self.is_compared else []


def why_not_judged(spread: Spread, unit: str = "unit") -> tuple[str, str] | None:
    """Why cells do not say whether all links are well, and what it would take; None where they do.

    ``unit`` is what has links: ``host``.
    """
    if spread.is_judged:
        return None
    if len(spread.units) == 2:
        return "one link has no peer to be held against", f"a third {unit}"
    if spread.would_show is None or spread.would_show >= 1:
        takes = "a quiet host and more repetitions, or the same matrix of a host that is known to be good"
        return f"they differ by design or by noise, {spread_in_words(spread)}", takes
    takes = "a quiet machine, or more repetitions of each pair (pair_iterations)"
    return f"noise would hide one that carries {100 * spread.would_show:.0f} % less, {spread_in_words(spread)}", takes


def spread_in_words(spread: Spread) -> str:
    """``1.0 GB/s to 2.1 GB/s``."""
    return f"{format_value(spread.low, 'B/s')} to {format_value(spread.high, 'B/s')}"


def matrices(rows: Iterable[Row]) -> list[Matrix]:
    """Every matrix among the rows, in their order."""
    cells: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        is_a_cell = row.metric in CELLS and {"source", "part"} <= row.detail.keys()
        if is_a_cell and row.value is not None:
            cells.setdefault((row.case, row.metric, row.detail.get("category", "")), []).append(row)
    all_matrices = []
    for (case, metric, category), own in cells.items():
        if metric == _AGAIN:
            continue
        hosts = tuple(own[0].hosts.split())
        names = _names(own, hosts)
        again = cells.get((case, _AGAIN, category), []) if metric == PAIRS[0] else []
        point = own[0].point
        num_rails = int(point["ranks_in_node"]) if point.get("between") == "rails" else 0
        all_matrices.append(
            Matrix(case, metric, category, hosts, names, _cells(own, names), _cells(again, names), num_rails)
        )
    return all_matrices


def _names(rows: Sequence[Row], hosts: Sequence[str]) -> tuple[str, ...]:
    """All units, in the order of hosts, and in a host by number."""
    place = {host: number for number, host in enumerate(hosts)}
    units = dict.fromkeys(row.detail[end] for end in ("source", "part") for row in rows)

    def order(name: str) -> tuple[int, int, str]:
        return place.get(_host(name), len(place)), _number(name), name

    return tuple(sorted(units, key=order))


def _cells(rows: Iterable[Row], names: Sequence[str]) -> dict[Pair, Row]:
    unit = {name: number for number, name in enumerate(names)}
    return {(unit[row.detail["source"]], unit[row.detail["part"]]): row for row in rows}


def _values(cells: Mapping[Pair, Row]) -> dict[Pair, float]:
    return {cell: row.value for cell, row in cells.items() if row.value is not None}


def _number(name: str) -> int:
    """That of a rank or GPU in its host, or of a node whose host is not known."""
    number = name.removeprefix(f"{_host(name)}:").removeprefix("node ")
    return int(number) if number.isdecimal() else 0


def _host(name: str) -> str:
    return name.partition(":")[0]
