"""Is this cluster healthy, and who says so: all checks and diagnoses asked, and what they answered, the worst first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from clusterbench.checks import Check, Judged, checks
from clusterbench.diagnoses import Answer, diagnoses
from clusterbench.types import SEVERITIES, Severity
from clusterbench.words import sections

Word = Literal["SUSPECT", "NOT JUDGED", "HEALTHY"]


@dataclass(frozen=True)
class Found:
    """One thing that is wrong, on one host or alike on several.

    Attributes
    ----------
    name
        Of the check or diagnosis.
    hosts
        Empty where it is not known which.
    accepted
        Why it is known and accepted; empty where it is not.
    slot
        The PCIe address of the card at ``where``, where that does not say it and hosts agree.
    """

    name: str
    severity: Severity
    hosts: tuple[str, ...]
    where: str
    what: str
    evidence: str
    confirm: str
    fix: str
    accepted: str = ""
    slot: str = ""

    @property
    def sentence(self) -> str:
        """``mlx5_3 port 1 (0000:4b:00.0): is DOWN, its link Polling [port_state]``."""
        return f"{self.place}: {self.what} [{self.name}]" if self.place else f"{self.what} [{self.name}]"

    @property
    def place(self) -> str:
        """Where it is, with the slot; empty where it is the host as a whole."""
        return f"{self.where} ({self.slot})" if self.slot else self.where

    @property
    def counts(self) -> bool:
        """Whether it changes the verdict."""
        return self.severity != "note" and not self.accepted


@dataclass(frozen=True)
class NotJudged:
    """What a check could not judge on these hosts, and what it would take."""

    name: str
    hosts: tuple[str, ...]
    why: str
    takes: str


@dataclass(frozen=True)
class Healthy:
    """What a check found in order, on these hosts."""

    name: str
    hosts: tuple[str, ...]
    what: str


@dataclass(frozen=True)
class Examination:
    """What all checks said of all hosts.

    Attributes
    ----------
    found
        The worst first; of equal ones what fewer hosts have, which is the more telling.
    not_applicable
        Checks and diagnoses for which no host has anything to judge, with the first reason.
    """

    hosts: tuple[str, ...]
    found: tuple[Found, ...]
    not_judged: tuple[NotJudged, ...]
    healthy: tuple[Healthy, ...]
    not_applicable: Mapping[str, str]

    @property
    def word(self) -> Word:
        if any(found.counts for found in self.found):
            return "SUSPECT"
        return "NOT JUDGED" if self.not_judged or not self.healthy else "HEALTHY"

    @property
    def exit_code(self) -> int:
        return 1 if self.word == "SUSPECT" else 0

    @property
    def in_order(self) -> tuple[str, ...]:
        """Names of what was found in order, here and everywhere it was judged."""
        faulty = {found.name for found in self.found if found.counts}
        return tuple(dict.fromkeys(said.name for said in self.healthy if said.name not in faulty))

    @cached_property
    def suspects(self) -> dict[str, list[Found]]:
        """What counts against each host that anything counts against, the worst host first."""
        against: dict[str, list[Found]] = defaultdict(list)
        for found in self.found:
            if found.counts:
                for host in found.hosts:
                    against[host].append(found)
        return dict(sorted(against.items(), key=lambda item: _badness(item[1])))

    @cached_property
    def by_hosts(self) -> dict[tuple[str, ...], list[Found]]:
        """What counts, by the hosts that share it: errors first, then what one host has, then the worst host."""
        groups: dict[tuple[str, ...], list[Found]] = defaultdict(list)
        for found in self.found:
            if found.counts:
                groups[found.hosts].append(found)
        ranks = {host: place for place, host in enumerate(self.suspects)}

        def order(hosts: tuple[str, ...]) -> tuple[int, bool, int]:
            worst = min(SEVERITIES.index(found.severity) for found in groups[hosts])
            return worst, len(hosts) > 1, min((ranks[host] for host in hosts), default=len(ranks))

        return {hosts: groups[hosts] for hosts in sorted(groups, key=order)}

    @cached_property
    def not_judged_by_need(self) -> dict[str, dict[str, list[NotJudged]]]:
        """What could not be judged, by what it would take and then by why: a reader sees what to bring."""
        needs: dict[str, dict[str, list[NotJudged]]] = defaultdict(lambda: defaultdict(list))
        for part in self.not_judged:
            needs[part.takes][part.why].append(part)
        return {need: dict(by_why) for need, by_why in needs.items()}


def _badness(found: Sequence[Found]) -> tuple[int, ...]:
    """Smaller is worse: more errors first, then more warnings."""
    return tuple(-sum(each.severity == severity for each in found) for severity in SEVERITIES)


def examine(
    hosts: Sequence[str], judged: Mapping[str, Mapping[str, Judged]], answers: Mapping[str, Answer] | None = None
) -> Examination:
    """Puts together what was said.

    Parameters
    ----------
    judged
        Of every check what it says of each host, see :func:`clusterbench.checks.judge`.
    answers
        Of the diagnoses of a run's figures, where something was measured.
    """
    found = [*_grouped(_faults(judged)), *_findings(answers or {})]
    order = sorted(found, key=lambda each: (SEVERITIES.index(each.severity), len(each.hosts) or 1))
    return Examination(
        hosts=tuple(hosts),
        found=tuple(order),
        not_judged=(*_unknown(judged), *_unknown_of_run(answers or {})),
        healthy=(*_in_order(judged), *_in_order_of_run(answers or {})),
        not_applicable=dict((*_not_applicable(judged), *_not_applicable_to_run(answers or {}))),
    )


def _faults(judged: Mapping[str, Mapping[str, Judged]]) -> Iterator[Found]:
    for name, of_hosts in judged.items():
        check: type[Check] = checks()[name]
        for host, said in of_hosts.items():
            for fault in said.faults:
                yield Found(
                    name,
                    fault.severity or check.severity,
                    (host,),
                    fault.where,
                    fault.what,
                    fault.evidence,
                    fault.confirm or check.confirm,
                    check.fix,
                    slot=fault.slot,
                )


def _grouped(found: Iterable[Found]) -> list[Found]:
    """The same at the same place on several hosts is one, with the evidence of the first."""
    groups: dict[tuple[str, ...], list[Found]] = defaultdict(list)
    for each in found:
        groups[each.name, each.severity, each.where, each.what].append(each)
    return [_one(same) for same in groups.values()]


def _one(same: Sequence[Found]) -> Found:
    slots = {each.slot for each in same}
    return replace(same[0], hosts=tuple(each.hosts[0] for each in same), slot=slots.pop() if len(slots) == 1 else "")


def _findings(answers: Mapping[str, Answer]) -> Iterator[Found]:
    for name, answer in answers.items():
        if name == OF_CHECKS:
            continue
        kind = diagnoses()[name]
        said = sections(kind)
        for finding in answer.findings:
            yield Found(
                name,
                # That a figure is not steady says nothing against a machine: nothing is said for it either.
                "note" if kind.subject == "figures" else finding.severity,
                (finding.host,) if finding.host else finding.among,
                finding.where,
                finding.what,
                finding.evidence,
                said["How to confirm"],
                said["What usually fixes it"],
            )


OF_CHECKS = "unfit_host"
"""The diagnosis that repeats the checks in a run's report."""


