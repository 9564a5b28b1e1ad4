"""What a page says first, as text for a pull request: rendered by a reader of Markdown, and looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.diagnoses import Finding
from clusterbench.report.headline import Headline
from clusterbench.report.markdown import MOST_CASES, MOST_FINDINGS, as_markdown
from clusterbench.report.table import CaseColumn
from clusterbench.verdict import Verdict
from clusterbench.verdict.statement import Statement
from tests.report.synthetic import plant, tp_scale_run

SAID = Verdict(
    Statement("measured", "COMPLETE", "2 of 2 cases", "good"),
    Statement("proven", "PROVEN", "all", "good"),
    Statement("machine", "SUSPECT", "rank 1", "suspect"),
    (),
)
HOSTILE = "a|b\n# no heading <script>alert(1)</script> [link](http://x) `code` *bold* \\"


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    undo = plant()
    yield
    undo()


def said(findings: int = 0, cases: int = 2, total: int = 2) -> str:
    found = [Finding(f"rank {rank}", HOSTILE, "warning") for rank in range(findings)]
    table = [
        CaseColumn("case", "", "text", [HOSTILE] * cases),
        CaseColumn("step_time", "ms", "number", [1.5] * cases),
    ]
    return as_markdown(Headline("Which?", ("The first.",)), SAID, found, table, total, ["clusterbench · s · r"])


def test_a_report_is_printed_for_a_pull_request(tmp_path: Path) -> None:
    run = tp_scale_run(tmp_path / "run").path
    ended = CliRunner().invoke(main, ["report", str(run), "--markdown"])
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("## ")
    assert any(line.startswith("| measured | **") for line in lines)
    assert "| case | outcome | step time (ms) |" in ended.stdout
    assert "| train_step/1n4/tp4+sp | ok | " in ended.stdout
    assert lines[-1].startswith("> Measured on CPU ranks")
    assert str(run / "index.html") in ended.stderr
    assert ended.exit_code == CliRunner().invoke(main, ["report", str(run)]).exit_code


def test_words_of_a_run_are_words() -> None:
    lines = said(findings=1).splitlines()
    assert sum(line.startswith("#") for line in lines) == 1
    (cells,) = {line for line in lines if "1.5" in line}
    assert cells.replace("\\|", "").count("|") == 3
    for plain in ("<script", "[link](", "`code", "*bold*"):
        assert all("\\" + plain[0] in line for line in lines if plain[1:] in line)
        assert not any(line.startswith(plain) or f" {plain}" in line for line in lines)


def test_of_many_the_first_are_shown_and_the_rest_is_counted() -> None:
    text = said(MOST_FINDINGS + 3, MOST_CASES, 1_234)
    assert text.count("- warning:") == MOST_FINDINGS
    assert "- and 3 more, which the page has" in text
    assert f"The first {MOST_CASES} of 1,234 cases." in text
    assert "more" not in said(1)
    assert "The first 2" not in said()


def test_a_run_without_cases_has_no_table() -> None:
    assert "| case |" not in said(cases=0, total=0)
