from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from markupsafe import escape

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section
from clusterbench.checks.huge_pages import HugePages
from clusterbench.checks.port_state import PortState
from clusterbench.derive import read
from clusterbench.diagnoses import Finding
from clusterbench.drawing.panel import Column, Entry, Panel, Story
from clusterbench.drawing.style import canvas
from clusterbench.drawing.svg import MOST_PLACES
from clusterbench.report import _group, circumstances, headline_of, render_report
from clusterbench.report.panels import MOST_TOLD
from clusterbench.report.several import render_together
from clusterbench.report.table import MOST_SAMPLES, columns, details
from clusterbench.rows import Row
from clusterbench.types import Case, Refusal
from tests.facts.machine import healthy
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
        '<p class="answer">From tp1 to tp4 throughput per rank fell from 5,120 to 1,630 tokens/s (32 % of tp1, so 4'
        in page
    )
    assert "<span>measured</span> <strong>COMPLETE</strong> <span>6 of 7 cases; 1 out of memory as expected" in page
    assert "<span>proven</span> <strong>NOT PROVEN</strong>" in page


def test_without_a_figure_it_says_that_nothing_answers_the_question(tmp_path: Path) -> None:
    page = render_report(write_run(tmp_path / "run", [case("a")], [])).path.read_text()
    assert "Nothing was measured that could answer this: none of 1 case has a figure." in page
    assert "INCOMPLETE" in page


def test_cases_that_were_refused_are_no_answer_and_are_counted(tmp_path: Path) -> None:
    one = case("a")
    refusals = [Refusal("planted/1n4/b", "planted", {}, 1, "too many ranks")]
    reading = read(write_run(tmp_path / "run", [one], [(outcome(one), observation(one))], refusals=refusals))
    assert headline_of(reading, []).answers == (
        "1 of 1 case has a figure; no chart draws a conclusion from them, so see the table. 1 more case was refused.",
    )


def test_on_a_page_of_two_suites_each_question_has_its_answer(tmp_path: Path) -> None:
    """Of tp_scale and zero_stages two questions were asked, and what ZeRO saves was answered nowhere."""
    other = write_run(tmp_path / "b", [case("b")], [(outcome(case("b")), observation(case("b")))], suite="other")
    said = render_together([tp_scale_run(tmp_path / "a"), other], tmp_path / "both").headline
    assert said.answers[0].startswith("tp_scale: From tp1 to tp4 throughput per rank fell from ")
    assert said.answers[-1] == (
        "other: 1 of 1 case has a figure; no chart draws a conclusion from them, so see the table."
    )
    assert len(said.question.splitlines()) == 2


def test_a_terminal_gets_the_question_and_the_answer_above_the_verdict(tmp_path: Path) -> None:
    report = render_report(tp_scale_run(tmp_path / "run"))
    question, answer, *_ = report.text.splitlines()
    assert question == "How far does tensor parallelism scale, and what does sequence parallelism save?"
    assert answer.startswith("From tp1 to tp4 throughput per rank fell from 5,120 to 1,630 tokens/s")
    assert "\n\nmeasured  COMPLETE" in report.text
    assert report.link == (tmp_path / "run" / "index.html").resolve().as_uri()


def tour(path: Path, **ends: Any) -> tuple[Reading, list[Case]]:
    """A run of one case of each benchmark, and how each ended."""
    cases = [case(name, benchmark=name) for name in ends]
    records = [
        (outcome(each, end), observation(each) if end == "ok" else None)
        for each, end in zip(cases, ends.values(), strict=True)
    ]
    return read(write_run(path, cases, records)), cases


def drawn(answer: str, *cases: Case) -> dict[str, Any]:
    return {"answer": answer, "is_aside": False, "rests_on_times": True, "cases": {each.id for each in cases}}


def test_a_chart_speaks_only_for_the_benchmarks_that_it_draws(tmp_path: Path) -> None:
    reading, (steps, calls) = tour(tmp_path / "run", steps="ok", calls="ok")
    figures = [drawn("tp1 is fastest.", steps), drawn("tp1 sends least.", steps), drawn("8 GB/s.", calls)]
    assert headline_of(reading, figures[:2]).answers == ("tp1 is fastest.",)
    assert headline_of(reading, figures).answers == ("tp1 is fastest.", "8 GB/s.")


