"""What the doctor found, for programs: JSON, JUnit's XML and OpenMetrics."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from xml.etree import ElementTree

from clusterbench.checks import checks
from clusterbench.doctor import Examination, Found, Healthy, NotJudged
from clusterbench.doctor.catalogue import severities
from clusterbench.types import Severity

_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")
"""What XML 1.0 allows in no form, and files of a sick host may hold (section 2.2, Characters)."""


def as_json(examination: Examination) -> str:
    """One object; the names of its keys are those of :class:`clusterbench.doctor.Examination`."""
    said = {
        "word": examination.word.lower(),
        "exit_code": examination.exit_code,
        "hosts": [*examination.hosts],
        "found": [asdict(found) for found in examination.found],
        "not_judged": [asdict(part) for part in examination.not_judged],
        "healthy": [asdict(said) for said in examination.healthy],
        "not_applicable": {**examination.not_applicable},
    }
    return json.dumps(said, indent=1)


def as_junit(examination: Examination) -> str:
    """A test suite for each check, diagnosis or pattern of logs, a test case for each host.

    A case passes where something was judged and found in order, noted or accepted; all else is skipped, with why. A
    suite has the counts that Jenkins' schema asks for (xunit-plugin, junit-10.xsd).
    """
    root = ElementTree.Element("testsuites", name="clusterbench doctor")
    for name, said in _said(examination).items():
        suite = ElementTree.SubElement(root, "testsuite", name=name)
        for host, here in said.items():
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=host or NO_HOST)
            for found in (each for each in here.found if each.counts):
                failure = ElementTree.SubElement(case, "failure", type=found.severity, message=found.sentence)
                failure.text = f"{found.evidence}\nconfirm: {found.confirm}\nfix: {found.fix}"
            why = here.unknown or ("" if here.healthy else examination.not_applicable.get(name) or NOTHING_SAID)
            if why and not here.found:
                ElementTree.SubElement(case, "skipped", message=why)
        suite.attrib |= {**_counts(suite), "skipped": _cases_with(suite, "skipped")}
    root.attrib |= _counts(root)
    ElementTree.indent(root)
    written = ElementTree.tostring(root, encoding="unicode", xml_declaration=True)
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", written)


def _counts(part: ElementTree.Element) -> dict[str, str]:
    """Of the cases in it; the doctor tells findings, never errors of a test."""
    return {"tests": str(len([*part.iter("testcase")])), "failures": _cases_with(part, "failure"), "errors": "0"}


def _cases_with(part: ElementTree.Element, outcome: str) -> str:
    return str(sum(case.find(outcome) is not None for case in part.iter("testcase")))


def as_openmetrics(examination: Examination) -> str:
    """Findings that count by host, check and severity where something was judged, and what was not; OpenMetrics 1.0."""
    every = _said(examination)
    lines = ["# TYPE clusterbench_findings gauge", "# HELP clusterbench_findings Findings of clusterbench doctor."]
    for name, said in every.items():
        severities = dict.fromkeys(
            (_severity(name), *(found.severity for here in said.values() for found in here.found))
        )
        for host, here in said.items():
            for severity in severities if here.found or here.healthy else ():
                number = sum(found.counts and found.severity == severity for found in here.found)
                lines.append(f"clusterbench_findings{_labels(name, severity, host)} {number}")
    lines += ["# TYPE clusterbench_not_judged gauge", "# HELP clusterbench_not_judged Checks without an answer."]
    for name, said in every.items():
        for host, here in said.items():
            lines.append(f"clusterbench_not_judged{_labels(name, _severity(name), host)} {int(bool(here.unknown))}")
    return "\n".join([*lines, "# EOF", ""])


NO_HOST = "no host in particular"
NOTHING_SAID = "nothing was judged here"


@dataclass
class _Here:
    """What one name says of one host; ``unknown`` is why something was not judged."""

    found: list[Found] = field(default_factory=list)
    healthy: bool = False
    unknown: str = ""


def _said(examination: Examination) -> dict[str, dict[str, _Here]]:
    """By name and host; a check of hosts has all of them, and what is said of no host in particular stands under ''."""
    said: dict[str, dict[str, _Here]] = {name: {host: _Here() for host in examination.hosts} for name in checks()}
    parts: tuple[Found | Healthy | NotJudged, ...] = (*examination.found, *examination.healthy, *examination.not_judged)
    for part in parts:
        for host in part.hosts or ("",):
            here = said.setdefault(part.name, {}).setdefault(host, _Here())
            if isinstance(part, Found):
                here.found.append(part)
            elif isinstance(part, NotJudged):
                here.unknown = here.unknown or part.why
            else:
                here.healthy = True
    return said


def _severity(name: str) -> Severity:
    """As the list of checks says; ``error`` for a name that is not in it."""
    return _listed().get(name, "error")


@cache
def _listed() -> Mapping[str, Severity]:
    return severities()


def _labels(name: str, severity: str, host: str) -> str:
    values = {"check": name, "severity": severity, "host": host}
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in values.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
