from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.matrices import Matrix, spread_in_words, why_not_judged
from clusterbench.checks._training_node import gpu_cards
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.facts import Host
from clusterbench.formulas.slow_pairs import Slow, Spread
from clusterbench.host_facts import described_hosts
from clusterbench.run_folder.attempts import host_of
from clusterbench.tools.host_links import NVLINK, NvLink
from clusterbench.types import Observation
from clusterbench.units import format_value
from clusterbench.words import few, plural


class SlowLink(Diagnosis):
    """A link, a node or a block of nodes that is slower than its peers, and NVLinks that count errors.

    What it looks for
    -----------------
    In a matrix of pairs, a node whose median over its partners is low; otherwise one pair, or one direction of it, that
    is low; or a block of nodes whose links to all others are low while those among them are not. Low is below the
    median by more than 10 % and by more scaled median absolute deviations than chance gives once in a thousand
    matrices, in the best sample as well, and again in the second pass with partners that proved good. Where more than a
    third of all links are low each by itself, as where routes collide by chance, none is named. Of few units one
    spoils most cells, so that the unit is named without which all links are alike, or all of whose links are far below
    all others. Where ranks were paired in rails, rails are held against each other: a rail with three quarters of its
    links low, a rank with as many of its own, or a host that is slow in most rails; where all links between two hosts
    are slow, they are one. Inside a host links may differ
    by design: there they are compared where they are alike, or alike without one unit. Two units, or three of one host,
    are not judged. And NVLinks whose error counters grew while they were used, or that are down.

    Why it matters
    --------------
    A ring or a tree over all nodes is as fast as its slowest link, so one bad cable slows every collective that
    crosses it, and no figure of the whole says which.

    How to confirm
    --------------
    Run link_matrix on the named nodes and two others. Change places: if a pair stays slow with another cable or port,
    it is the host. Read the error counters of both ends (perfquery, ethtool -S, nvidia-smi nvlink -e).

    What usually fixes it
    ---------------------
    A link: reseat or replace cable and transceiver, check rate and width it was trained to. A node: its network card,
    PCIe width, NUMA place and firmware. A block: the leaf switch, its uplinks, or routing. A rank of a rail: its
    GPU's network card. A whole rail: its leaf switch. NVLink: reset the GPU, then reseat or replace it.
    """

    compares_hosts: ClassVar[bool] = True

    def answer(self, reading: Reading) -> Answer:
        records = [observation for history in reading.histories for observation in history.observations]
        nvlinks = [
            *_fewer_links(records),
            *(finding for observation in records for finding in _nvlink_findings(observation)),
        ]
        blamed = [
            _finding(matrix, fault, _of_run(reading, matrix)) for matrix in reading.matrices for fault in matrix.slow
        ]
        findings = (*blamed, *dict.fromkeys(nvlinks))
        healthy, not_judged = _spreads(reading)
        if not nvlinks and any(links.before for seen in records for links in NVLINK.readable(seen)):
            healthy.append("NVLinks are up and counted no errors")
        could = any(history.case.world_size > 1 and history.ran_here for history in reading.histories)
        if could and not (findings or healthy or not_judged):
            if _is_one_host_without_gpus(reading):
                return Answer(not_applicable="one host without GPUs has no link to another host or between GPUs")
            takes = "link_matrix in the suite, or peer_copy for the GPUs of a host"
            not_judged.append(NotJudged("links", "no link was measured by itself", takes))
        return Answer(findings, tuple(healthy), tuple(not_judged), _good_hosts(reading))


def _is_one_host_without_gpus(reading: Reading) -> bool:
    hosts = described_hosts(reading.environment).values()
    has_gpus = any(host.get("gpus") != [] or gpu_cards(Host("", host)) for host in hosts)
    most = max(map(len, reading.hosts_of_runs), default=len(hosts))
    return most == 1 and not (has_gpus or reading.has_several_hosts or reading.plan.cluster.device != "cpu")


def _of_run(reading: Reading, matrix: Matrix) -> str:
    """Of which of several runs that stand side by side; parts of one experiment are of one cluster."""
    return matrix.run if reading.hosts_of_runs else ""


def _spreads(reading: Reading) -> tuple[list[str], list[NotJudged]]:
    """What is to be said of the matrices in which nothing stands out."""
    silent = [(matrix, spread) for matrix in reading.matrices if not matrix.slow for spread in matrix.spreads]
    healthy, seen = [], set[tuple[str, str, str]]()
    cases: dict[str, set[str]] = defaultdict(set)
    for matrix, spread in silent:
        cases[_links(reading, matrix, spread)].add(matrix.case)
    for matrix, spread in silent:
        if spread.is_judged:
            assert spread.would_show is not None
            seen |= {(_of_run(reading, matrix), matrix.metric, matrix.names[unit]) for unit in spread.units}
            links = _links(reading, matrix, spread)
            of_case = f" in {matrix.case}" if len(cases[links]) > 1 else ""
            healthy.append(
                f"{links} are alike{of_case} ({spread_in_words(spread)}; one that carries "
                f"{100 * spread.would_show:.0f} % less would have shown)"
            )
    not_judged = {}
    for matrix, spread in silent:
        units = {(_of_run(reading, matrix), matrix.metric, matrix.names[unit]) for unit in spread.units}
        unknown = why_not_judged(spread, "rank or GPU" if any(":" in name for name in matrix.names) else "host")
        if unknown is None or units <= seen:  # the smaller of two matrices says no more
            continue
        what = _links(reading, matrix, spread)
        not_judged[what] = NotJudged(what, *unknown)
    return list(dict.fromkeys(healthy)), list(not_judged.values())