def _unknown(judged: Mapping[str, Mapping[str, Judged]]) -> Iterator[NotJudged]:
    for name, of_hosts in judged.items():
        groups: dict[tuple[str, str], list[str]] = defaultdict(list)
        for host, said in of_hosts.items():
            for unknown in said.unknown:
                why = f"{unknown.what}: {unknown.why}" if unknown.what else unknown.why
                groups[why, unknown.takes].append(host)
        for (why, takes), hosts in groups.items():
            yield NotJudged(name, tuple(dict.fromkeys(hosts)), why, takes)


def _unknown_of_run(answers: Mapping[str, Answer]) -> Iterator[NotJudged]:
    for name, answer in answers.items():
        if name != OF_CHECKS:
            for part in answer.not_judged:
                yield NotJudged(name, part.hosts, f"{part.what}: {part.why}", part.takes)


def _in_order(judged: Mapping[str, Mapping[str, Judged]]) -> Iterator[Healthy]:
    for name, of_hosts in judged.items():
        groups: dict[str, list[str]] = defaultdict(list)
        for host, said in of_hosts.items():
            if said.healthy:
                groups[said.healthy].append(host)
        for what, hosts in groups.items():
            yield Healthy(name, tuple(hosts), what)


def _in_order_of_run(answers: Mapping[str, Answer]) -> Iterator[Healthy]:
    for name, answer in answers.items():
        if name != OF_CHECKS:
            for what in answer.healthy:
                yield Healthy(name, (), what)


def _not_applicable(judged: Mapping[str, Mapping[str, Judged]]) -> Iterator[tuple[str, str]]:
    for name, of_hosts in judged.items():
        reasons = [said.not_applicable for said in of_hosts.values()]
        if reasons and all(reasons):
            yield name, reasons[0]


def _not_applicable_to_run(answers: Mapping[str, Answer]) -> Iterator[tuple[str, str]]:
    for name, answer in answers.items():
        if answer.not_applicable:
            yield name, answer.not_applicable
