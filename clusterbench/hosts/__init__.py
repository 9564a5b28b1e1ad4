"""What a run says of each host: good, bad or not judged, each with its evidence.

A host is bad where something was found that no program does to a healthy one: it was lost and has not come back, its
link went down, or a diagnosis of the machine names it. It is good where every diagnosis that compares hosts found it
in order, cases ended well on it, and nothing speaks against it. What lies between, such as a rank that raised an
exception, is not judged.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from clusterbench.cases import Reading
from clusterbench.cluster import is_same_host
from clusterbench.diagnoses import Answer, Finding, diagnoses, in_words
from clusterbench.measured.disturbed import DISTURBED, UNDISTURBED
from clusterbench.run_folder import (
    ABSENT_HOSTS,
    HOSTS_WITHOUT_LINK,
    LOST_HOSTS,
    RETURNED_HOSTS,
    SILENT_HOSTS,
    SPARES,
    noted,
)
from clusterbench.run_folder.attempts import FAULTS, History
from clusterbench.types import Case, Outcome

Judged = Literal["good", "bad", "not judged"]

_MOST_SAID = 5
_OF_HOSTS = (LOST_HOSTS, SILENT_HOSTS, HOSTS_WITHOUT_LINK, ABSENT_HOSTS, SPARES)
_OTHER_ORDER = "the same cases with the hosts in another order (--hosts): what moves with a host is the host's"
_ALIKE = "the suite again once hosts are alike in what they run and have"
_NO_LOSS = "a run that does not lose it"
_THIRD_HOST = "a third host, or --launch, which tries every host by itself"


@dataclass(frozen=True)
class Evidence:
    """What speaks for or against a host. ``kind`` is a diagnosis, or a word of :func:`_of_outcome` or of the notes."""

    kind: str
    sentence: str


@dataclass(frozen=True)
class Host:
    """A host with what is known of it; ``takes`` is what would judge one that is not judged.

    ``num_against`` is how many of the evidence, which are its first, speak against it.
    """

    name: str
    judged: Judged
    evidence: tuple[Evidence, ...]
    takes: tuple[str, ...] = ()
    num_against: int = 0


@dataclass(frozen=True)
class Hosts:
    """All hosts of a run, in its order."""

    hosts: tuple[Host, ...]
    ranks_per_node: int

    def named(self, judged: Judged) -> list[str]:
        """The names of those that are judged so."""
        return [host.name for host in self.hosts if host.judged == judged]

    def as_json(self) -> str:
        """What ``hosts.json`` holds."""
        lists = {"good": self.named("good"), "bad": self.named("bad"), "not_judged": self.named("not judged")}
        return json.dumps({**lists, "hosts": {host.name: _as_json(host) for host in self.hosts}}, indent=1) + "\n"


def _as_json(host: Host) -> dict[str, Any]:
    takes = {"takes": [*host.takes]} if host.takes else {}
    return {"judged": host.judged, "evidence": [vars(evidence) for evidence in host.evidence], **takes}


@dataclass(frozen=True)
class _Said:
    """Something against some hosts; what would decide it, unless they are bad."""

    hosts: tuple[str, ...]
    evidence: Evidence
    takes: str = ""


def judge_hosts(reading: Reading, answers: Mapping[str, Answer]) -> Hosts | None:
    """What a run says of its hosts; None of an import or a dry run, which have none.

    Parameters
    ----------
    answers
        Of every diagnosis, see :func:`clusterbench.diagnoses.examine`.
    """
    if not reading.ran_here:
        return None
    run = _Run.of(reading)
    said: dict[str, list[_Said]] = defaultdict(list)
    for each in (*_of_outcomes(run), *_of_notes(run), *_of_findings(run, answers)):
        for host in dict.fromkeys(map(run.known_as, each.hosts)):
            said[host].append(each)
    return Hosts(
        tuple(_judged(run, host, said[host], answers) for host in run.hosts), reading.plan.cluster.ranks_per_node
    )


def lost_hosts(reading: Reading) -> dict[str, Evidence]:
    """The hosts that are bad as they, or their links, were lost and have not come back, each with how it was first."""
    if not reading.ran_here:
        return {}
    run, lost = _Run.of(reading), dict[str, Evidence]()
    for said in (*_of_outcomes(run), *_of_notes(run)):
        for host in said.hosts if not said.takes else ():
            lost.setdefault(run.known_as(host), said.evidence)
    return lost


def _judged(run: _Run, host: str, said: Sequence[_Said], answers: Mapping[str, Answer]) -> Host:
    worst_first = sorted(said, key=lambda each: bool(each.takes))  # what is certain before what may be another host's
    against = tuple(_first_of_each_kind(each.evidence for each in worst_first))
    if any(not each.takes for each in said):
        return Host(host, "bad", against, num_against=len(against))
    takes = UNDISTURBED if run.has_void_figures else "a case on all ranks of this host and of others"
    compared, lacking = _compared(host, answers, {each.evidence.kind for each in said}, takes)
    ended_well = run.ended_well[host]
    if not ended_well:
        lacking.append("a case that ends well on this host")
    elif not compared and not lacking:
        lacking.append("more ranks, and matmul and link_matrix in the suite")
    count = (Evidence("cases", f"{ended_well:,} of {run.num_ended_well:,} cases that ended well ran here"),)
    all_takes = tuple(dict.fromkeys((*islice(dict.fromkeys(each.takes for each in said), _MOST_SAID), *lacking)))
    evidence = (*against, *run.remarks(host), *compared, *(count if ended_well else ()))
    return Host(host, "not judged" if all_takes else "good", evidence, all_takes, len(against))


def _first_of_each_kind(evidence: Iterable[Evidence]) -> Iterator[Evidence]:
    """The first of each kind, and how many more there are: a thousand cases may fail alike on a thousand hosts."""
    kinds: dict[str, dict[Evidence, None]] = defaultdict(dict)
    for each in evidence:
        kinds[each.kind][each] = None
    for kind, of_kind in kinds.items():
        yield from islice(of_kind, _MOST_SAID)
        if len(of_kind) > _MOST_SAID:
            yield Evidence(kind, f"and {len(of_kind) - _MOST_SAID:,} more of this kind")


def _compared(
    host: str, answers: Mapping[str, Answer], against: Container[str], takes: str
) -> tuple[list[Evidence], list[str]]:
    """In what a host was held against others and is in order, and what it ``takes`` where that could not be.

    Diagnoses that found something ``against`` it did compare it.
    """
    good, lacking = [], []
    for name, kind in diagnoses().items():
        answer = answers.get(name, Answer())
        if not kind.compares_hosts or answer.state == "nothing to judge":
            continue
        if host in answer.good_hosts:
            good.append(Evidence(name, answer.good_hosts[host]))
            continue
        if name in against:
            continue
        of_host = [part for part in answer.not_judged if not part.hosts or host in part.hosts]
        lacking += [part.sentence for part in of_host] or [f"{in_words(name).lower()}: {takes}"]
    return good, lacking


@dataclass(frozen=True)
class _Run:
    """A run's hosts under one name each."""

    reading: Reading
    hosts: tuple[str, ...]
    ended_well: Counter[str]
    num_ended_well: int

    @classmethod
    def of(cls, reading: Reading) -> _Run:
        environment = reading.environment
        places = Counter(  # of many cases on many hosts most ran on the same
            seen[0] if len(seen) == 1 else tuple({host for hosts in seen for host in hosts})
            for history in reading.histories
            if (seen := list(dict.fromkeys(observation.hosts for observation in history.observations)))
        )
        outcomes = [outcome for history in reading.histories for outcome in history.outcomes]
        own = dict.fromkeys((*reading.plan.cluster.hosts, *noted(environment, "hosts")))
        own |= dict.fromkeys(host for hosts in places for host in hosts)
        others = [host for outcome in outcomes for host in (outcome.host, *outcome.lost_hosts) if host]
        others += [host for heading in _OF_HOSTS for host in noted(environment, heading)]
        hosts = [*own]
        for other in dict.fromkeys(others):
            if other not in own and not any(is_same_host(other, host) for host in hosts):
                hosts.append(other)
        counts: Counter[str] = Counter()
        for of_cases, count in places.items():
            counts.update(dict.fromkeys(of_cases, count))
        return cls(reading, tuple(hosts), counts, places.total())

    def known_as(self, name: str) -> str:
        """The run's name of a host that a launcher may call otherwise."""
        if name not in self._names:
            self._names[name] = next((host for host in self.hosts if is_same_host(host, name)), name)
        return self._names[name]

    @cached_property
    def _names(self) -> dict[str, str]:
        """By what each host was called: its own name, and others as they are met."""
        return {host: host for host in self.hosts}

    def remarks(self, host: str) -> Iterator[Evidence]:
        """What there is to say of it that is neither good nor bad."""
        for name, what in noted(self.reading.environment, SPARES).items():
            if self.known_as(name) == host:
                yield Evidence("spare", f"named as a spare: {what}")

    def of_case(self, history: History) -> tuple[str, ...]:
        """The hosts that a case may have run on where it did not end well: its outcome does not say."""
        first = self.reading.plan.cluster.hosts[: history.case.num_nodes]
        replaced = any(noted(self.reading.environment, heading) for heading in (*_OF_HOSTS, RETURNED_HOSTS))
        return first if first and not replaced else self.hosts

    @cached_property
    def losses(self) -> Counter[str]:
        """In how many outcomes each host was lost."""
        outcomes = [outcome for history in self.reading.histories for outcome in history.outcomes]
        return Counter(self.known_as(name) for outcome in outcomes for name in outcome.lost_hosts)

    @cached_property
    def has_void_figures(self) -> bool:
        """Whether what some part of the machine did while cases ran left these without a figure."""
        return any(row.value is None and row.basis.startswith(DISTURBED) for row in self.reading.rows)

    def has_returned(self, host: str) -> bool:
        """Whether it took part again after the last time that it was lost."""
        back = noted(self.reading.environment, RETURNED_HOSTS)
        times = [count for name, count in back.items() if self.known_as(name) == host and type(count) is int]
        return any(count >= self.losses[host] for count in times)