def test_an_answer_says_which_cases_it_leaves_out(tmp_path: Path) -> None:
    """tp4+sp was wrong and ZeRO 3 had stood still: the answers went from tp2 to tp8, and to ZeRO 2, without a word."""
    names = ("dp2", "tp2", "zero1", "zero3", "tp8")
    cases = [case(name, expected_outcomes=("out_of_memory",)) for name in names]
    ends = ("ok", "wrong", "timeout", "timeout", "out_of_memory")
    records = [
        (outcome(each, end), observation(each) if end == "ok" else None) for each, end in zip(cases, ends, strict=True)
    ]
    reading = read(write_run(tmp_path / "run", cases, records))
    assert headline_of(reading, [drawn("dp2 is fastest.", *cases)]).answers == (
        "dp2 is fastest.",
        f"Left out, without a figure: {cases[1].id} (wrong); {cases[2].id}, {cases[3].id} (timed out).",
    )


def test_an_answer_that_speaks_of_no_time_has_no_unsteady_cases_behind_it(tmp_path: Path) -> None:
    wild = case("wild")
    reading = read(write_run(tmp_path / "run", [wild], [(outcome(wild), observation(wild, [[0.01, 0.09] * 10] * 4))]))
    held = drawn("dp4+zero1 holds least.", wild)
    assert headline_of(reading, [held]).unsteady == (
        "Unsteady: the case behind this has iterations that differ too much."
    )
    assert headline_of(reading, [{**held, "rests_on_times": False}]).unsteady == ""


def test_cases_without_a_figure_are_not_behind_an_answer(tmp_path: Path) -> None:
    """8 of 8 were unsteady in a run that was stopped: '8 of the 10 cases behind this', two of which had not run."""
    wild, missing = case("wild"), case("missing")
    wide = observation(wild, [[0.01, 0.09] * 10] * 4)
    reading = read(write_run(tmp_path / "run", [wild, missing], [(outcome(wild), wide)]))
    assert headline_of(reading, [drawn("8 GB/s.", wild, missing)]).unsteady == (
        "Unsteady: the case behind this has iterations that differ too much."
    )


def test_of_a_tour_it_says_how_many_benchmarks_have_figures_and_how_the_others_ended(tmp_path: Path) -> None:
    ends = {"matrices": "ok", "links": "ok", "disks": "skipped", "nics": "failed"}
    reading, (matrices, links, *_) = tour(tmp_path / "run", **ends)
    assert headline_of(reading, [drawn("5 TFLOP/s.", matrices), drawn("8 GB/s.", links)]).answers == (
        "2 of 4 benchmarks have figures; skipped: disks; failed: nics.",
        "5 TFLOP/s.",
        "8 GB/s.",
    )
    # One chart does not speak for a tour: a page of doctor told a bandwidth where it was asked for health.
    assert headline_of(reading, [drawn("5 TFLOP/s.", matrices)]).answers == (
        "2 of 4 benchmarks have figures; skipped: disks; failed: nics.",
        "5 TFLOP/s.",
    )


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
    assert re.findall(r'<article class="finding (\w+)">', page) == ["error", "warning"]
    assert "What usually fixes it" in page
    assert render_report(all_reduce_run(tmp_path / "again")).verdict.exit_code == 1


def test_a_place_of_several_findings_is_named_once_in_their_title() -> None:
    findings = [Finding(f"host {host}", what, "error") for host, what in (("a", "x"), ("a", "y"), ("b", "x"))]
    assert _group("unfit_host", findings[:2], {})["title"] == "Unfit host: host a"
    assert _group("unfit_host", findings, {})["title"] == "Unfit host: host a, host b"


def test_notes_alone_are_not_called_a_fault() -> None:
    virtual = Finding("host vm", "is a virtual machine of kvm", "note", confirm="systemd-detect-virt", fix="nothing")
    said = _group("unfit_host", [virtual], {})
    assert (said["title"], said["about"]) == ("host vm: is a virtual machine of kvm", "Worth knowing; no fault")
    assert said["advice"] == {}
    capped = _group("throttling", [Finding("GPU 0 on vm", "clocks were lowered (sw power cap)", "note")], {})
    assert capped["title"] == "GPU 0 on vm: clocks were lowered (sw power cap)"
    assert "How to confirm" in capped["advice"]


def test_notes_stand_behind_what_counts_and_are_not_counted_with_it() -> None:
    port = Finding("host b", "mlx5_3 port 1: is DOWN", "error")
    notes = [Finding("2 hosts (a, b)", what, "note") for what in ("is a virtual machine", "gives huge pages to all")]
    said = _group("unfit_host", [port, *notes], {})
    assert (said["title"], said["total"]) == ("Unfit host: host b: mlx5_3 port 1: is DOWN", 1)
    assert ([finding for finding, _ in said["more"]], said["folded"]) == (notes, "2 notes")


