"""The runs in ``reports/examples``: real ones, and their pages are what the code of today makes of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clusterbench.derive import read
from clusterbench.report import render_report
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite

ROOT = Path(__file__).parents[1]
EXAMPLES = {path.name: path for path in sorted((ROOT / "reports" / "examples").iterdir())}
CHARTS = {
    "fabric-cpu": {"busbw_by_size", "link_matrix", "stability"},
    "layouts_5d-cpu": {"layouts", "traffic", "memory", "step_breakdown"},
    "one_gpu-h200": {"ways", "memory", "step_breakdown", "clock_power"},
    "tp_scale-cpu": {"tensor_scaling", "scaling_efficiency", "scaling_loss", "memory"},
}
"""What each of them shows, among other things."""

CUT = {"one_gpu-h200": ("INCOMPLETE", 1)}
"""The machine was lent for minutes: what they were not enough for was not run."""

RENDER = "'clusterbench report reports/examples/{}' renders it again"

each = pytest.mark.parametrize("name", EXAMPLES)


def test_there_is_an_example_of_each_kind() -> None:
    assert EXAMPLES.keys() == CHARTS.keys()


@each
def test_every_case_was_measured_and_nothing_is_wrong(name: str) -> None:
    reading = read(RunFolder.open(EXAMPLES[name]))
    assert reading.problems == ()
    assert {history.status for history in reading.histories} <= {"ok", "skipped", *(["not_run"] if name in CUT else [])}
    assert sum(history.pooled is not None for history in reading.histories) >= (5 if name in CUT else 8)


@each
def test_its_page_and_its_table_are_of_today(name: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES[name], tmp_path / name)
    made = render_report(RunFolder.open(tmp_path / name))
    assert (made.verdict.measured.word, made.verdict.exit_code) == CUT.get(name, ("COMPLETE", 0))
    for file in ("index.html", "rows.csv", "verdict.json", "hosts.json"):
        is_of_today = (tmp_path / name / file).read_bytes() == (EXAMPLES[name] / file).read_bytes()
        assert is_of_today, RENDER.format(name)
    page = made.path.read_text()
    assert {chart for chart in CHARTS[name] if f'id="chart-{chart}"' not in page} == set()


@each
def test_its_suite_is_one_that_can_be_run(name: str) -> None:
    suite = load_suite(EXAMPLES[name] / "suite.yaml")
    assert suite.name == name.rpartition("-")[0]
    assert (ROOT / "suites" / f"{suite.name}.yaml").exists()
