from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterbench.report import render_report
from clusterbench.types import Refusal
from tests.report.synthetic import all_reduce_run, case, good_run, observation, outcome, plant, tp_scale_run, write_run

HOSTILE = "</script><script>alert('x')</script><!-- \" ' & \u2028 {{ 7 * 7 }}"


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    undo = plant()
    yield
    undo()


def test_the_page_stands_alone(tmp_path: Path) -> None:
    page = render_report(tp_scale_run(tmp_path / "run")).path.read_text()
    assert not re.search(r"<(?:link|img|iframe)\b|\bsrc=|@import|url\(['\"]?(?!#)", page)
    assert (tmp_path / "run" / "rows.csv").exists()


def test_the_question_is_answered_with_measured_figures(tmp_path: Path) -> None:
    page = render_report(tp_scale_run(tmp_path / "run")).path.read_text()
    assert "<h1>How far does tensor parallelism scale, and what does sequence parallelism save?</h1>" in page
    assert (
        '<p class="answer">From tp1 to tp4 throughput per rank fell from 5,120 to 1,630 tokens/s (32 % of tp1;' in page
    )
    assert '<p class="verdict pass"><strong>PASS</strong>' in page


def test_without_a_figure_it_says_that_nothing_answers_the_question(tmp_path: Path) -> None:
    page = render_report(write_run(tmp_path / "run", [case("a")], [])).path.read_text()
    assert "Nothing was measured that could answer this: none of 1 cases has a figure." in page
    assert "INCOMPLETE" in page


def test_a_cpu_run_says_what_it_cannot_say(tmp_path: Path) -> None:
    page = render_report(tp_scale_run(tmp_path / "run")).path.read_text()
    for sentence in (
        "the ranks are CPU processes that talk over Gloo",
        "Gloo&#39;s reduce-scatter is an all-reduce underneath",
        "up to 8 ranks shared 2 cores",
        "MFU against the datasheet peak: A CPU has no peak FLOP/s on record, so mfu against a datasheet is left empty.",
    ):
        assert sentence in page


def test_findings_come_worst_first_with_what_to_do(tmp_path: Path) -> None:
    page = render_report(all_reduce_run(tmp_path / "run")).path.read_text()
    assert re.findall(r'<article class="finding (\w+)">', page) == ["error", "warning", "warning"]
    assert "What usually fixes it" in page
    assert render_report(all_reduce_run(tmp_path / "again")).verdict.exit_code == 1


def test_refusals_with_one_reason_are_one_line(tmp_path: Path) -> None:
    refusals = [Refusal(f"planted/tp{degree}", "planted", {}, 1, "heads are not divisible") for degree in (3, 5, 6)]
    page = render_report(write_run(tmp_path / "run", [case("a")], [], refusals=refusals)).path.read_text()
    assert "planted/tp3, planted/tp5, planted/tp6" in page


def test_whatever_a_run_says_is_text_and_never_markup(tmp_path: Path) -> None:
    one = case(HOSTILE, id=HOSTILE, layout=HOSTILE, point={"layout": HOSTILE, "note": HOSTILE}, source=HOSTILE)
    run = write_run(
        tmp_path / "run",
        [one, case("b")],
        [
            (outcome(one, "failed", reason=HOSTILE, host=HOSTILE, log=HOSTILE), None),
            (outcome(case("b")), observation(case("b"))),
        ],
        refusals=[Refusal(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, 1, HOSTILE, HOSTILE, HOSTILE)],
        question=HOSTILE,
        suite=HOSTILE,
        environment={HOSTILE: {HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]}},
    )
    page = render_report(run).path.read_text()
    assert "<script>alert" not in page
    assert "<!-- " not in page
    assert page.count("<script") == page.count("</script>") == 2
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert embedded is not None
    assert json.loads(embedded[1])["columns"][0]["values"] == [HOSTILE, "planted/1n4/b"]


def test_lines_that_could_not_be_read_are_named(tmp_path: Path) -> None:
    run = good_run(tmp_path / "run")
    with open(run.path / "observations.jsonl", "a") as observations:
        observations.write('{"case": "cut o')
    page = render_report(run).path.read_text()
    assert "observations.jsonl:3 is not a whole line of JSON and was left out." in page
    assert "INCOMPLETE" in page


def test_of_very_many_such_lines_it_says_how_many_there_are(tmp_path: Path) -> None:
    run = good_run(tmp_path / "run")
    with open(run.path / "observations.jsonl", "a") as observations:
        observations.write("{\n" * 1500)
    page = render_report(run).path.read_text()
    assert page.count("is not a whole line of JSON") == 100
    assert "The first 100 of 1,500 lines that could not be read are listed." in page


def test_every_case_is_there_without_javascript_when_they_are_few(tmp_path: Path) -> None:
    page = render_report(tp_scale_run(tmp_path / "run")).path.read_text()
    body = page.split("<tbody>", 1)[1].split("</tbody>", 1)[0]
    assert body.count("<tr>") == 7
    assert '<td class="status is-out_of_memory">out of memory</td>' in body


def test_rendering_again_gives_the_same_page(tmp_path: Path) -> None:
    run = tp_scale_run(tmp_path / "run")
    assert render_report(run).path.read_bytes() == render_report(run).path.read_bytes()


def test_the_report_needs_no_torch(tmp_path: Path) -> None:
    good_run(tmp_path / "run")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from clusterbench.report import render_report\n"
        "from clusterbench.run_directory import RunDirectory\n"
        f"render_report(RunDirectory.open(Path({str(tmp_path / 'run')!r})))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_column_of_options_is_one_that_the_suite_sweeps(tmp_path: Path) -> None:
    from clusterbench.derive import read
    from clusterbench.report.table import columns

    cases = [
        case(f"{size}", point={"size": size, "dtype": "float32", "num_ranks": 4, "tp": size}, benchmark="planted")
        for size in (1, 2)
    ]
    names = [column.name for column in columns(read(good_run(tmp_path / "run", cases)))]
    assert names == ["case", "outcome", "ranks", "size", "step_time"]
