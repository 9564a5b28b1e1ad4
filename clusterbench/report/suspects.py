"""Hosts against which something was found, the worst first: what a reader who looks for the bad node needs at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterbench.diagnoses import Answer, Finding, diagnoses, in_words
from clusterbench.hosts import Hosts
from clusterbench.types import Severity
from clusterbench.words import plural

_COUNTED: tuple[Severity, ...] = ("error", "warning")
_MOST_SAID = 4
_LOST = ("lost", "link down")

Said = tuple[Severity, str]
"""How bad it is, and what was found, in a sentence without the host."""


@dataclass(frozen=True)
class Suspect:
    """A host: its worst severity, how many findings of each there are, and the worst of them in words.

    ``left_out`` says how many more there are; empty where there are none.
    """

    host: str
    severity: Severity
    counts: str
    sentences: tuple[str, ...]
    left_out: str


def suspects(answers: Mapping[str, Answer], hosts: Hosts | None = None) -> list[Suspect]:
    """Every host that a diagnosis of the machine names as at fault; a note says nothing against a host.

    Of ``hosts`` those that are bad because they, or their links, were lost while cases ran.
    """
    against: dict[str, list[Said]] = defaultdict(list)
    for host in hosts.hosts if hosts else ():
        if host.judged == "bad":
            lost = [evidence for evidence in host.evidence if evidence.kind in _LOST]
            against[host.name] += [("error", f"{each.kind.capitalize()}: {each.sentence}") for each in lost]
    for name, answer in answers.items():
        if diagnoses()[name].subject == "machine":
            for finding in answer.findings:
                if finding.host and finding.severity in _COUNTED:
                    against[finding.host].append((finding.severity, _sentence(finding.host, name, finding)))
    found = [(host, said) for host, said in against.items() if said]
    worst_first = sorted(found, key=lambda item: [-number for number in _numbers(item[1])])
    return [suspect(host, said) for host, said in worst_first]


def between_hosts(answers: Mapping[str, Answer]) -> list[str]:
    """What was found between hosts, as on a link, and so of none of them alone; of each place what is worst."""
    worst: dict[tuple[str, str], str] = {}
    for name, answer in answers.items():
        for finding in answer.findings if diagnoses()[name].subject == "machine" else ():
            if finding.among and not finding.host and finding.severity in _COUNTED:
                worst.setdefault((name, finding.where), f"{in_words(name)}: {finding.title}")
    return list(worst.values())


def suspect(host: str, said: Sequence[Said]) -> Suspect:
    """A host with what was found on it, in any order: errors and warnings, at least one."""
    ordered = sorted(said, key=lambda each: _COUNTED.index(each[0]))
    sentences = list(dict.fromkeys(sentence for _, sentence in ordered))
    numbers = zip(_COUNTED, _numbers(said), strict=True)
    return Suspect(
        host=host,
        severity=ordered[0][0],
        counts=", ".join(plural(number, severity) for severity, number in numbers if number),
        sentences=tuple(sentences[:_MOST_SAID]),
        left_out=f"and {len(sentences) - _MOST_SAID:,} more" if len(sentences) > _MOST_SAID else "",
    )


def _numbers(said: Sequence[Said]) -> list[int]:
    counts = Counter(severity for severity, _ in said)
    return [counts[severity] for severity in _COUNTED]


def _sentence(host: str, name: str, finding: Finding) -> str:
    """What was found, without the host, which stands before it."""
    return finding.what if finding.where == f"host {host}" else f"{in_words(name)}: {finding.title}"
