from __future__ import annotations

import csv
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clusterbench
from clusterbench.benchmarks._sustained import burst
from clusterbench.derive import derive_rows, read, write_rows
from clusterbench.run_folder.attempts import why_unusable
from clusterbench.types import Expected, Refusal, Timing, WarmUp
from tests.report.synthetic import case, good_run, observation, outcome, plant, tp_scale_run, write_run


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    undo = plant()
    yield
    undo()


def test_every_figure_is_one_row_in_the_order_of_the_plan(tmp_path: Path) -> None:
    rows = derive_rows(good_run(tmp_path / "run"))
    assert [(row.case, row.metric) for row in rows] == [
        (f"planted/1n4/{label}", metric)
        for label in "ab"
        for metric in ("step_time", "time_cv", "time_max_over_median")
    ]


def test_samples_of_all_good_repeats_are_pooled(tmp_path: Path) -> None:
    planned = case("a", repeats=2)
    slow = [[0.020] * 20] * 4
    run = write_run(
        tmp_path / "run",
        [planned],
        [(outcome(planned), observation(planned)), (outcome(planned, repeat=2), observation(planned, slow, repeat=2))],
    )
    step_time = derive_rows(run)[0]
    assert step_time.iterations == 40
    assert step_time.high == 0.020


def test_own_work_of_all_repeats_is_joined(tmp_path: Path) -> None:
    planned = case("a", 2, repeats=3)
    passes: list[dict[str, Any]] = [{"own_seconds": [[0.1, 0.2], [0.3, 0.4]], "traffic": [1, 2]}, {}]
    passes.append({"own_seconds": [[0.5], [0.6]]})
    seen = [replace(observation(planned, repeat=repeat), passes=each) for repeat, each in enumerate(passes, start=1)]
    run = write_run(tmp_path / "run", [planned], [(outcome(planned, repeat=each.repeat), each) for each in seen])
    pooled = read(run).histories[0].pooled
    assert pooled is not None
    assert pooled.passes == {"own_seconds": [[0.1, 0.2, 0.5], [0.3, 0.4, 0.6]], "traffic": [1, 2]}


def test_evidence_is_the_last_of_each_kind_and_what_proving_took_is_of_all_repeats(tmp_path: Path) -> None:
    planned = case("a", 2, repeats=2)
    first, second = ([{"loss": loss, "proof_time": spent} for spent in (3.0, 2.5)] for loss in (5.0, 4.0))
    first[0]["last_update"] = 0.5  # looked at in the first repeat alone
    second = [{**of_rank, "proof_time": 0.0} for of_rank in second]
    seen = [replace(observation(planned, repeat=1 + at), evidence=each) for at, each in enumerate((first, second))]
    run = write_run(tmp_path / "run", [planned], [(outcome(planned, repeat=each.repeat), each) for each in seen])
    pooled = read(run).histories[0].pooled
    assert pooled is not None
    assert pooled.evidence == [{"loss": 4.0, "last_update": 0.5, "proof_time": 3.0}, {"loss": 4.0, "proof_time": 2.5}]


def test_samples_of_a_pass_are_pooled_and_other_passes_are_the_last(tmp_path: Path) -> None:
    planned = case("a", repeats=2)
    first = replace(observation(planned), passes={"samples": [{"rate": [1.0]}] * 4, "traffic": [1, 2, 3, 4]})
    second = replace(observation(planned, repeat=2), passes={"samples": [{"rate": [2.0, 3.0]}] * 4})
    run = write_run(tmp_path / "run", [planned], [(outcome(planned), first), (outcome(planned, repeat=2), second)])
    pooled = read(run).histories[0].pooled
    assert pooled is not None
    assert pooled.passes == {"samples": [{"rate": [1.0, 2.0, 3.0]}] * 4, "traffic": [1, 2, 3, 4]}


@pytest.mark.parametrize("samples", [3, {"rate": 3}, {"rate": []}, {"rate": ["x"]}, {"rate": [float("nan")]}])
def test_samples_that_are_no_figures_are_left_out(samples: Any) -> None:
    planned = case("a")
    damaged = replace(observation(planned), passes={"samples": [samples] * 4})
    assert (
        why_unusable(planned, damaged)
        == f"the record holds {samples!r:.60} as samples; they are lists of numbers by name"
    )