def _good_hosts(reading: Reading) -> dict[str, str]:
    """Hosts whose links to others are as fast as those of others, once units that are named are left out."""
    good: dict[str, str] = {}
    for matrix in reading.matrices:
        for spread in matrix.spreads_without_slow:
            hosts = list(dict.fromkeys(matrix.names[unit].partition(":")[0] for unit in spread.units))
            if not spread.is_judged or (reading.has_several_hosts and len(hosts) < 2):
                continue
            assert spread.would_show is not None
            which = "to other hosts" if len(hosts) > 1 else "inside it"
            said = (
                f"links {which} are like their peers in {matrix.case} ({spread_in_words(spread)}; one that carries "
                f"{100 * spread.would_show:.0f} % less would have shown)"
            )
            good |= {host: said for host in hosts if host in matrix.hosts}
    return good


def _links(reading: Reading, matrix: Matrix, spread: Spread) -> str:
    """``links inside n1``, ``links between n1, n2``; of several runs ``march: links between n1, n2``."""
    names = [matrix.names[unit] for unit in spread.units]
    hosts = list(dict.fromkeys(name.partition(":")[0] for name in names))
    where = f"inside {hosts[0]}" if len(hosts) == 1 and ":" in names[0] else f"between {few(names)}"
    return ": ".join(filter(None, (_of_run(reading, matrix), f"links {where}")))


def _finding(matrix: Matrix, fault: Slow, run: str) -> Finding:
    names = [matrix.names[unit] for unit in fault.units]
    usual = "median node" if fault.kind == "node" and matrix.host_of is None else "median link"
    share = f"{100 * fault.value / fault.usual:.0f} %"
    brief = f"{100 * (1 - fault.value / fault.usual):.0f} % slower than its peers{f' in {run}' if run else ''}"
    if fault.kind == "link":
        what = f"the link carries {share} of what the {usual} does"
    elif fault.kind == "links":
        what = f"all {len(names) // 2} links between the two hosts carry {share} of what the {usual} does"
    elif fault.kind == "rail":
        what = f"the whole rail is slow: its links carry {share} of what the {usual} does"
    elif fault.kind == "node":
        what = f"slow with most of its partners: {share} of what the {usual} carries"
    else:
        what = f"slow with all others and fast among themselves: links across carry {share} of those inside"
    again = [row.value for cell, row in matrix.again.items() if {*fault.units} & {*cell} and row.value is not None]
    second = f"; again {format_value(min(again), 'B/s')} in the second pass" if again else ""
    evidence = (
        f"{matrix.case}: measured {format_value(fault.value, 'B/s')}, "
        f"median {format_value(fault.usual, 'B/s')} over {plural(len(matrix.cells), 'cell')}{second}"
    )
    hosts = tuple(dict.fromkeys(name.partition(":")[0] for name in names))
    is_one = len(hosts) == 1 and fault.kind not in ("block", "rail")
    return Finding(
        matrix.place_of(fault),
        what,
        "warning",
        evidence,
        brief=brief,
        host=hosts[0] if is_one else "",
        among=() if is_one else hosts,
    )


def _nvlink_findings(observation: Observation) -> Iterator[Finding]:
    """Links that went down or counted errors; from ``nvlink``."""
    for rank, readings in enumerate(NVLINK.readable(observation)):
        host = host_of(observation, rank)
        later: defaultdict[tuple[int, int], list[NvLink]] = defaultdict(list)
        for state in (*readings.during, *readings.after):
            later[state.gpu, state.link].append(state)
        for link in readings.before:
            where = f"host {host}, GPU {link.gpu}, NVLink {link.link}"
            states = later[link.gpu, link.link]
            if link.is_active and any(state.is_active is False for state in states):
                yield Finding(where, "the link went down while it was used", "error", observation.case, host=host)
            if counts := _grown(link, states):
                counted = ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in counts.items())
                evidence = f"{observation.case}: {counted}"
                yield Finding(where, "error counters grew while it was used", "warning", evidence, host=host)


def _fewer_links(records: Iterable[Observation]) -> Iterator[Finding]:
    """GPUs of one host have equally many links; which ones a board leaves out only its neighbours say.

    One finding a GPU, however many cases read its links: by the fewest that were up.
    """
    cases = defaultdict[tuple[str, int], dict[str, tuple[int, int]]](dict)
    for observation in records:
        for rank, readings in enumerate(NVLINK.readable(observation)):
            active: Counter[int] = Counter()
            for link in readings.before:
                active[link.gpu] += link.is_active is True
            most = max(active.values(), default=0)
            for gpu, count in active.items():
                if count < most:
                    fewest = cases[host_of(observation, rank), gpu]
                    fewest[observation.case] = min((count, most), fewest.get(observation.case, (count, most)))
    for (host, gpu), of_cases in cases.items():
        count, most = min(of_cases.values())
        what = f"{most - count} of its {most} NVLinks {'is' if most - count == 1 else 'are'} down"
        evidence = f"{few([*of_cases])}: {count} {'is' if count == 1 else 'are'} up, on other GPUs of this host {most}"
        yield Finding(f"host {host}, GPU {gpu}", what, "error", evidence, host=host)


def _grown(before: NvLink, later: Sequence[NvLink]) -> dict[str, int]:
    """By how much each error counter of a link grew, of those that did."""
    most = {name: max((state.errors.get(name, 0) for state in later), default=0) for name in before.errors}
    return {name: most[name] - count for name, count in before.errors.items() if most[name] > count}
