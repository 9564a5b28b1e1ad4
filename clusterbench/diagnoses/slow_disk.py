from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding
from clusterbench.diagnoses._peers import Peer
from clusterbench.run_folder.attempts import History, host_of
from clusterbench.types import Observation
from clusterbench.units import digits
from clusterbench.words import few, plural

_BENCHMARKS = ("file_io", "small_files")
_LONGER, _AT_BEST = 2.0, 1.5
_FEWEST = 3
"""Hosts: of two nobody knows which is as it should be."""


class SlowDisk(Diagnosis):
    """A host whose files are written or read much more slowly than those of the others.

    What it looks for
    -----------------
    In file_io and small_files, on three hosts or more: a host that takes twice as long as the median host, and in
    its best iteration still half as long again. The time of a host is that of its slowest rank. Less is not named:
    disks of one kind differ by what they hold, and files of a shared file system by the servers they lie on.

    Why it matters
    --------------
    A checkpoint is written when the last host has written its part, and a step waits for the last batch to be read:
    one slow disk, or one bad mount, stops all hosts again and again.

    How to confirm
    --------------
    Run the same suite again with the hosts in another order. 'iostat -x 1' on the host shows how long its disk takes;
    'nvme smart-log', 'smartctl -a' and the kernel's log what is wrong with it; 'mount' how a shared one is mounted.

    What usually fixes it
    ---------------------
    A full or worn disk, another job that writes, an array that is rebuilt, a path over the slow network, or a mount
    with other options than on the other hosts. Replace the disk when nothing of this explains it.
    """

    def answer(self, reading: Reading) -> Answer:
        slow: dict[str, list[_Host]] = defaultdict(list)
        compared: set[str] = set()
        for history in (same for whole in reading.histories for same in whole.by_hosts):
            hosts = _hosts(history)
            if len(hosts) >= _FEWEST and reading.ran_here:
                compared |= {host.host for host in hosts}
                for host in _Host.beside(hosts):
                    if host.is_slower(_LONGER, _AT_BEST):
                        slow[host.host].append(host)
        if not compared:
            return Answer()
        findings = sorted(map(_finding, slow.values()), key=lambda each: -each[0])
        sentence = f"files of {plural(len(compared), 'host')}: none takes {_LONGER:g} times as long as the median host"
        return Answer(tuple(finding for _, finding in findings), () if findings else (sentence,))


@dataclass(frozen=True, kw_only=True)
class _Host(Peer):
    """A host: seconds of its slowest rank in each iteration, and where its files are."""

    path: str


def _hosts(history: History) -> list[_Host]:
    """Those of a case that has samples of all of its ranks; none of other benchmarks."""
    if history.case.benchmark not in _BENCHMARKS or history.pooled is None:
        return []
    path = str(history.case.point.get("path", ""))
    return [
        _Host(
            host=host,
            case=history.case.id,
            seconds=[max(ranks) for ranks in zip(*seconds, strict=False)],
            path=path,
        )
        for host, seconds in _by_host(history.pooled).items()
        if host and all(seconds)
    ]


def _by_host(observation: Observation) -> Mapping[str, list[Sequence[float]]]:
    hosts: dict[str, list[Sequence[float]]] = defaultdict(list)
    for rank, seconds in enumerate(observation.seconds):
        hosts[host_of(observation, rank)].append(seconds)
    return hosts


def _finding(cases: Sequence[_Host]) -> tuple[float, Finding]:
    """Of one host, by the case in which it is slowest; with how much longer it takes there."""
    worst = max(cases, key=lambda host: host.ratio)
    others = [host.case for host in cases if host.case != worst.case]
    also = f"; slow in {few(others, 3)} as well" if others else ""
    brief = f"{worst.ratio:.1f} times as long as the median host"
    return worst.ratio, Finding(
        f"{worst.path} on {worst.host}" if worst.path else f"disk of {worst.host}",
        f"takes {digits(worst.median_s, 3)} s for its files, {brief} ({digits(worst.usual_s, 3)} s)",
        "warning",
        f"{worst.case}: its best iteration took {digits(min(worst.seconds), 3)} s{also}",
        brief=brief,
        host=worst.host,
    )