def test_variables_of_a_start_are_columns(tmp_path: Path) -> None:
    planned = replace(case("a"), environment={"UCX_TLS": "tcp"})
    run = write_run(tmp_path / "run", [planned], [(outcome(planned), observation(planned))])
    rows = list(csv.DictReader(write_rows(run).read_text().splitlines()))
    assert {row["UCX_TLS"] for row in rows} == {"tcp"}


def test_a_failed_attempt_never_hides_a_good_one(tmp_path: Path) -> None:
    planned = case("a")
    run = write_run(
        tmp_path / "run",
        [planned],
        [(outcome(planned), observation(planned)), (outcome(planned, "failed", attempt=2, reason="later"), None)],
    )
    assert {row.status for row in derive_rows(run)} == {"ok"}


def test_the_last_good_attempt_wins(tmp_path: Path) -> None:
    planned = case("a")
    again = observation(planned, [[0.5] * 20] * 4, attempt=2)
    run = write_run(
        tmp_path / "run", [planned], [(outcome(planned), observation(planned)), (outcome(planned, attempt=2), again)]
    )
    assert derive_rows(run)[0].value == 0.5


@pytest.mark.parametrize("wrong_attempt", [1, 2])
def test_no_other_attempt_hides_a_wrong_one(tmp_path: Path, wrong_attempt: int) -> None:
    """Wrong in one of two attempts is no result; a repeat that had lost a host as well ended 'ok' with the second."""
    planned = case("a")
    records: list[Any] = [(outcome(planned, attempt=n), observation(planned, attempt=n)) for n in (1, 2)]
    records[wrong_attempt - 1] = (outcome(planned, "wrong", attempt=wrong_attempt), None)
    read_again = read(write_run(tmp_path / "run", [planned], records))
    assert [(row.status, row.value) for row in read_again.rows] == [("wrong", None)]
    assert [len(history.faults) for history in read_again.histories] == [1]


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ({"parity_loss": 2e-5}, "a parity_loss of 2e-05 on rank 3, where 1e-05 is allowed"),
        ({"parity_loss": math.nan}, "a parity_loss of nan on rank 3, where 1e-05 is allowed"),
        ({"wrong_elements": 1.0}, "a wrong_elements of 1 on rank 3, where 0 is allowed"),
        ({"parity_loss": 1e-5, "wrong_elements": 0.0, "proof_time": 9.0}, ""),
    ],
)
def test_a_record_that_holds_what_its_check_refuses_is_wrong(
    tmp_path: Path, evidence: dict[str, float], said: str
) -> None:
    planned = case("a", expected={"parity_loss": Expected(1e-5, "1", "at most; rounding")})
    seen = observation(planned, evidence=[{}, {}, {}, evidence])
    (history,) = read(write_run(tmp_path / "run", [planned], [(outcome(planned), seen)])).histories
    assert history.status == ("wrong" if said else "ok")
    assert said in (history.outcome.reason if history.outcome else "")


def test_an_observation_without_its_outcome_does_not_count(tmp_path: Path) -> None:
    planned = case("a")
    run = write_run(tmp_path / "run", [planned], [])
    run._append("observations.jsonl", observation(planned))
    (row,) = derive_rows(run)
    assert (row.status, row.metric, row.value, row.basis) == ("not_run", "", None, "not run yet")


