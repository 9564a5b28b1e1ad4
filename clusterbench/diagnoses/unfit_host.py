from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from clusterbench.cases import Reading
from clusterbench.checks import checks, hosts_of, judge
from clusterbench.diagnoses import Answer, Diagnosis, Finding
from clusterbench.facts import Host
from clusterbench.types import SEVERITIES
from clusterbench.words import few, plural


class UnfitHost(Diagnosis):
    """Hosts whose files, before the run, said that something is wrong with them.

    What it looks for
    -----------------
    What 'clusterbench doctor --quick' looks for: every check of 'clusterbench doctor --list' that needs facts only,
    over what each host recorded of itself when the run began.

    Why it matters
    --------------
    A port that is down, a GPU on half of its PCIe lanes or a limit on locked memory costs speed or ends a run, and the
    figure alone does not say so: all hosts may be alike in it.

    How to confirm
    --------------
    By the command that stands with each error and warning, on the host; 'clusterbench doctor' there judges anew.

    What usually fixes it
    ---------------------
    It stands with each error and warning. Run the suite again afterwards.
    """

    def answer(self, reading: Reading) -> Answer:
        hosts = [host for host in hosts_of(reading.environment) if host.environment.get("facts")]
        if not hosts or not reading.ran_here:
            return Answer()
        findings, healthy, unknown = [], 0, 0
        judged_apart = (judge(own) for own in _of_each_run(reading, hosts))
        for name, of_hosts in chain.from_iterable(answers.items() for answers in judged_apart):
            kind = checks()[name]
            for host, judged in of_hosts.items():
                for fault in judged.faults:
                    what = f"{fault.where}: {fault.what}" if fault.where else fault.what
                    findings.append(
                        Finding(
                            f"host {host}",
                            what,
                            fault.severity or kind.severity,
                            fault.evidence,
                            host=host,
                            confirm=fault.confirm or kind.confirm,
                            fix=kind.fix,
                        )
                    )
                healthy += bool(judged.healthy)
                unknown += bool(judged.unknown)
        if not healthy and not findings:
            return Answer()
        without = f"; {unknown} could not be judged, and 'clusterbench doctor' says why" if unknown else ""
        num_hosts = len(reading.own_hosts(host.name for host in hosts))
        in_order = f"{plural(healthy, 'answer')} of checks of {plural(num_hosts, 'host')} in order{without}"
        return Answer(tuple(_worst_first(findings, reading)), (in_order,) if healthy else ())


def _of_each_run(reading: Reading, hosts: Sequence[Host]) -> Iterator[Sequence[Host]]:
    """Those of runs that stand side by side each by themselves: that runs were on unlike hosts is no fault of any."""
    for names in reading.hosts_of_runs or ([host.name for host in hosts],):
        if own := [host for host in hosts if host.name in names]:
            yield own


def _worst_first(findings: Iterable[Finding], reading: Reading) -> list[Finding]:
    """By host, the one with the most errors first; behind them what is worth knowing, once for all hosts alike."""
    against: dict[str, list[Finding]] = defaultdict(list)
    notes: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        (notes[finding.what] if finding.severity == "note" else against[finding.host]).append(finding)
    hosts = sorted(against.values(), key=_badness)
    of_hosts = [sorted(of_host, key=lambda finding: SEVERITIES.index(finding.severity)) for of_host in hosts]
    return [*chain.from_iterable(of_hosts), *(_shared(alike, reading) for alike in notes.values())]


def _badness(findings: Sequence[Finding]) -> tuple[int, ...]:
    """Smaller is worse."""
    return tuple(-sum(finding.severity == severity for finding in findings) for severity in SEVERITIES)


def _shared(alike: Sequence[Finding], reading: Reading) -> Finding:
    hosts = reading.own_hosts(finding.host for finding in alike)
    if len(hosts) == 1:
        return alike[0]
    return replace(alike[0], where=f"{len(hosts)} hosts ({few(hosts)})", host="", among=hosts)
