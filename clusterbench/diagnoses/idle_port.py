from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import ClassVar, NamedTuple

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.run_folder.attempts import host_of
from clusterbench.tools.error_counters import PACKETS, PORT, carrying, kind_of
from clusterbench.types import HostCounters, Observation
from clusterbench.words import Word, few, plural

_ALIKE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_LEAST_SHARE = 0.05
_FEWEST_HOSTS = 3
_FEWEST_PACKETS = 50_000
"""On the median host: of few messages NCCL sends all over few of the ports."""


class IdlePort(Diagnosis):
    """A network port that carries nothing on one host, and its share on the others.

    What it looks for
    -----------------
    The packets that each port of InfiniBand or RoCE carried in all_reduce, all_gather, reduce_scatter and all_to_all,
    with as many ranks on each of three hosts or more. A port is idle where in each of these cases it carried less than
    a twentieth of what the port of the same name carried on the median host, and that was 50,000 packets or more. Hosts
    whose ports have other names are not compared. One that few hosts use is not named: it may be for storage.

    Why it matters
    --------------
    NCCL uses the cards that it can open and goes on without the rest, and says so in its log alone. One card of eight
    that is not used takes an eighth of that host's bandwidth, and every collective waits for it.

    How to confirm
    --------------
    Run nccl_transport on that host and on another: NCCL's log names the cards that it opened. 'ibstat' shows whether
    the port is active, 'ibv_devinfo' whether it can be opened, 'show_gids' whether it has an address.

    What usually fixes it
    ---------------------
    A port that is down or not yet active; NCCL_IB_HCA that is set on one host only; a RoCE card without an address of
    its own; a device file that the container or the job does not see; a locked memory limit.
    """

    glossary: ClassVar[tuple[Word, ...]] = (
        Word("rail", "The network cards of the same place in all hosts, and the switches that join them."),
    )

    def answer(self, reading: Reading) -> Answer:
        shares, unlike, hosts = defaultdict[tuple[str, str], list[_Share]](list), set[str](), set[str]()
        for seen in _compared(reading):
            ports = {host: _ports(seen.counters[host]) for host in {*seen.hosts}}
            common = _on_most(ports)
            for host, of_host in ports.items():
                if common - of_host.keys() and of_host.keys() - common:
                    unlike.add(host)
                    continue
                hosts.add(host)
                for port in common:
                    usual = median(of.get(port, 0) for of in ports.values())
                    shares[host, port].append(_Share(seen.case, of_host.get(port, 0), usual))
        idle = defaultdict[str, dict[str, _Share]](dict)
        for (host, port), of_cases in sorted(shares.items()):
            if (share := _idle(of_cases)) is not None:
                idle[host][port] = share
        findings = [_finding(host, of_ports) for host, of_ports in idle.items()]
        numbers = f"{plural(len({port for _, port in shares}), 'port')} on {plural(len(hosts), 'host')}"
        healthy = (f"{numbers}: each carries its share",) if shares and not findings else ()
        return Answer(tuple(findings), healthy, tuple(_not_judged(tuple(sorted(unlike - hosts)))))


class _Share(NamedTuple):
    """Packets of one port in one case, and of that of the same name on the median host."""

    case: str
    own: int
    usual: float


def _compared(reading: Reading) -> Iterator[Observation]:
    """Records of collectives in which every rank does the same, as many on each of several hosts."""
    for history in reading.histories:
        for seen in history.observations if history.ran_here and history.case.benchmark in _ALIKE else ():
            ranks = Counter(host_of(seen, rank) for rank in range(history.case.world_size))
            known = all(host in seen.counters and not seen.counters[host].unread for host in ranks)
            if known and len(ranks) >= _FEWEST_HOSTS and len({*ranks.values()}) == 1:
                yield seen


def _ports(counters: HostCounters) -> Mapping[str, int]:
    """Packets of each port over which a case sent."""
    used = {port for port in carrying(counters) if kind_of(port) == PORT}
    return {port: counters.grown[port][PACKETS] for port in used}


def _on_most(ports: Mapping[str, Mapping[str, int]]) -> set[str]:
    """Those over which more than half of the hosts sent."""
    number = Counter(port for of_host in ports.values() for port in of_host)
    return {port for port, hosts in number.items() if 2 * hosts > len(ports)}


def _idle(of_cases: Sequence[_Share]) -> _Share | None:
    """What a port carried in all cases together, if it was idle in each."""
    busy = [share for share in of_cases if share.usual >= _FEWEST_PACKETS]
    if not busy or any(share.own >= _LEAST_SHARE * share.usual for share in busy):
        return None
    cases = few(list(dict.fromkeys(share.case for share in busy)))
    return _Share(cases, sum(share.own for share in busy), sum(share.usual for share in busy))


def _finding(host: str, idle: Mapping[str, _Share]) -> Finding:
    own, usual = sum(share.own for share in idle.values()), sum(share.usual for share in idle.values())
    carries = "carries" if len(idle) == 1 else "carry"
    what = f"{carries} {100 * own / usual:.1f} % of what they do on the other hosts" if own else f"{carries} nothing"
    cases = next(iter(idle.values())).case
    evidence = f"{own:,} packets in {cases}, and {usual:,.0f} on the median host"
    return Finding(f"host {host}, {few(list(idle))}", what, "warning", evidence, host=host)


def _not_judged(unlike: tuple[str, ...]) -> Iterator[NotJudged]:
    if unlike:
        yield NotJudged("use of ports", f"{few(unlike)}: ports have other names", "names as on the others", unlike)