def test_what_counts_against_a_host_has_its_command_and_its_remedy_and_a_note_has_not(tmp_path: Path) -> None:
    machine, of = healthy(), case("matmul")
    machine.files |= {
        "/sys/class/infiniband/mlx5_3/ports/1/state": "1: DOWN\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    }
    planted = {"hosts": {"laptop": machine.host(tmp_path, "laptop").environment}}
    run = write_run(tmp_path / "run", [of], [(outcome(of), observation(of))], environment=planted)
    page = render_report(run).path.read_text()
    for check, is_said in ((PortState, True), (HugePages, False)):
        assert (f"<code>{escape(check.confirm)}</code>" in page) == is_said
        assert (f"Fix: {escape(check.fix)}" in page) == is_said


@pytest.mark.parametrize(
    ("ports", "network"),
    [({"a": 8, "b": 8}, "8 x 400 Gb/s InfiniBand"), ({"a": 8}, "8 x 400 Gb/s InfiniBand"), ({"a": 0}, None)],
)
def test_the_head_of_a_page_says_which_network_its_hosts_have(
    tmp_path: Path, ports: dict[str, int], network: str | None
) -> None:
    of, port = case("matmul"), {"state": "4: ACTIVE", "bits_per_s": 4e11, "link_layer": "InfiniBand"}
    hosts = {name: {"infiniband": [port] * number, "network": []} for name, number in ports.items()}
    run = write_run(tmp_path / "run", [of], [(outcome(of), observation(of))], environment={"hosts": hosts})
    assert dict(circumstances(read(run))).get("network") == network


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
    body = page.split('<table id="table">', 1)[1].split("</tbody>", 1)[0].split("<tbody>", 1)[1]
    assert body.count("<tr>") == 7
    assert '<td class="status is-out_of_memory_as_expected">out of memory as expected</td>' in body


def test_rendering_again_gives_the_same_page(tmp_path: Path) -> None:
    run = tp_scale_run(tmp_path / "run")
    assert render_report(run).path.read_bytes() == render_report(run).path.read_bytes()


def test_the_report_needs_no_torch(tmp_path: Path) -> None:
    good_run(tmp_path / "run")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from clusterbench.report import render_report\n"
        "from clusterbench.run_folder import RunFolder\n"
        f"render_report(RunFolder.open(Path({str(tmp_path / 'run')!r})))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_column_of_options_is_one_that_the_suite_sweeps(tmp_path: Path) -> None:
    cases = [
        case(f"{size}", point={"size": size, "dtype": "float32", "num_ranks": 4, "tp": size}, benchmark="planted")
        for size in (1, 2)
    ]
    names = [column.name for column in columns(read(good_run(tmp_path / "run", cases)))]
    assert names == ["case", "outcome", "ranks", "size", "step_time"]


class HostileChart(Chart[list[Row]]):
    """Shows what nobody should have planted.

    How to read it
    --------------
    As text.
    """

    title: ClassVar[str] = HOSTILE
    section: ClassVar[Section] = "comparison"

    def select(self, reading: Reading) -> list[Row] | None:
        return reading.rows

    def draw(self, data: list[Row]) -> list[Panel]:
        figure, _ = canvas(HOSTILE)
        lines = ((HOSTILE,),) * (MOST_TOLD + 1)
        story = Story(HOSTILE, (HOSTILE,), (HOSTILE,), lines, ("planted/1n4/b", HOSTILE))
        first = Entry((HOSTILE, math.nan, 0.1 + 0.2), data[0].case, (0, 0, 1, 1), story)
        second = Entry((None, math.inf, None), "refused/tp3", (math.nan, 0, 1, 1))
        return [
            Panel(figure, (Column(HOSTILE), Column("time", "s"), Column("memory", "B")), (first, second)),
            Panel(canvas("many")[0], (Column("x"),), (Entry(("x",)),) * (MOST_PLACES + 1)),
        ]


def _data(page: str) -> dict[str, Any]:
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert embedded is not None
    found: dict[str, Any] = json.loads(embedded[1])
    return found


@pytest.fixture
def with_hostile_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbench.report.charts", lambda: {"hostile": HostileChart})


@pytest.mark.usefixtures("with_hostile_chart")
def test_what_a_panel_says_is_text_and_never_markup(tmp_path: Path) -> None:
    page = render_report(good_run(tmp_path / "run")).path.read_text()
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>") == 2


@pytest.mark.usefixtures("with_hostile_chart")
def test_a_panel_travels_as_data_in_base_units(tmp_path: Path) -> None:
    panel, many = _data(render_report(good_run(tmp_path / "run")).path.read_text())["panels"]
    assert [column["unit"] for column in panel["columns"]] == ["", "s", "B"]
    assert [column["values"] for column in panel["columns"][1:]] == [[None, None], [0.3, None]]
    assert panel["cases"] == [0, -1]  # the second was refused: no line of the table of cases is its own
    story = panel["stories"]["0"]
    assert story["sentences"] == [HOSTILE, "The first 200 of 201 lines."]
    assert (len(story["lines"]), story["cases"]) == (200, [1, -1])
    assert many["columns"][0] == {"name": "x", "unit": "", "words": ["x"], "values": [0] * 401}


@pytest.mark.usefixtures("with_hostile_chart")
def test_the_table_behind_a_figure_is_there_without_javascript(tmp_path: Path) -> None:
    page = render_report(good_run(tmp_path / "run")).path.read_text()
    assert '<td>nan s</td><td>0.30B</td><td class="text"><a href="#case=planted/1n4/a">planted/1n4/a</a></td>' in page
    assert '<td class="text">refused/tp3</td>' in page
    assert "The first 400 of 401 lines are listed; the CSV has all." in page


def test_a_finding_about_a_case_leads_to_it(tmp_path: Path) -> None:
    seconds = [[0.01, 0.02, 0.01, 0.03, 0.01] * 4] * 4
    run = write_run(tmp_path / "run", [case("a")], [(outcome(case("a")), observation(case("a"), seconds))])
    assert '<strong><a href="#case=planted/1n4/a">planted/1n4/a</a></strong>' in render_report(run).path.read_text()
    page = render_report(all_reduce_run(tmp_path / "other")).path.read_text()
    assert '<a href="#case=planted/1n8/1048576B">planted/1n8/1048576B, rank 5, host gpu-02' in page


def test_the_page_lets_its_own_script_run_and_nothing_else(tmp_path: Path) -> None:
    page = render_report(good_run(tmp_path / "run")).path.read_text()
    script = page.rsplit("<script>", 1)[1].split("</script>", 1)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:;" in page


def test_samples_stand_in_the_page_for_each_repeat(tmp_path: Path) -> None:
    (found,) = details(read(good_run(tmp_path / "run", [case("a")]))) or []
    samples = found["samples"]
    assert samples["unit"] == "ms"
    (repeat,) = samples["repeats"]
    assert (repeat["repeat"], repeat["count"], repeat["summary"]) == (1, 20, ["10", "10.1", "10.2"])
    assert repeat["values"][:3] == [10, 10.1, 10.2]
    assert ("samples of every rank", f"observations.jsonl, the lines with identity {case('a').hash}") in found["about"]


def test_repeats_count_from_1_as_in_the_terminal(tmp_path: Path) -> None:
    one = case("a", repeats=2)
    records = [(outcome(one, repeat=repeat), observation(one, repeat=repeat)) for repeat in (0, 1)]
    (found,) = details(read(write_run(tmp_path / "run", [one], records))) or []
    assert [name for name, _ in found["about"] if name.startswith("repeat")] == [
        "repeat 1, attempt 1", "repeat 2, attempt 1",
    ]  # fmt: skip
    assert [repeat["repeat"] for repeat in found["samples"]["repeats"]] == [1, 2]


def test_of_many_samples_the_first_stand_in_the_page(tmp_path: Path) -> None:
    one = case("a", repeats=4)
    records = [
        (outcome(one, repeat=repeat), observation(one, [[0.01 * repeat] * 300] * 4, repeat=repeat))
        for repeat in (1, 2, 3, 4)
    ]
    (found,) = details(read(write_run(tmp_path / "run", [one], records))) or []
    assert [repeat["count"] for repeat in found["samples"]["repeats"]] == [300] * 4
    assert sum(len(repeat["values"]) for repeat in found["samples"]["repeats"]) == MOST_SAMPLES


def test_of_very_many_cases_the_page_leaves_the_samples_out_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterbench.report.table.MOST_SAMPLED", 1)
    monkeypatch.setattr("clusterbench.report.MOST_SAMPLED", 1)
    page = render_report(good_run(tmp_path / "run")).path.read_text()
    assert "the page leaves the samples out, because there are too many cases" in page
    assert [one["samples"] for one in _data(page)["details"]] == [None, None]


def test_an_option_that_is_no_plain_value_is_shown_as_text(tmp_path: Path) -> None:
    cases = [
        case(f"{number}", point={"odd": odd, "x": number})
        for number, odd in enumerate([math.nan, math.inf, None, "<b>", True])
    ]
    page = render_report(good_run(tmp_path / "run", cases)).path.read_text()
    assert len(_data(page)["columns"][0]["values"]) == 5
