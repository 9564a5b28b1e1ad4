"""The trace of a run says what its figures say, and a run that was recorded before there were any says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.errors import RunFolderError, SuiteError
from clusterbench.formulas.schedules import order
from clusterbench.formulas.schedules.timeline import play
from clusterbench.job.passes import TRACE
from clusterbench.job.spans import Shown, Span, Track, tracks_of
from clusterbench.report.step_trace import step_trace
from clusterbench.run_folder import TRACES, RunFolder
from clusterbench.run_folder.passes import as_json
from tests.drawing.chrome import busy_s, threads_of
from tests.ranks import run_ranks
from tests.report.synthetic import case, good_run, observation, outcome, write_run

SHOWN = [
    Shown("compute", "aten::mm", 0.0, 0.1),
    Shown("communication tp", "tp all_reduce", 0.05, 0.15),
    Shown("communication tp", "tp all_gather", 0.1, 0.2),
    Shown("exposed communication tp", "tp all_gather", 0.1, 0.2),
]
FIGURES = {"communication_s": 0.15, "compute_s": 0.1, "exposed_s": 0.1, "overlap_fraction": 1 / 3, "step_s": 0.25}
WANTED = "keeps no traced step: each case of train_step that ends well leaves one, in traces.jsonl; runs recorded"


def planted(path: Path, labels: tuple[str, ...] = ("tp4",), **passes: Any) -> RunFolder:
    cases = [case(label, benchmark="train_step", point={"layout": label, "schedule": "1f1b"}) for label in labels]
    of_ranks = {"exposed": [FIGURES] * 4, "spans": [as_json(tracks_of(SHOWN, 100))] * 3 + [[]], **passes}
    return write_run(path, cases, [(outcome(one), replace(observation(one), passes=of_ranks)) for one in cases])


def text_of(run: RunFolder, asked: str | None = None) -> str:
    return "".join(step_trace(RunFolder.open(run.path), asked).pieces())


def test_each_rank_that_kept_its_step_is_a_process_with_its_figures(tmp_path: Path) -> None:
    run = planted(tmp_path / "run")
    threads = threads_of(text_of(run))
    assert [*threads] == ["rank 0 (laptop)", "rank 1 (laptop)", "rank 2 (laptop)"]
    for of_rank in threads.values():
        assert busy_s(of_rank["compute"]) == FIGURES["compute_s"]
        assert busy_s(of_rank["exposed communication tp"]) == FIGURES["exposed_s"]
        assert [event["name"] for event in of_rank["communication tp"]] == ["tp all_reduce", "tp all_gather"]
    figures = "250.000 ms with tracing, 100.000 ms computing, 150.000 ms communicating, 100.000 ms exposed"
    assert f'"labels":"{figures}"' in text_of(run)
    assert step_trace(run).about["of"] == "3 of 4 ranks"


def test_no_report_reads_what_ran_when(tmp_path: Path) -> None:
    run = planted(tmp_path / "run")
    (seen,) = run.observations()
    assert seen.passes.keys() == {"exposed"}
    (kept,) = run.traces()
    assert kept.passes.keys() == {"spans"}
    assert (kept.hash, kept.seconds) == (seen.hash, [])


def test_what_was_joined_says_so(tmp_path: Path) -> None:
    shown = [Shown("compute", f"kernel {number}", number, number + 0.5) for number in range(4)]
    run = planted(tmp_path / "run", spans=[as_json(tracks_of(shown, 1)), [], [], []])
    (event,) = threads_of(text_of(run))["rank 0 (laptop)"]["compute"]
    assert (event["name"], event["args"]) == ("kernel 0 + 3 more", {"spans": 4, "busy_us": 2e6})


def test_the_pipelines_own_step_is_shown_as_measured_and_as_played(tmp_path: Path) -> None:
    played = play(order("1f1b", 2, 4, 1), {"F": 0.01, "B": 0.02}, send_s=0.005)
    ranks = [[[*each.action, each.start_s, each.end_s] for each in rank] for rank in played.ranks]
    run = planted(tmp_path / "run", timeline=[ranks[0], ranks[0], ranks[1], ranks[1]], spans=[[]] * 4)
    threads = threads_of(text_of(run))
    assert [*threads] == ["pipeline, a step of its own", "pipeline, simulated"]
    for of_stages in threads.values():
        assert [*of_stages] == ["stage 0", "stage 1"]
        assert [len(events) for events in of_stages.values()] == [8, 8]
        assert busy_s(of_stages["stage 0"]) == pytest.approx(0.12)
    assert threads["pipeline, simulated"]["stage 0"][0]["name"] == "F0 of stage 0"


def test_a_case_is_named_where_there_are_several(tmp_path: Path) -> None:
    run = planted(tmp_path / "run", ("tp4", "tp2"))
    ids = "planted/1n4/tp4, planted/1n4/tp2"
    assert threads_of(text_of(run, "planted/1n4/tp2"))
    for asked, said in (
        (None, f"{run.path} keeps 2 traced steps; name one with --case.\nThey are: {ids}."),
        (
            "planted/1n4/tp",
            f"{run.path} has no case 'planted/1n4/tp'. Did you mean 'planted/1n4/tp4'?\nIts traced steps: {ids}.",
        ),
    ):
        with pytest.raises(SuiteError) as error:
            step_trace(run, asked)
        assert str(error.value) == said


def test_a_run_that_was_recorded_before_says_that_it_has_no_trace(tmp_path: Path) -> None:
    run = good_run(tmp_path / "run")
    assert not (run.path / TRACES).exists()
    done = CliRunner().invoke(main, ["trace", str(run.path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"error: {run.path} {WANTED}" in " ".join(done.stderr.split("\n"))
    done = CliRunner().invoke(main, ["trace", str(run.path), "--case", "planted/1n4/a"])
    assert f"error: case 'planted/1n4/a' of {run.path} keeps no traced step" in done.stderr


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    run = planted(tmp_path / "run")
    (run.path / TRACES).write_text((run.path / TRACES).read_text()[:-100])
    with pytest.raises(SuiteError, match=r"hint: traces\.jsonl:1 is not a whole line of JSON and was left out"):
        step_trace(RunFolder.open(run.path))


def test_the_verb_writes_a_file_and_says_what_is_in_it(tmp_path: Path) -> None:
    run = planted(tmp_path / "run")
    done = CliRunner().invoke(main, ["trace", str(run.path), "--out", str(tmp_path / "t.json")])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"planted/1n4/tp4: 12 events of 3 of 4 ranks; open {tmp_path / 't.json'} at ui.perfetto.dev\n"
    assert threads_of((tmp_path / "t.json").read_text())
    assert CliRunner().invoke(main, ["trace", str(run.path)]).stdout == (tmp_path / "t.json").read_text()
    done = CliRunner().invoke(main, ["trace", str(run.path), "--out", str(tmp_path / "none" / "t.json")])
    assert (done.exit_code, done.stderr[:11]) == (2, "error: --ou")


DAMAGED = (
    Span(9, 0, 1),
    Span(0, -5, 1),
    Span(0, 0, -1),
    Span(0, 0, 1, idle_ns=2),
    Span(0, 0, 1, more=-1),
    Span(0, 0, 10**18 + 1),
    Span(0, 0, 10**19),
)


@pytest.mark.parametrize("span", DAMAGED)
def test_a_damaged_track_is_an_error_that_names_the_file(tmp_path: Path, span: Span) -> None:
    run = planted(tmp_path / "run", spans=[as_json([Track("compute", ["aten::mm"], [span])]), [], [], []])
    with pytest.raises(RunFolderError, match=f"{TRACES}: the line of planted/1n4/tp4 is damaged"):
        step_trace(run)


def values_in(record: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in list(record.items() if isinstance(record, dict) else enumerate(record)):
        yield record, key
        if isinstance(inner, (dict, list)):
            yield from values_in(inner)


def test_whatever_a_damaged_line_holds_it_ends_in_one_error_or_in_a_sound_trace(tmp_path: Path) -> None:
    run = planted(tmp_path / "run")
    text = (run.path / TRACES).read_text()
    places = len([*values_in(json.loads(text))])
    for number in range(0, places, 3):
        for strange in (None, True, -1, 10**30, 0.5, "x", [], {}, [[0, 1, 2, 3, 4]]):
            line = json.loads(text)
            holder, key = [*values_in(line)][number]
            holder[key] = strange
            (run.path / TRACES).write_text(json.dumps(line) + "\n")
            with suppress(SuiteError, RunFolderError):
                threads_of(text_of(run))


def records(layout: str) -> dict[str, Any]:
    """What this rank's passes leave of a step."""
    from clusterbench.parallel import from_options
    from clusterbench.training.passes import passes_of
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_job, make_rig

    job = make_job(layout, seq_len=64, dtype="float32")
    rig = make_rig(job.layout)
    rig.most_spans = 4096
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    needed = ("traffic", "exposed", "spans", "timeline")
    return {name: observe() for name, observe in passes_of(step, rig).items() if name in needed}