# What speaks against a host


def _of_outcomes(run: _Run) -> Iterator[_Said]:
    for history in run.reading.histories:
        for outcome in history.outcomes:
            expected = outcome.status in history.case.expected_outcomes and not outcome.lost_hosts
            if outcome.status in FAULTS and not expected:
                settled = any(other.repeat == outcome.repeat and other.status == "ok" for other in history.deciding)
                yield from _of_outcome(run, history, outcome, settled)


def _of_outcome(run: _Run, history: History, outcome: Outcome, passed_later: bool) -> Iterator[_Said]:
    """What an attempt that ended badly says of hosts; nothing where ranks of all hosts failed alike."""
    reason = f"{outcome.case}: {outcome.reason or outcome.status}"
    culprits = outcome.lost_hosts or ((outcome.host,) if outcome.host else ())
    if outcome.blame == "host" and culprits:
        for host in culprits:
            back = run.has_returned(run.known_as(host))
            evidence = Evidence("lost", f"{reason}; it took part again later" if back else reason)
            yield _Said((host,), evidence, _NO_LOSS if back else "")
        yield from _unknown_names(run, culprits, reason)
    elif outcome.blame == "link" and outcome.host and outcome.host not in outcome.lost_hosts:
        yield _Said((outcome.host,), Evidence("link down", reason))
    elif outcome.blame == "link":
        hosts = (*run.of_case(history), *culprits)
        yield _Said(hosts, Evidence("silence", f"{reason}; whose link it is was not seen"), _THIRD_HOST)
    elif outcome.status == "wrong":
        evidence = Evidence("wrong result", f"{reason}; which rank computed it is not known")
        yield _Said((*run.of_case(history), *culprits), evidence, _finding_it(history.case))
    elif outcome.blame == "program":
        return
    elif outcome.blame == "unknown" or not culprits:
        if not passed_later:
            yield _Said(run.of_case(history), Evidence("unexplained", reason), _finding_it(history.case))
    else:
        what = "memory" if outcome.status == "out_of_memory" else "process"
        evidence = Evidence(what, f"{reason}; the same program may do so on any host")
        yield _Said(culprits, evidence, _finding_it(history.case))