def test_every_figure_has_the_hosts_it_ran_on(tmp_path: Path) -> None:
    rows = csv.DictReader(write_rows(tp_scale_run(tmp_path / "run")).read_text().splitlines())
    assert {row["hosts"] for row in rows if row["value"]} == {"laptop"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hosts": ()}, "the record does not say on which hosts the case ran"),
        ({"seconds": [[0.1]] * 3}, "the record holds 3 ranks, but the case ran on 4"),
        ({"seconds": [[float("nan")]] * 4}, "the record holds a time that is not a positive number"),
        (
            {"seconds": [[1e300]] * 4},
            "the record holds a time that is not a positive number between 1e-12 and 1e+09 s, but 1e+300",
        ),
        ({"evidence": [{}] * 3}, "the record holds 'evidence' of 3 ranks, but the case ran on 4"),
        (
            {"telemetry": {"a": {"GPU-1": {"throttle_reasons": {"hw_thermal": "x"}}}}},
            "the record holds {'hw_thermal': 'x'} as the reasons for lowered clocks",
        ),
    ],
)
def test_a_record_that_cannot_be_used_is_named_and_left_out(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    planned = case("a")
    run = write_run(tmp_path / "run", [planned], [(outcome(planned), replace(observation(planned), **changes))])
    reading = read(run)
    assert reading.problems == (f"planted/1n4/a, repeat 1: {why}; it was left out",)
    assert [row.metric for row in reading.rows] == [""]


def test_a_record_without_metrics_is_named_and_the_other_repeats_stand(tmp_path: Path) -> None:
    planned = case("a", repeats=3)
    figures = [[{"name": "x", "unit": "s", "value": value}] for value in (1.0, float("inf"), 1.0)]
    figures.append([{"nom": "x"}])
    records = [
        (outcome(planned, repeat=repeat), observation(planned, figures=of_repeat, repeat=repeat))
        for repeat, of_repeat in enumerate(figures)
    ]
    reading = read(write_run(tmp_path / "run", [planned], records))
    assert [observation.repeat for observation in reading.histories[0].observations] == [0, 2]
    assert reading.problems == (
        "planted/1n4/a, repeat 2: 'planted' cannot derive metrics from the record (x would be inf); it was left out",
        "planted/1n4/a, repeat 4: 'planted' cannot derive metrics from the record (TypeError: Metric.__new__() got an "
        "unexpected keyword argument 'nom'); it was left out",
    )


def test_lines_that_belong_to_nothing_are_named(tmp_path: Path) -> None:
    planned, unplanned = case("a"), case("b")
    records = [
        (outcome(planned), observation(planned)),
        (outcome(planned), None),
        (outcome(unplanned), observation(unplanned)),
    ]
    run = write_run(tmp_path / "run", [planned], records)
    run._append("observations.jsonl", observation(planned, attempt=7))
    assert read(run).problems == (
        "planted/1n4/a, repeat 1, attempt 1: the outcome is there twice; the second was left out",
        "planted/1n4/b, repeat 1, attempt 1: the outcome belongs to no case of the plan and was left out",
        "planted/1n4/b, repeat 1, attempt 1: the record belongs to no case of the plan and was left out",
        "planted/1n4/a, repeat 1, attempt 7: the record has no outcome and was left out",
    )


def test_what_was_not_measured_is_a_row_with_its_reason(tmp_path: Path) -> None:
    lost = case("lost")
    refusal = Refusal("planted/tp3", "planted", {"layout": "tp3"}, 1, "tp3 does not divide 8 heads")
    run = write_run(
        tmp_path / "run", [lost], [(outcome(lost, "timeout", reason="rank 2 hung"), None)], refusals=[refusal]
    )
    assert [(row.case, row.status, row.metric, row.basis) for row in derive_rows(run)] == [
        ("planted/1n4/lost", "timeout", "", "rank 2 hung"),
        ("planted/tp3", "refused", "", "tp3 does not divide 8 heads"),
    ]


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        ([[0.1] * 20] * 3, "the record holds 3 ranks, but the case ran on 4"),
        (
            [[0.1] * 20] * 3 + [[0.1]],
            "ranks left 1 to 20 samples each; every rank must leave as many, and at least one",
        ),
        ([[0.1] * 20] * 3 + [[float("nan")] * 20], "the record holds a time that is not a positive number"),
    ],
)
def test_a_record_that_is_not_whole_gives_no_figure(tmp_path: Path, seconds: list[list[float]], why: str) -> None:
    planned = case("a")
    reading = read(write_run(tmp_path / "run", [planned], [(outcome(planned), observation(planned, seconds))]))
    assert [row.value for row in reading.rows] == [None]
    assert reading.problems == (f"planted/1n4/a, repeat 1: {why}; it was left out",)


