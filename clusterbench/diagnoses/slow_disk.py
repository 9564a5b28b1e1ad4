from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding
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
                compared |= {host.name for host in hosts}
                usual_s = median(host.median_s for host in hosts)
                for host in hosts:
                    if host.median_s > _LONGER * usual_s and min(host.seconds) > _AT_BEST * usual_s:
                        slow[host.name].append(host.against(usual_s))
        if not compared:
            return Answer()
        findings = sorted(map(_finding, slow.values()), key=lambda each: -each[0])
        sentence = f"files of {plural(len(compared), 'host')}: none takes {_LONGER:g} times as long as the median host"
        return Answer(tuple(finding for _, finding in findings), () if findings else (sentence,))


@dataclass(frozen=True)
class _Host:
    """A host in one case: seconds of its slowest rank in each iteration, and what the median host takes."""

    name: str
    case: str
    path: str
    seconds: Sequence[float]
    usual_s: float = 0.0

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def ratio(self) -> float:
        return self.median_s / self.usual_s

    def against(self, usual_s: float) -> _Host:
        return _Host(self.name, self.case, self.path, self.seconds, usual_s)


def _hosts(history: History) -> list[_Host]:
    """Those of a case that has samples of all of its ranks; none of other benchmarks."""
    if history.case.benchmark not in _BENCHMARKS or history.pooled is None:
        return []
    path = str(history.case.point.get("path", ""))
    return [
        _Host(host, history.case.id, path, [max(ranks) for ranks in zip(*seconds, strict=False)])
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
    brief = f"{worst.ratio:.1f} times as long as the median host"
    return worst.ratio, Finding(
        f"{worst.path} on {worst.name}" if worst.path else f"disk of {worst.name}",
        f"takes {digits(worst.median_s, 3)} s for its files, {brief} ({digits(worst.usual_s, 3)} s)",
        "warning",
        f"{few([host.case for host in cases], 3)}: its best iteration took {digits(min(worst.seconds), 3)} s",
        brief=brief,
        host=worst.name,
    )