def _finding_it(case: Case) -> str:
    if case.num_nodes == 1:
        return "the suite again with another host first (--hosts), to compare what ran on one host"
    return f"--bisect {case.id}, which finds the hosts that it needs in order to fail"


def _unknown_names(run: _Run, lost: Iterable[str], reason: str) -> Iterator[_Said]:
    """A launcher may know a host by a name or an address that it does not give itself: any host may be that one."""
    described = [*noted(run.reading.environment, "hosts")]
    for host in lost:
        if described and not any(is_same_host(host, name) for name in described):
            evidence = Evidence("lost", f"{reason}; no host calls itself {host}")
            yield _Said(tuple(described), evidence, "a launcher's command that names hosts as they call themselves")


def _of_notes(run: _Run) -> Iterator[_Said]:
    """What environment.json notes of hosts that were lost between cases, or with cases that did not use them."""
    environment = run.reading.environment
    for heading in (LOST_HOSTS, ABSENT_HOSTS):
        for host, why in noted(environment, heading).items():
            yield _Said((host,), Evidence("lost", str(why)))
    for host, why in noted(environment, HOSTS_WITHOUT_LINK).items():
        yield _Said((host,), Evidence("link down", str(why)))
    for host, why in noted(environment, LOST_HOSTS).items():
        yield from _unknown_names(run, (host,), str(why))
    for host, why in noted(environment, SILENT_HOSTS).items():
        yield _Said(run.hosts, Evidence("silence", f"{host}: {why}; whose link it is was not seen"), _THIRD_HOST)
    for host in noted(environment, RETURNED_HOSTS):
        if not run.losses[run.known_as(host)]:  # otherwise an outcome says how
            yield _Said((host,), Evidence("lost", "it was lost before, and took part again later"), _NO_LOSS)


def _of_findings(run: _Run, answers: Mapping[str, Answer]) -> Iterator[_Said]:
    """What the diagnoses of the machine found; a note is no finding."""
    for name, answer in answers.items():
        if diagnoses()[name].subject != "machine":
            continue
        for finding in answer.findings:
            if finding.severity != "note":
                yield _of_finding(run, name, finding)


def _of_finding(run: _Run, name: str, finding: Finding) -> _Said:
    evidence = Evidence(name, f"{finding.title}" + (f" ({finding.evidence})" if finding.evidence else ""))
    if finding.host:
        return _Said((finding.host,), evidence)
    return _Said(finding.among or run.hosts, evidence, _ALIKE if name == "unlike_hosts" else _OTHER_ORDER)