def test_the_plans_expectation_stands_beside_the_figure_and_alone_where_there_is_none(tmp_path: Path) -> None:
    promised = {"step_time": Expected(0.01, "s", "a guess"), "traffic_bytes[axis=tp]": Expected(64.0, "B", "formula")}
    rows = derive_rows(good_run(tmp_path / "run", [case("a", expected=promised)]))
    assert [(row.metric, row.expected, row.basis) for row in rows if row.metric == "step_time"] == [
        ("step_time", 0.01, "a guess")
    ]
    (traffic,) = [row for row in rows if row.metric == "traffic_bytes"]
    assert (traffic.value, traffic.expected, traffic.detail) == (None, 64.0, {"axis": "tp"})


def test_the_spread_of_iterations_stands_beside_its_limit(tmp_path: Path) -> None:
    planned = case("a")
    seconds = [[0.9, 1.0, 1.1, 1.0]] * 4
    rows = {
        row.metric: row
        for row in derive_rows(
            write_run(tmp_path / "run", [planned], [(outcome(planned), observation(planned, seconds))])
        )
    }
    # Deviations -0.1, 0, 0.1, 0 from 1.0: sqrt(0.02 / 3).
    assert rows["time_cv"].value == pytest.approx(0.0816497)
    assert rows["time_cv"].expected == 0.05
    assert rows["time_max_over_median"].value == pytest.approx(1.1)


def test_a_benchmark_this_version_does_not_have_is_named(tmp_path: Path) -> None:
    planned = case("a", benchmark="gone")
    (row,) = derive_rows(write_run(tmp_path / "run", [planned], [(outcome(planned), observation(planned))]))
    assert row.basis == "this clusterbench has no benchmark 'gone'"


def test_deriving_twice_gives_the_same_rows(tmp_path: Path) -> None:
    run = tp_scale_run(tmp_path / "run")
    assert derive_rows(run) == derive_rows(run)


def test_rows_csv_comes_back_after_it_was_deleted(tmp_path: Path) -> None:
    run = tp_scale_run(tmp_path / "run")
    first = write_rows(run).read_text()
    (tmp_path / "run" / "rows.csv").unlink()
    assert write_rows(run).read_text() == first
    records = list(csv.DictReader(first.splitlines()))
    assert [record["layout"] for record in records if record["metric"] == "step_time"][:3] == ["tp1", "tp2", "tp2+sp"]
    assert {record["seq_len"] for record in records if record["status"] == "ok"} == {"256"}


def test_read_rows_is_tidy_and_long(tmp_path: Path) -> None:
    tp_scale_run(tmp_path / "run")
    rows = clusterbench.read_rows(tmp_path / "run")
    speed = rows[rows.metric == "tokens_per_s_per_rank"].set_index("layout").value
    assert speed["tp2"] == pytest.approx(2810)
    assert set(rows.status) == {"ok", "out_of_memory", "refused"}


HARMLESS = ("-1.5", "+1e-9", "tp2+sp", "'90s", "a=b", "")
FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\tx", "\rx", "-1\n", "=cmd|'/C calc'!A0, 1", "'=1+1", "''@x")


@pytest.mark.parametrize("words", [*HARMLESS, *FORMULAS])
def test_a_text_that_a_spreadsheet_would_execute_gets_an_apostrophe(tmp_path: Path, words: str) -> None:
    planned = case("a", point={"option": words, "number": -1.5, "=x": 1})
    failed = outcome(planned, "failed", reason=words or "unknown")
    run = write_run(tmp_path / "run", [planned], [(failed, None)])
    with write_rows(run).open(newline="") as table:
        (record,) = csv.DictReader(table)
    mark = "'" if words in FORMULAS else ""
    assert record["option"] == mark + words
    assert record["basis"] == mark + (words or "unknown")
    assert (record["number"], record["'=x"]) == ("-1.5", "1")
    (row,) = clusterbench.read_rows(run).to_dict("records")
    assert (row["option"], row["basis"]) == (words, words or "unknown")


def test_wide_rows_has_one_line_per_case(tmp_path: Path) -> None:
    run = tp_scale_run(tmp_path / "run")
    wide = clusterbench.wide_rows(run)
    assert wide.equals(clusterbench.wide_rows(clusterbench.read_rows(run)))
    assert list(wide.layout) == ["tp1", "tp2", "tp2+sp", "tp4", "tp4+sp", "tp8", "tp8+sp", "tp3"]
    assert wide.set_index("layout")["traffic_bytes[axis=tp]"]["tp4"] == 48 * 2**20


