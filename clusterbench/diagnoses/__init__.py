"""What can be wrong with a cluster or a run: one file a diagnosis, found by its name.

A diagnosis is a pure function of what was read from a run, so the same run gives the same answer on any machine. It
says what it found, what it judged and found in order, and what it could not judge and what that would take; silence is
none of the three. Its docstring has the four headings of :data:`HEADINGS`, which the report prints beside its findings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from clusterbench.cases import Reading
from clusterbench.discover import things
from clusterbench.types import Severity
from clusterbench.words import Word

Subject = Literal["cases", "figures", "machine"]
"""What is judged: whether cases did what they were asked, how far figures can be trusted, whether the machine is well.
"""

State = Literal["found", "not judged", "healthy", "nothing to judge"]

HEADINGS = ("What it looks for", "Why it matters", "How to confirm", "What usually fixes it")


@dataclass(frozen=True)
class Finding:
    """Something wrong: where it is, what it is, and the figures that show it.

    ``where`` is a case, a rank, a host or a GPU, as narrow as the evidence allows; ``brief`` is ``what`` in a few words
    with the most telling figure, for a title; ``log`` is a file of the run's folder. ``host`` is the one that is at
    fault; ``among`` are several of which that is not known, of a finding about the machine all where it names none.
    ``confirm`` is a command that shows it and ``fix`` what usually helps, where that is not the same for all findings.
    ``case`` is the one whose figures mean nothing because of it.
    """

    where: str
    what: str
    severity: Severity
    evidence: str = ""
    log: str = ""
    brief: str = ""
    host: str = ""
    among: tuple[str, ...] = ()
    confirm: str = ""
    fix: str = ""
    case: str = ""

    @property
    def title(self) -> str:
        """``rank 3 on vm, 61 % slower``."""
        return f"{self.where}, {self.brief}" if self.brief else f"{self.where}: {self.what}"


@dataclass(frozen=True)
class NotJudged:
    """What could not be judged, why, and what it would take; ``hosts`` where it is of some hosts only."""

    what: str
    why: str
    takes: str
    hosts: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return f"{self.what} ({self.why}; it takes {self.takes})"


@dataclass(frozen=True)
class Answer:
    """What a diagnosis says of a run. One without anything has nothing to judge: the run has nothing of its kind.

    Attributes
    ----------
    findings
        What is wrong, the worst first.
    healthy
        What was judged and is in order, with the size of what would have been seen.
    not_judged
        What the run holds, and does not hold enough of to judge.
    good_hosts
        Hosts that were held against others and are in order, with what was compared; where the run has one host, its
        ranks were held against each other.
    not_applicable
        Why a machine has nothing of the kind that is judged; empty where it may have.
    """

    findings: tuple[Finding, ...] = ()
    healthy: tuple[str, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    good_hosts: Mapping[str, str] = field(default_factory=dict)
    not_applicable: str = ""

    @property
    def state(self) -> State:
        """A finding outweighs what could not be judged, and that outweighs what is in order. A note is no finding."""
        if any(finding.severity != "note" for finding in self.findings):
            return "found"
        if self.not_judged:
            return "not judged"
        return "healthy" if self.healthy or self.findings else "nothing to judge"


class Diagnosis(ABC):
    """One thing that can be wrong, and what to do about it.

    Attributes
    ----------
    subject
        What it judges.
    glossary
        Words of the field that it brings.
    compares_hosts
        Whether it holds hosts against each other, so that none is good that it has not found in order.
    """

    subject: ClassVar[Subject] = "machine"
    glossary: ClassVar[tuple[Word, ...]] = ()
    compares_hosts: ClassVar[bool] = False

    @abstractmethod
    def answer(self, reading: Reading) -> Answer:
        """What is wrong, what is in order, and what could not be judged."""

    def findings(self, reading: Reading) -> list[Finding]:
        """What is wrong, the worst first; empty where nothing was found or nothing could be judged."""
        return list(self.answer(reading).findings)


def diagnoses() -> Mapping[str, type[Diagnosis]]:
    """All diagnoses by name."""
    return things("clusterbench.diagnoses", Diagnosis)


def in_words(name: str) -> str:
    """``Slow link``."""
    return name.replace("_", " ").capitalize()


def examine(reading: Reading) -> dict[str, Answer]:
    """What every diagnosis says, by its name; of a dry run and of shared GPUs none of a machine."""
    without = reading.is_dry or reading.shares_gpus
    kinds = {name: kind for name, kind in diagnoses().items() if kind.subject == "cases" or not without}
    answers = {name: _asked(name, kind, reading) for name, kind in kinds.items()}
    if not reading.is_imported:
        return answers
    # What a run with more tools could judge of a machine does not help an import.
    own = {name for name, kind in kinds.items() if kind.subject == "machine"}
    return {name: replace(answer, not_judged=()) if name in own else answer for name, answer in answers.items()}


def _asked(name: str, kind: type[Diagnosis], reading: Reading) -> Answer:
    try:
        return kind().answer(reading)
    except Exception as error:  # noqa: BLE001 - a record of a kind never seen must not cost the others' answers, or a page
        return failed(name, kind, error)


def failed(name: str, kind: type[Diagnosis], error: Exception) -> Answer:
    """What is said where a diagnosis fails: of cases nothing may pass so, and a machine is not judged."""
    why = f"the diagnosis itself failed: {type(error).__name__}: {error!s:.300}"
    if kind.subject == "cases":
        return Answer(findings=(Finding(f"diagnosis {name}", why, "error", fix="report this as a bug"),))
    return Answer(not_judged=(NotJudged("the run", why, "a report of this as a bug"),))


def wrong_figures(reading: Reading) -> dict[str, str]:
    """Cases whose figures are not what their formula or a data sheet allows, each with the first reason.

    Such a case ended well, and its speed is that of a wrong result.
    """
    reasons: dict[str, str] = {}
    for name, kind in diagnoses().items():
        for finding in kind().findings(reading) if kind.subject == "cases" else ():
            if finding.case and finding.severity == "error":
                reasons.setdefault(finding.case, f"{in_words(name).lower()}: {finding.what}")
    return reasons
