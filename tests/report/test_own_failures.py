"""A chart or a diagnosis that fails costs its own sentence, and neither the page nor what else is said."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from clusterbench import diagnoses, report
from clusterbench.charts.scaling_efficiency import ScalingEfficiency
from clusterbench.charts.step_breakdown import StepBreakdown
from clusterbench.diagnoses.straggler import Straggler
from clusterbench.diagnoses.traffic_mismatch import TrafficMismatch
from clusterbench.run_folder import RunFolder

EXAMPLE = Path(__file__).parents[2] / "reports" / "examples" / "tp_scale-cpu"
OF_CHARTS, OF_DIAGNOSES = report.failed, diagnoses.failed
"""As users have them: tests raise what fails, see conftest.py."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(report, "failed", OF_CHARTS)
    monkeypatch.setattr(diagnoses, "failed", OF_DIAGNOSES)
    shutil.copytree(EXAMPLE, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def fails(*_: Any) -> NoReturn:
    raise KeyError("<b>dp3</b>" + "x" * 10_000)


def test_a_chart_that_fails_is_a_sentence_in_its_place(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = report.render_report(run)
    page = before.path.read_text()
    monkeypatch.setattr(StepBreakdown, "draw", fails)
    monkeypatch.setattr(ScalingEfficiency, "draw", lambda *_: [])
    made = report.render_report(run)
    said = f"Not drawn, as it failed: {StepBreakdown.title}, {ScalingEfficiency.title}."
    assert made.headline == replace(before.headline, undrawn=said)
    assert said in made.text.splitlines()
    assert made.verdict == before.verdict
    without = made.path.read_text()
    assert "This chart failed (KeyError: &#39;&lt;b&gt;dp3&lt;/b&gt;xxx" in without
    assert "This chart failed (ValueError: it has no panel); please report that as a bug." in without
    assert len(without) < len(page)
    assert without.count("<figure ") == page.count("<figure ") > 4


def test_a_diagnosis_of_the_machine_that_fails_leaves_it_not_judged(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Straggler, "answer", fails)
    made = report.render_report(run)
    assert made.verdict.exit_code == 0
    (part,) = json.loads((run.path / "verdict.json").read_text())["machine"]["not_judged"]
    assert part.startswith("the run (the diagnosis itself failed: KeyError: ")
    assert part.endswith("; it takes a report of this as a bug)")


def test_where_a_diagnosis_of_cases_fails_nothing_passes(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert report.render_report(run).verdict.exit_code == 0
    monkeypatch.setattr(TrafficMismatch, "answer", fails)
    made = report.render_report(run)
    assert made.verdict.exit_code == 1
    assert "diagnosis traffic_mismatch" in made.text