def test_a_row_says_the_hash_of_its_case_which_joins_it_with_other_runs(tmp_path: Path) -> None:
    run = tp_scale_run(tmp_path / "run")
    planned = {case.id: case.hash for case in run.plan().cases}
    rows = clusterbench.read_rows(run)
    assert dict(zip(rows.case, rows.hash, strict=True)) == {**planned, **dict.fromkeys(set(rows.case) - {*planned}, "")}
    assert set(rows[rows.hash == ""].status) == {"refused"}
    assert list(clusterbench.wide_rows(rows).hash)[:7] == list(planned.values())
    assert next(csv.DictReader(write_rows(run).read_text().splitlines()))["hash"] == rows.hash[0]


def test_a_run_without_a_case_gives_an_empty_table(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], [])
    assert len(clusterbench.read_rows(run)) == 0
    assert len(clusterbench.wide_rows(run)) == 0


def test_renaming_a_case_does_not_lose_its_observation(tmp_path: Path) -> None:
    planned = case("a")
    renamed = replace(planned, id="another name")
    assert {
        row.status
        for row in derive_rows(write_run(tmp_path / "run", [renamed], [(outcome(planned), observation(planned))]))
    } == {"ok"}


def test_importing_clusterbench_waits_neither_for_pandas_nor_for_torch() -> None:
    code = (
        "import sys, clusterbench; print([name for name in ('pandas', 'torch', 'matplotlib') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def warmed_up(
    is_settled: bool, drift: float, burst_s: float, *, calls: int = 1, began_s: float = 100.0
) -> list[Timing]:
    return [Timing(began_s, began_s + 2, WarmUp(is_settled, drift, 9.7, calls, [burst_s])) for _ in range(4)]


def test_a_row_says_how_far_clocks_had_settled(tmp_path: Path) -> None:
    planned = case("a", repeats=2)
    settled, drifting = warmed_up(True, 0.004, 0.1), warmed_up(False, 0.034, 0.2, calls=6, began_s=200.0)
    for name, first, second in (("x", settled, drifting), ("y", drifting, settled)):
        seen = [observation(planned, repeat=1, timing=first), observation(planned, repeat=2, timing=second)]
        run = write_run(tmp_path / name, [planned], [(outcome(planned, repeat=each.repeat), each) for each in seen])
        reading = read(run)
        (row,) = reading.rows_of("warm_up_drift")
        assert (row.value, row.expected, reading.unsettled) == (0.034, 0.01, {planned.id})
        assert row.basis == (
            "not settled: the last two stretches of 9.7 s of warm-up do not agree; each sample is the mean of 6 "
            "iterations"
        )
        pooled = reading.histories[0].pooled
        assert pooled is not None
        assert pooled.timing[0].began_s == second[0].began_s
        assert burst(pooled).n == 2  # of both repeats


def test_a_row_of_settled_clocks_is_no_warning(tmp_path: Path) -> None:
    planned = case("a")
    seen = observation(planned, timing=warmed_up(True, 0.004, 0.1))
    reading = read(write_run(tmp_path / "run", [planned], [(outcome(planned), seen)]))
    (row,) = reading.rows_of("warm_up_drift")
    assert row.basis == "the last two stretches of 9.7 s of warm-up agree"
    assert reading.unsettled == set()


def test_a_counted_warm_up_has_no_such_row(tmp_path: Path) -> None:
    planned = case("a")
    seen = observation(planned, timing=[Timing(100.0, 102.0)] * 4)
    assert read(write_run(tmp_path / "run", [planned], [(outcome(planned), seen)])).rows_of("warm_up_drift") == []


def test_a_record_that_says_when_some_ranks_only_were_timed_is_left_out() -> None:
    planned = case("a")
    seen = observation(planned, timing=[Timing(100.0, 102.0)] * 3)
    assert why_unusable(planned, seen) == "the record holds 'timing' of 3 ranks, but the case ran on 4"
