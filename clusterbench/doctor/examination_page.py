"""What the doctor found as one self-contained page, in the order of its text: verdict, hosts, findings, the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from clusterbench.doctor import Examination, Found
from clusterbench.doctor.text import MOST_HOSTS, named, verdict, with_advice
from clusterbench.own_copy import version
from clusterbench.report.glossary import OF_MACHINES, words_in
from clusterbench.report.suspects import suspect
from clusterbench.report.template import css, template

_MOST_SUSPECTS = 20  # hosts that stand on the page at once; the others unfold
_MOST_NAMED = 20
_TONES = {"SUSPECT": "suspect", "NOT JUDGED": "open", "HEALTHY": "good"}


def examination_page(examination: Examination, sources: Mapping[str, str], day: date) -> str:
    """The page as HTML.

    Parameters
    ----------
    sources
        By the name of a finding: what it was read from.
    """
    hosts = examination.hosts
    about = hosts[0] if len(hosts) == 1 else "cluster"
    return template(Path(__file__).with_name("examination.html")).render(
        examination=examination,
        about=about,
        question="Is this cluster healthy?" if len(hosts) > 1 else f"Is {about} healthy?",
        day=day.isoformat(),
        tone=_TONES[examination.word],
        sentence=verdict(examination).partition(": ")[2],
        suspects=[
            suspect(host, [(each.severity, each.sentence) for each in found])
            for host, found in examination.suspects.items()
        ],
        most_suspects=_MOST_SUSPECTS,
        most_named=_MOST_NAMED,
        others=list(_others(examination)),
        groups=[_group(hosts, found, examination, sources) for hosts, found in examination.by_hosts.items()],
        asides=list(_asides(examination)),
        not_judged=list(_not_judged(examination)),
        in_order=list(_in_order(examination)),
        words_in=lambda markup: words_in(markup, OF_MACHINES),
        version=version(),
        css=css(),
    )


def _others(examination: Examination) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Hosts that nothing counts against, by the checks that could not judge them."""
    unknown: dict[str, dict[str, None]] = {host: {} for host in examination.hosts if host not in examination.suspects}
    for part in examination.not_judged:
        for host in part.hosts:
            if host in unknown:
                unknown[host][part.name] = None
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host, names in unknown.items():
        alike[tuple(names)].append(host)
    yield from alike.items()


def _group(
    hosts: Sequence[str], found: Sequence[Found], examination: Examination, sources: Mapping[str, str]
) -> dict[str, Any]:
    """What the same hosts have; ``unnamed`` are all of them where the title does not name them all."""
    return {
        "severity": found[0].severity,
        "title": named(hosts, len(examination.hosts)),
        "unnamed": hosts if MOST_HOSTS < len(hosts) < len(examination.hosts) else (),
        "found": [(each, sources.get(each.name, ""), has_advice) for each, has_advice in with_advice(found)],
    }


def _named(hosts: Sequence[str], examination: Examination) -> str:
    return named(hosts, len(examination.hosts)) if hosts else ""


def _asides(examination: Examination) -> Iterator[dict[str, Any]]:
    """What does not count."""
    for title, chosen in (
        ("Accepted", [found for found in examination.found if found.accepted]),
        ("Notes", [found for found in examination.found if found.severity == "note"]),
    ):
        if chosen:
            yield {"title": title, "found": [(found, _named(found.hosts, examination)) for found in chosen]}


def _not_judged(examination: Examination) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """What it takes; of each reason the checks, why, and on which hosts, which one host alone need not be told."""
    for need, by_why in examination.not_judged_by_need.items():
        lines = []
        for why, parts in by_why.items():
            hosts = tuple(dict.fromkeys(host for part in parts for host in part.hosts))
            names = ", ".join(dict.fromkeys(part.name for part in parts))
            lines.append((names, why, _named(hosts, examination) if len(examination.hosts) > 1 else ""))
        yield need, lines


def _in_order(examination: Examination) -> Iterator[tuple[str, list[str]]]:
    """Of one host with what was seen; of several the names of the checks, of which the JSON has the rest."""
    seen: dict[str, list[str]] = defaultdict(list)
    for said in examination.healthy:
        seen[said.name].append(said.what)
    yield from ((name, what if len(examination.hosts) == 1 else []) for name, what in seen.items())
