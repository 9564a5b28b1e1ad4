"""What the doctor found, for a terminal: verdict first, then findings by host, then what was not judged."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from clusterbench.doctor import Examination, Found
from clusterbench.terminal import columns
from clusterbench.types import SEVERITIES
from clusterbench.words import few, plural

_LABEL = 9
MOST_HOSTS = 6
"""Hosts of one finding that are named at once."""


def text(examination: Examination) -> str:
    """All of it, without colour."""
    return "\n".join(
        [
            verdict(examination),
            *_findings(examination),
            *_listed("Accepted", [found for found in examination.found if found.accepted]),
            *_listed("Notes", [found for found in examination.found if found.severity == "note"]),
            *_not_judged(examination),
            *_in_order(examination),
        ]
    )


def verdict(examination: Examination) -> str:
    """``SUSPECT: 2 errors and 1 warning on 2 of 64 hosts; in order: 41 checks; not judged: 3``."""
    counted = [found for found in examination.found if found.counts]
    parts = []
    if counted:
        numbers = {severity: sum(found.severity == severity for found in counted) for severity in SEVERITIES}
        words = " and ".join(plural(number, severity) for severity, number in numbers.items() if number)
        hosts = len(examination.suspects)
        where = f"on {hosts} of {plural(len(examination.hosts), 'host')}" if hosts else "of no host in particular"
        parts.append(f"{words} {where}")
    unknown = {part.name for part in examination.not_judged}
    parts.append(f"in order: {plural(len(examination.in_order), 'check')}")
    parts.append(f"not judged: {len(unknown)}")
    parts.append(f"not applicable here: {len(examination.not_applicable)}")
    return f"{examination.word}: {'; '.join(parts)}"


def _findings(examination: Examination) -> Iterator[str]:
    for hosts, found in examination.by_hosts.items():
        yield ""
        yield named(hosts, len(examination.hosts))
        for each, has_advice in with_advice(found):
            yield from _finding(each, has_advice)


def named(hosts: Sequence[str], of: int) -> str:
    """The hosts that share a finding, of so many."""
    if not hosts:
        return "no host in particular"
    if len(hosts) == of > 1:
        return f"all {of} hosts"
    return hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts: {few(hosts, MOST_HOSTS)}"


def with_advice(found: Sequence[Found]) -> Iterator[tuple[Found, bool]]:
    """Each with whether its advice is to be said: not where it stands under the finding before it already."""
    said = ("", "")
    for each in found:
        advice = (each.confirm, each.fix)
        yield each, advice != said
        said = advice


def _finding(found: Found, has_advice: bool) -> Iterator[str]:
    yield from _wrapped(f"  {found.severity:<{_LABEL}}", found.sentence)
    advice = (("confirm", found.confirm), ("fix", found.fix)) if has_advice else ()
    for label, words in (("evidence", found.evidence), *advice):
        if words:
            yield from _wrapped(f"  {'':<{_LABEL}}{label:<{_LABEL}} ", words)


def _listed(title: str, found: Sequence[Found]) -> Iterator[str]:
    if found:
        yield ""
        yield title
    for each in found:
        head = f"{few(each.hosts)}: " if each.hosts else ""
        why = f"; accepted: {each.accepted}" if each.accepted else ""
        yield from _wrapped("  ", f"{head}{each.sentence}{why}")


def _not_judged(examination: Examination) -> Iterator[str]:
    if examination.not_judged:
        yield ""
        yield "Not judged"
    for need, by_why in examination.not_judged_by_need.items():
        yield from _wrapped("  ", f"it takes {need}:")
        for why, parts in by_why.items():
            yield from _wrapped("    ", f"{', '.join(dict.fromkeys(part.name for part in parts))}: {why}")


def _in_order(examination: Examination) -> Iterator[str]:
    """Of one host what was seen; of several the names of the checks, of which the JSON has the rest."""
    names = dict.fromkeys(said.name for said in examination.healthy)
    if not names:
        return
    parts = len(names) - len(examination.in_order)
    yield ""
    yield f"In order ({plural(len(examination.in_order), 'check')}{f'; parts of {parts} more' if parts else ''})"
    if len(examination.hosts) > 1:
        yield from _wrapped("  ", ", ".join(names))
        return
    for said in examination.healthy:
        yield from _wrapped("  ", f"{said.name}: {said.what}")


def _wrapped(start: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        columns(),
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
