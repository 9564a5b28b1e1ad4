"""What the doctor found, for programs: JSON, JUnit's XML and OpenMetrics."""

from __future__ import annotations

import json
from dataclasses import asdict
from xml.etree import ElementTree

from clusterbench.checks import Check, checks
from clusterbench.doctor import Examination


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
    """A test suite a check and a test case a host; not judged and not applicable are skipped, with the reason."""
    root = ElementTree.Element("testsuites", name="clusterbench doctor")
    unknown = {(part.name, host): part.why for part in examination.not_judged for host in part.hosts}
    for name in checks():
        suite = ElementTree.SubElement(root, "testsuite", name=name)
        own = [found for found in examination.found if found.name == name]
        for host in examination.hosts:
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=host)
            here = [found for found in own if host in found.hosts]
            for found in (each for each in here if each.counts):
                failure = ElementTree.SubElement(case, "failure", type=found.severity, message=found.sentence)
                failure.text = f"{found.evidence}\nconfirm: {found.confirm}\nfix: {found.fix}"
            why = unknown.get((name, host)) or examination.not_applicable.get(name)
            if why and not here:
                ElementTree.SubElement(case, "skipped", message=why)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def as_openmetrics(examination: Examination) -> str:
    """Findings that count by host, check and severity, and what was not judged; OpenMetrics 1.0 text."""
    lines = ["# TYPE clusterbench_findings gauge", "# HELP clusterbench_findings Findings of clusterbench doctor."]
    for name, kind in checks().items():
        for host in examination.hosts:
            number = sum(found.name == name and host in found.hosts and found.counts for found in examination.found)
            lines.append(f"clusterbench_findings{_labels(name, kind, host)} {number}")
    lines += ["# TYPE clusterbench_not_judged gauge", "# HELP clusterbench_not_judged Checks without an answer."]
    for name, kind in checks().items():
        for host in examination.hosts:
            number = sum(part.name == name and host in part.hosts for part in examination.not_judged)
            lines.append(f"clusterbench_not_judged{_labels(name, kind, host)} {number}")
    return "\n".join([*lines, "# EOF", ""])


def _labels(name: str, kind: type[Check], host: str) -> str:
    values = {"check": name, "severity": kind.severity, "host": host}
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in values.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
