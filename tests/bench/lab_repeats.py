"""Healthy hosts in a box, again and again: what the doctor and the acceptance suite find there that is not there.

``python -m tests.bench.lab_repeats 5 1`` examines five times and accepts once. The hosts share this machine's cores, so
it has to be idle but for them. Left out are what ``doctor --quick`` finds before, as in ``doctor_repeats``, and what is
said of figures, not of the machine: that they are unsteady, which the doctor holds for a note too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import clusterbench
from clusterbench.diagnoses import diagnoses, examine
from tests.bench import ROOT, Result, at_most
from tests.bench.doctor_repeats import note
from tests.lab.hosts import LOGIN, Lab, why_not
from tests.lab.launchers import torchrun

NUM_HOSTS = 2  # one for each of two cores
DOCTORS, ACCEPTANCES = 50, 5
LIMIT_S = 600


def measure(doctors: int = DOCTORS, acceptances: int = ACCEPTANCES) -> list[Result]:
    if reason := why_not():
        return [Result(f"lab_{name}", None, "runs", 0, "shown", reason) for name in ("doctor", "acceptance")]
    with tempfile.TemporaryDirectory() as folder, Lab(NUM_HOSTS) as lab:
        known = _examined(lab, Path(folder) / "known", "--quick")
        examined = [_examined(lab, Path(folder) / f"doctor{n}") - known for n in range(doctors)]
        accepted = [_accepted(lab, Path(folder) / f"acceptance{n}") for n in range(acceptances)]
    return [_result("lab_doctor", examined), _result("lab_acceptance", accepted)]


def _result(name: str, runs: list[set[tuple[str, str]]]) -> Result:
    ill = sum(bool(found) for found in runs)
    for found in filter(None, runs):
        print(name, *sorted(found), sep="\n  ", file=sys.stderr)
    return at_most(name, ill, "runs", 0, note(len(runs), ill, Counter(kind for found in runs for kind, _ in found)))


def _examined(lab: Lab, out: Path, *words: str) -> set[tuple[str, str]]:
    """Name and place of what the doctor finds on the four hosts."""
    said = out.with_suffix(".json")
    words = words or ("--out", str(out))
    error = _on_all(lab, "doctor", *words, "--json", str(said))
    if not said.exists():
        raise RuntimeError(f"the doctor said nothing: {error}")
    found = json.loads(said.read_text())["found"]
    return {(each["name"], each["where"]) for each in found if each["severity"] != "note"}


def _accepted(lab: Lab, out: Path) -> set[tuple[str, str]]:
    """Kind and title of what acceptance finds, with every case that did not end well."""
    error = _on_all(lab, "run", str(ROOT / "suites/acceptance.yaml"), "--out", str(out))
    if not (out / "verdict.json").exists():
        raise RuntimeError(f"the suite said nothing: {error}")
    found = {
        (name, finding.title)
        for name, answer in examine(clusterbench.read(out)).items()
        for finding in answer.findings
        if finding.severity != "note" and diagnoses()[name].subject != "figures"
    }
    measured = json.loads((out / "verdict.json").read_text())["measured"]
    return found | {("case", str(case)) for case in (*measured["missing"], *measured["wrong"])}


def _on_all(lab: Lab, *words: str) -> str:
    """Runs a verb by one rank a host; the end of what it wrote to stderr."""
    launcher = torchrun(lab, lab.hosts, 1)
    command = launcher.command("-m", "clusterbench.cli", *words)
    return lab.run(LOGIN, command, env=launcher.environment, timeout=LIMIT_S).stderr[-500:]


if __name__ == "__main__":
    for result in measure(*map(int, sys.argv[1:])):
        print(f"{result.name}: {result.value} {result.unit} {result.note}")