@pytest.mark.gloo
@pytest.mark.parametrize("layout", ["dp2", "tp2+sp", "pp2-dp2", "dp2+zero3", "cp2"])
def test_of_real_ranks_the_trace_sums_to_the_figures_of_the_row(layout: str, tmp_path: Path) -> None:
    ranks = run_ranks(4 if "-" in layout else 2, records, layout)
    of = case(layout, len(ranks), benchmark="train_step", point={"layout": layout, "schedule": "1f1b"})
    seen = replace(observation(of), passes={name: [rank[name] for rank in ranks] for name in ranks[0]})
    run = write_run(tmp_path / "run", [of], [(outcome(of), seen)])
    threads = threads_of(text_of(run))
    for rank, figures in enumerate(TRACE.of(seen)):
        of_rank = threads[f"rank {rank} (laptop)"]
        assert busy_s(of_rank["compute"]) == pytest.approx(figures.compute_s, abs=1e-5)
        exposed = {name.rpartition(" ")[2]: events for name, events in of_rank.items() if name.startswith("exposed")}
        assert sum(map(busy_s, exposed.values())) == pytest.approx(figures.exposed_s, abs=1e-5)
        for axis, events in exposed.items():
            shares_s = [sum(line.exposed_s) for line in figures.transfers or () if line.axis == axis]
            assert busy_s(events) == pytest.approx(sum(shares_s), abs=1e-5)
        assert max(event["ts"] + event["dur"] for events in of_rank.values() for event in events) <= (
            1e6 * figures.step_s + 1
        )
        assert any(event["name"].startswith("aten::") for event in of_rank["compute"])
        assert (len(of_rank["pipeline"]) > 0) == ("pp" in layout)
    assert ("pipeline, simulated" in threads) == ("pp" in layout)
