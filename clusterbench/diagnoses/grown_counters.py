from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from clusterbench.benchmarks import benchmarks
from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.tools.error_counters import (
    GPU,
    INTERFACE,
    MEANINGS,
    PACKETS,
    PCIE,
    PORT,
    carrying,
    kind_of,
    severity_of,
)
from clusterbench.types import SEVERITIES, HostCounters, Observation, Severity
from clusterbench.words import Word, few, plural


@dataclass
class _Place:
    """One port, interface, device or GPU over all cases that ran on its host.

    Attributes
    ----------
    counts, cases
        What each counter grew by, and in which cases.
    carried, others_carried
        Whether a case sent over it, and whether one sent over others of the host.
    """

    counts: dict[str, int] = field(default_factory=dict)
    cases: dict[str, list[str]] = field(default_factory=dict)
    over_s: float = 0.0
    packets: int = 0
    carried: bool = False
    others_carried: bool = False

    def add(self, case: str, name: str, count: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + count
        self.cases.setdefault(name, []).append(case)


class GrownCounters(Diagnosis):
    """Ports, network interfaces, PCIe devices and GPUs that counted errors while cases ran.

    What it looks for
    -----------------
    Error counters that grew from the begin of a case to its end, on each host that took part. A link that went down, a
    carrier that was lost, PCIe errors and errors of GPU memory that were not corrected void the figures of the case.
    Errors of the link and its retries that end a connection are errors at any count. Symbol errors above 120 an hour,
    recoveries above 5 a minute, damaged packets above 10 a second, time-outs above 1 a second, replays of PCIe above 8
    a minute, and packets sent again above 1 in 10,000 are warnings; below that they are notes, as is congestion that
    switches and receivers told of (ECN, CNP). Ports and interfaces over which no case sent are notes where others of
    the host carried it: management and storage networks. PFC pauses are not read.

    Why it matters
    --------------
    One bad cable slows every collective that crosses it. A link that goes down and comes back within a case ends
    nothing where connections survive it, and then only its counter tells.

    How to confirm
    --------------
    Read the counter again while the case runs alone: /sys/class/infiniband/*/ports/*/counters and hw_counters,
    /sys/class/net/*/carrier_changes, /sys/bus/pci/devices/*/aer_dev_*, nvidia-smi -q -d ECC. Look at the other
    end of the link as well (perfquery, the switch): errors are counted where they arrive.

    What usually fixes it
    ---------------------
    A link: clean or replace cable and transceiver, then the card. Packets out of order or sent again on RoCE: PFC and
    ECN on every switch of the path. PCIe: reseat card or riser. Memory of a GPU: reset it, and have it replaced if
    errors that are not corrected come again.
    """

    glossary: ClassVar[tuple[Word, ...]] = (
        Word("CNP", "Congestion notification packet: by which a receiver has a RoCE sender slow down."),
        Word("ECN", "Explicit congestion notification: a mark by which a switch says that its queue grows long."),
        Word("IBTA", "InfiniBand Trade Association: who writes InfiniBand's specification."),
        Word("PFC", "Priority flow control: a switch or card has the other end of an Ethernet link pause."),
    )

    def answer(self, reading: Reading) -> Answer:
        records = [seen for history in reading.histories if history.ran_here for seen in history.observations]
        places = _places(records)
        findings = [finding for key, place in places.items() if (finding := _finding(*key, place)) is not None]
        findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
        read = _read(records)
        if any(finding.severity != "note" for finding in findings) or not read:
            healthy: tuple[str, ...] = ()
        else:
            how = "stayed below what is a warning" if findings else "did not grow while cases ran"
            healthy = (f"error counters of {read} {how}",)
        return Answer(tuple(findings), healthy, _not_judged(reading, records))


def _places(records: list[Observation]) -> dict[tuple[str, str], _Place]:
    """By host and place, those that counted anything but packets."""
    places: dict[tuple[str, str], _Place] = {}
    for seen in records:
        for host, place, grown, counters in _grown(seen):
            own = places.setdefault((host, place), _Place())
            used = carrying(counters)
            own.carried |= place in used or kind_of(place) not in (PORT, INTERFACE, PCIE)
            own.others_carried |= bool(used - {place})
            own.over_s += counters.over_s
            own.packets += grown.get(PACKETS, 0)
            for name, count in grown.items():
                if name in MEANINGS:
                    own.add(seen.case, name, count)
    return {key: place for key, place in places.items() if place.counts}


def _grown(seen: Observation) -> Iterator[tuple[str, str, Mapping[str, int], HostCounters]]:
    for host, counters in seen.counters.items():
        for place, grown in counters.grown.items():
            yield host, place, grown, counters
    for host, gpus in seen.telemetry.items():
        for uuid, gpu in gpus.items():
            counts, elapsed_s = gpu.get("grown"), (gpu.get("course") or {}).get("elapsed_s") or [0.0]
            if counts:
                over = HostCounters(max((second for second in elapsed_s if second is not None), default=0.0))
                yield host, f"{GPU} {gpu.get('index', uuid)}", counts, over


def _finding(host: str, where: str, place: _Place) -> Finding | None:
    severities = {
        name: _severity(severity_of(name, count, place.over_s, place.packets), place)
        for name, count in place.counts.items()
    }
    names = sorted(severities, key=lambda name: SEVERITIES.index(severities[name]))
    worst = names[0]
    cases = list(dict.fromkeys(place.cases[worst]))
    voids = MEANINGS[worst].voids and place.carried
    counted = ", ".join(f"{name} +{place.counts[name]:,}{_rate(name, place)}" for name in names)
    what = MEANINGS[worst].words + (f"; figures of {plural(len(cases), 'case')} are void" if voids else "")
    if kind_of(where) in (PORT, INTERFACE) and not place.carried:
        what += "; no case sent over it"
    evidence = f"{counted}, in {few(cases)}; judged by {MEANINGS[worst].source}"
    return Finding(f"host {host}, {where}", what, severities[worst], evidence, host=host)


def _severity(severity: Severity, place: _Place) -> Severity:
    """Of what no case sent over less: a note where others of the host carried it."""
    if place.carried:
        return severity
    return "note" if place.others_carried or severity == "note" else "warning"


def _rate(name: str, place: _Place) -> str:
    """``(12 a second)``; nothing of what happens once."""
    if MEANINGS[name].most_per_packet and place.packets:
        return f" ({place.counts[name] / place.packets:.2g} of its packets)"
    return f" ({place.counts[name] / place.over_s:.2g} a second)" if place.over_s and place.counts[name] > 1 else ""


def _read(records: list[Observation]) -> str:
    """``8 ports, 1 interface``, the most that each host had, of all hosts; empty where nothing was read."""
    most: dict[tuple[str, str], int] = {}
    for seen in records:
        for host, counters in seen.counters.items():
            for kind, number in counters.read.items():
                most[host, kind] = max(number, most.get((host, kind), 0))
        for host, gpus in seen.telemetry.items():
            counted = sum(gpu.get("grown") is not None for gpu in gpus.values())
            most[host, f"{GPU} memory"] = max(counted, most.get((host, f"{GPU} memory"), 0))
    kinds = sorted({kind for _, kind in most})
    numbers = {kind: sum(number for (_, of), number in most.items() if of == kind) for kind in kinds}
    return ", ".join(
        plural(number, kind, "GPU memories" if kind == f"{GPU} memory" else "")
        for kind, number in numbers.items()
        if number
    )


def _not_judged(reading: Reading, records: list[Observation]) -> tuple[NotJudged, ...]:
    """Records without counters, and hosts that could not read theirs; nothing of one host without GPUs.

    Ranks of MPI count nothing, which is no gap where other cases did.
    """
    if not reading.has_several_hosts and all(history.case.device != "cuda" for history in reading.histories):
        return ()
    unread = {host: counters.unread for seen in records for host, counters in seen.counters.items() if counters.unread}
    in_agents = {name for name, kind in benchmarks().items() if kind.in_agents}
    counting = {history.case.id for history in reading.histories if history.case.benchmark not in in_agents}
    expected = [seen for seen in records if seen.case in counting] or records
    without = sum(not seen.counters for seen in expected)
    gaps = []
    if without:
        why = f"{without} of {plural(len(expected), 'record')} hold none"
        gaps.append(NotJudged("error counters", why, "a run of this version; cases of MPI's own ranks have none"))
    for why in sorted(set(unread.values())):
        hosts = tuple(sorted(host for host, of in unread.items() if of == why))
        gaps.append(NotJudged("error counters", f"{few(hosts)}: {why}", "a host whose /sys shows them", hosts))
    return tuple(gaps)
