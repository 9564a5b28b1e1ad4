"""Runs that one copy of the package began and another goes on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from clusterbench.cluster import Cluster
from clusterbench.errors import SuiteError
from clusterbench.launch import copies
from clusterbench.launch.conductor import Conductor
from clusterbench.launch.copies import as_this_copy_expects, this_copy
from clusterbench.own_copy import version
from clusterbench.planning import make_plan
from clusterbench.run_folder import COPIES, RunFolder
from clusterbench.suite import Suite, load_suite
from clusterbench.types import Plan
from tests.report.synthetic import case, observation, outcome, write_run

SUITE = """
suite: sharded
question: How much is sent?
benchmarks:
  - benchmark: train_step
    shape: llama-tiny
    seq_len: 64
    global_batch_size: 4
    layouts: [dp2+zero3, dp2]
    dtype: float32
"""
CALLS = "collectives[axis=dp]"


def begun(folder: Path, ran_by: str | None = "aa") -> tuple[RunFolder, Suite]:
    """A run of which the first copy expects 13 collectives of the first case, and ran the second."""
    path = folder / "sharded.yaml"
    path.write_text(SUITE)
    suite = load_suite(path)
    plan = make_plan(suite, Cluster(1, 2, "cpu"))
    first, second = plan.cases
    expected = {**first.expected, CALLS: replace(first.expected[CALLS], value=13.0)}
    planned = replace(plan, cases=(replace(first, expected=expected), second))
    run = RunFolder.create(folder / "run", SUITE.encode(), planned, {COPIES: {"aa": "0.0.9"}})
    if ran_by is not None:
        run.record(outcome(second, copy=ran_by), observation(second))
    return run, suite


def calls(plan: Plan) -> list[float]:
    return [each.expected[CALLS].value for each in plan.cases]


def test_a_copy_that_goes_on_expects_of_its_steps_what_it_does_itself(tmp_path, capsys):
    """ZeRO 3 in other FSDP groups sent 37 collectives; a plan of before had 29, and an honest step ended as WRONG."""
    run, suite = begun(tmp_path)
    today = calls(make_plan(suite, Cluster(1, 2, "cpu")))
    plan = as_this_copy_expects(run, run.plan(), suite, "bb")
    assert calls(plan) == today != calls(run.plan())
    assert run.environment()[COPIES] == {"aa": "0.0.9", "bb": version()}
    assert capsys.readouterr().err == (
        f"note: {run.path} has results of clusterbench 0.0.9 with sources aa, and goes on with clusterbench "
        f"{version()} with sources bb, which expects other figures of 1 case. Each result is held against what its "
        "own sources expect; where repeats of a case are of both, its time is of both.\n"
    )
    # what each expects is in the plan from then on, and is not added twice
    stored = run.plan()
    assert [(each.copy, each.hash) for each in stored.replanned] == [("bb", stored.cases[0].hash)]
    assert calls(as_this_copy_expects(run, stored, suite, "aa")) == [13.0, today[1]]
    assert calls(as_this_copy_expects(run, stored, suite, "bb")) == today
    assert run.plan() == stored
    assert run.problems == []


def test_what_a_run_that_was_killed_had_added_is_not_added_again(tmp_path):
    run, suite = begun(tmp_path)
    as_this_copy_expects(run, run.plan(), suite, "bb")
    run.write("environment.json", "{}")
    assert as_this_copy_expects(run, run.plan(), suite, "bb").replanned == run.plan().replanned
    assert run.problems == []


def test_the_copy_that_began_a_run_goes_on_without_a_word(tmp_path, capsys):
    run, suite = begun(tmp_path)
    planned = run.plan()
    assert as_this_copy_expects(run, planned, suite, "aa") == planned == run.plan()
    assert capsys.readouterr().err == ""


def test_a_plan_of_which_nothing_ran_is_another_copys_all_the_same(tmp_path, capsys):
    run, suite = begun(tmp_path, ran_by=None)
    assert calls(as_this_copy_expects(run, run.plan(), suite, "bb"))[0] != 13.0
    assert capsys.readouterr().err == ""


def test_records_of_before_copies_were_told_apart_are_of_another(tmp_path, capsys):
    run, suite = begun(tmp_path, ran_by="")
    run.write("environment.json", "{}")
    as_this_copy_expects(run, run.plan(), suite, "bb")
    assert "has results of a clusterbench of before sources were recorded, and goes on" in capsys.readouterr().err


def test_what_this_copy_refuses_keeps_what_was_expected(tmp_path, capsys, monkeypatch):
    def refused(*_: object) -> Plan:
        raise SuiteError("sharded.yaml:5: no such shape.\nhint: another")

    run, suite = begun(tmp_path)
    monkeypatch.setattr(copies, "make_plan", refused)
    assert calls(as_this_copy_expects(run, run.plan(), suite, "bb"))[0] == 13.0
    names = "train_step/1n2/dp2+zero3, train_step/1n2/dp2"
    assert (
        f"note: this clusterbench would not plan {names} any more, so what was expected stays: sharded.yaml:5: no such "
        "shape.\n"
    ) in capsys.readouterr().err


def test_another_copy_counts_again_what_a_step_sends_and_holds(tmp_path):
    planned = case("a", repeats=2)
    run = write_run(tmp_path / "run", [planned], [(outcome(planned, copy="aa"), observation(planned))])
    counted = {}
    for copy in ("aa", "bb"):
        conductor = Conductor(SimpleNamespace(), run, SimpleNamespace(), copy=copy)  # type: ignore[arg-type]
        counted[copy] = conductor._with_passes
        conductor._scratch.cleanup()
    assert counted == {"aa": {planned.hash}, "bb": set()}
    assert list(this_copy("aa")) == ["aa"]
