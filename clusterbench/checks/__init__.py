"""What can be wrong with a host before anything runs on it: one file, one check, found by its name.

A check is a pure function of what hosts said of themselves (``facts/``). Of each host it answers found, in order, not
judged, or not applicable, each with its reason: in order is said only of what was seen. ``clusterbench doctor`` asks
all of them, and so does the report of every run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

from clusterbench.discover import things
from clusterbench.facts import Host, NotKnown
from clusterbench.host_facts import described_hosts
from clusterbench.types import Severity
from clusterbench.words import plural

Part = TypeVar("Part")


@dataclass(frozen=True)
class Fault:
    """Something wrong at one place of a host.

    Attributes
    ----------
    where
        As narrow as is known: ``mlx5_3 port 1``, ``GPU 3``; empty if it is the host as a whole.
    what
        What is wrong with it, with the figure: ``is DOWN, and was ACTIVE``.
    evidence
        The file or command and what it said: ``/sys/class/infiniband/mlx5_3/ports/1/state: 1: DOWN``.
    confirm
        A command that shows it; the check's, where this is empty.
    severity
        The check's, where this is None.
    slot
        The PCIe address of the card, where ``where`` has it not.
    """

    where: str
    what: str
    evidence: str
    confirm: str = ""
    severity: Severity | None = None
    slot: str = ""


@dataclass(frozen=True)
class Unknown:
    """Something that could not be judged, why, and what it would take; ``what`` is empty if it is all of the check."""

    why: str
    takes: str
    what: str = ""


@dataclass(frozen=True)
class Judged:
    """What a check says of one host. ``healthy`` says what was in order, with its size or number.

    ``not_applicable`` is why there is nothing here that it could judge.
    """

    faults: tuple[Fault, ...] = ()
    healthy: str = ""
    unknown: tuple[Unknown, ...] = ()
    not_applicable: str = ""

    def __post_init__(self) -> None:
        if not (self.faults or self.healthy or self.unknown or self.not_applicable):
            raise ValueError("a check says something of every host: found, in order, not judged or not applicable")


@dataclass(frozen=True)
class Trait:
    """A value in which hosts should be alike: where on the host, and the file or command that says it."""

    value: str
    source: str
    where: str = ""


class Check(ABC):
    """One question about hosts, and what to do if its answer is bad.

    Attributes
    ----------
    number
        In the list of checks, ``docs/doctor.md``.
    compares_hosts
        Whether it is about several hosts, so that of one alone it asks nothing.
    needs_workers
        Whether it judges what workers did, so that of facts alone it asks nothing.
    question
        What is asked, in a sentence that yes answers well.
    severity
        ``error``: a loss of a tenth or more, or a failure. ``warning``: likely a loss. ``note``: worth knowing; never
        changes a verdict.
    source
        The files, or the program, that it comes from.
    programs
        Those that are run for it, apart by commas; empty where files and libraries say all.
    right
        ``root`` where others cannot read them.
    confirm, fix
        A command that shows it to a person; what usually mends it.
    """

    number: ClassVar[int]
    compares_hosts: ClassVar[bool] = False
    needs_workers: ClassVar[bool] = False
    question: ClassVar[str]
    severity: ClassVar[Severity]
    source: ClassVar[str]
    programs: ClassVar[str] = ""
    right: ClassVar[str] = ""
    confirm: ClassVar[str]
    fix: ClassVar[str]

    @abstractmethod
    def judge_all(self, hosts: Sequence[Host]) -> Mapping[str, Judged]:
        """What it says of each of these hosts, by name."""

    def judge_alone(self, host: Host) -> Judged:
        """What a check that compares hosts says where there is one."""
        return Judged(not_applicable="one host alone has no other to be held against")


class HostCheck(Check):
    """A check that judges each host by itself."""

    @abstractmethod
    def judge(self, host: Host) -> Judged:
        """What it says of one host.

        Raises
        ------
        NotKnown
            If what it needs was not read: it is then not judged.
        """

    def judge_all(self, hosts: Sequence[Host]) -> Mapping[str, Judged]:
        return {host.name: self._judged(host) for host in hosts}

    def _judged(self, host: Host) -> Judged:
        try:
            return self.judge(host)
        except NotKnown as error:
            return Judged(unknown=(Unknown(error.why, error.takes),))


class PartsCheck(HostCheck, Generic[Part]):
    """A check of one kind of part, such as ports or GPUs, of which a host has several.

    ``parts`` is their noun in the plural, ``in_order`` what is said of those that are well.
    """

    parts: ClassVar[str]
    in_order: ClassVar[str]

    @abstractmethod
    def parts_of(self, host: Host) -> Sequence[Part]:
        """The parts to judge; none where the host has none of them.

        Raises
        ------
        NotKnown
            If it is not known which there are.
        """

    @abstractmethod
    def fault(self, host: Host, part: Part) -> Fault | None:
        """What is wrong with a part; None where it was looked at and is in order.

        Raises
        ------
        NotKnown
            If what it needs was not read.
        """

    def slot(self, host: Host, part: Part) -> str:
        """The PCIe address of a part, where its name does not say it."""
        return ""

    def judge(self, host: Host) -> Judged:
        parts = self.parts_of(host)
        if not parts:
            return Judged(not_applicable=f"no {self.parts} here")
        faults, unknown, well = [], [], 0
        for part in parts:
            try:
                fault = self.fault(host, part)
            except NotKnown as error:
                unknown.append(Unknown(error.why, error.takes))
                continue
            if fault is None:
                well += 1
            else:
                faults.append(replace(fault, slot=self.slot(host, part)))
        healthy = f"{well} {self.parts} {self.in_order}" if well else ""
        return Judged(tuple(faults), healthy, tuple(dict.fromkeys(unknown)))


class AlikeCheck(Check):
    """A check of something in which hosts should be alike; what most of them have is taken for right.

    With one host nothing is judged. Where no value is that of more than half of them, all are named.
    """

    compares_hosts = True

    @abstractmethod
    def traits(self, host: Host) -> Mapping[str, Trait]:
        """What is compared, by what it is called: ``{"the firmware of mlx5_0": Trait("28.39", "/sys/...")}``.

        Raises
        ------
        NotKnown
            If it was not read.
        """

    def judge_all(self, hosts: Sequence[Host]) -> Mapping[str, Judged]:
        traits: dict[str, Mapping[str, Trait]] = {}
        judged: dict[str, Judged] = {}
        for host in hosts:
            try:
                traits[host.name] = self.traits(host)
            except NotKnown as error:
                judged[host.name] = Judged(unknown=(Unknown(error.why, error.takes),))
                continue
            if not traits[host.name]:
                judged[host.name] = Judged(not_applicable="nothing of the kind here")
        compared = {name: said for name, said in traits.items() if said}
        for name, own in compared.items():
            judged[name] = self._judged(own, compared)
        return {host.name: judged[host.name] for host in hosts}

    def _judged(self, own: Mapping[str, Trait], every: Mapping[str, Mapping[str, Trait]]) -> Judged:
        faults, alike, alone = [], 0, []
        for what, trait in own.items():
            values = Counter(said[what].value for said in every.values() if what in said)
            (usual, count), others = values.most_common(1)[0], values.total() - 1
            if not others:
                alone.append(what)
            elif values[trait.value] * 2 > values.total() or len(values) == 1:
                alike += 1
            elif count * 2 > values.total():
                evidence = f"{trait.source}: {trait.value}; on {count} of {values.total()} hosts {usual}"
                faults.append(Fault(trait.where, f"{what} is {trait.value}, and {usual} on most hosts", evidence))
            else:
                evidence = f"{trait.source}: {trait.value}"
                split = " and ".join(f"{value} on {number}" for value, number in values.most_common(3))
                faults.append(Fault(trait.where, f"{what} differs between hosts: {split}", evidence))
        unknown = (Unknown("nothing to hold it against", "a second host"),) if alone else ()
        return Judged(tuple(faults), f"{plural(alike, 'trait')} as on most hosts" if alike else "", unknown)


def checks() -> Mapping[str, type[Check]]:
    """All checks by name."""
    return things("clusterbench.checks", Check)


def judge(hosts: Sequence[Host]) -> dict[str, Mapping[str, Judged]]:
    """What every check says of every host: by the check's name, then by the host's."""
    return {name: _asked(kind, hosts) for name, kind in checks().items()}


def _asked(kind: type[Check], hosts: Sequence[Host]) -> Mapping[str, Judged]:
    try:
        if kind.compares_hosts and len(hosts) == 1:
            return {hosts[0].name: kind().judge_alone(hosts[0])}
        return kind().judge_all(hosts)
    except Exception as error:  # noqa: BLE001 - facts of a kind never seen must not cost the others' answers, or a report
        why = f"the check itself failed: {type(error).__name__}: {error}"
        return {host.name: Judged(unknown=(Unknown(why, "a report of this as a bug"),)) for host in hosts}


def hosts_of(environment: Mapping[str, object]) -> tuple[Host, ...]:
    """The hosts of an ``environment.json``, each with what its workers ``loaded`` where that is known."""
    hosts = environment.get("hosts")
    described = described_hosts(environment)
    return tuple(Host(str(name), described.get(name, {})) for name in hosts) if isinstance(hosts, Mapping) else ()
