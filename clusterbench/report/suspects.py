"""Hosts against which something was found, the worst first: what a reader who looks for the bad node needs at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from clusterbench.diagnoses import Answer, Finding, diagnoses, in_words
from clusterbench.types import Severity
from clusterbench.words import plural

_COUNTED: tuple[Severity, ...] = ("error", "warning")
_MOST_SAID = 4


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


def suspects(answers: Mapping[str, Answer]) -> list[Suspect]:
    """Every host that a diagnosis of the machine names as at fault; a note says nothing against a host."""
    against: dict[str, list[tuple[str, Finding]]] = defaultdict(list)
    for name, answer in answers.items():
        if diagnoses()[name].subject == "machine":
            for finding in answer.findings:
                if finding.host and finding.severity in _COUNTED:
                    against[finding.host].append((name, finding))
    every = [(_suspect(host, found), _numbers(found)) for host, found in against.items()]
    return [suspect for suspect, numbers in sorted(every, key=lambda each: [-number for number in each[1]])]


def _numbers(found: list[tuple[str, Finding]]) -> list[int]:
    counts = Counter(finding.severity for _, finding in found)
    return [counts[severity] for severity in _COUNTED]


def _suspect(host: str, found: list[tuple[str, Finding]]) -> Suspect:
    ordered = sorted(found, key=lambda each: _COUNTED.index(each[1].severity))
    sentences = list(dict.fromkeys(_sentence(host, name, finding) for name, finding in ordered))
    numbers = zip(_COUNTED, _numbers(found), strict=True)
    return Suspect(
        host=host,
        severity=ordered[0][1].severity,
        counts=", ".join(plural(number, severity) for severity, number in numbers if number),
        sentences=tuple(sentences[:_MOST_SAID]),
        left_out=f"and {len(sentences) - _MOST_SAID:,} more" if len(sentences) > _MOST_SAID else "",
    )


def _sentence(host: str, name: str, finding: Finding) -> str:
    """What was found, without the host, which stands before it."""
    return finding.what if finding.where == f"host {host}" else f"{in_words(name)}: {finding.title}"
