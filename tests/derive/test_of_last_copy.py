"""What becomes of a case whose repeats were run by two copies of the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.derive import read
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import History
from clusterbench.types import Case, Expected, Replanned
from tests.measured.steps import case_of, observed
from tests.report.synthetic import case, observation, outcome, plant, write_run


@pytest.fixture
def planted_benchmark() -> Iterator[None]:
    undo = plant()
    yield
    undo()


def seen(of: Case, bytes_sent: float, **more: Any) -> Any:
    figure = {"name": "traffic_bytes", "unit": "B", "value": bytes_sent, "detail": {"axis": "dp"}}
    return observation(of, figures=[figure], **more)


def run_of(folder: Path, planned: Case, *records: Any) -> RunFolder:
    """A run of which copy bb expects 200 B where the plan has 100, and a deviation of at most 2."""
    run = write_run(folder / "run", [planned], records)
    again = {"traffic_bytes[axis=dp]": Expected(200.0, "B", "by bb"), "off": Expected(2.0, "1", "at most; by bb")}
    run.plan_anew([Replanned("bb", planned.hash, again)])
    return run


@pytest.fixture
def sent() -> Case:
    expected = {"traffic_bytes[axis=dp]": Expected(100.0, "B", "by aa"), "off": Expected(1.0, "1", "at most; by aa")}
    return case("a", repeats=2, expected=expected)


def traffic(run: RunFolder) -> list[tuple[float | None, float | None]]:
    return [(row.value, row.expected) for row in read(run).rows if row.metric == "traffic_bytes"]


@pytest.mark.usefixtures("planted_benchmark")
def test_what_was_counted_stands_beside_what_its_own_copy_expects(tmp_path, sent):
    first = outcome(sent, copy="aa"), seen(sent, 100.0)
    second = outcome(sent, repeat=1, copy="bb"), seen(sent, 200.0, repeat=1)
    assert traffic(run_of(tmp_path / "1", sent, first)) == [(100.0, 100.0)]
    assert traffic(run_of(tmp_path / "2", sent, first, second)) == [(200.0, 200.0)]
    # a repeat that the first copy ran anew when it went on again
    last = outcome(sent, attempt=2, copy="aa"), seen(sent, 100.0, attempt=2)
    assert traffic(run_of(tmp_path / "3", sent, first, second, last)) == [(100.0, 100.0)]


@pytest.mark.usefixtures("planted_benchmark")
def test_times_are_those_of_all_repeats_and_the_plan_says_what_is_held(tmp_path, sent):
    second = outcome(sent, repeat=1, copy="bb"), seen(sent, 200.0, repeat=1)
    reading = read(run_of(tmp_path, sent, (outcome(sent, copy="aa"), seen(sent, 100.0)), second))
    (history,) = reading.histories
    assert len(history.times_s) == 40
    assert history.case == reading.plan.cases[0]
    assert history.case.hash == sent.hash


@pytest.mark.usefixtures("planted_benchmark")
@pytest.mark.parametrize(("copy", "status"), [("aa", "wrong"), ("bb", "ok")])
def test_evidence_is_held_against_the_limit_of_the_copy_that_proved_it(tmp_path, sent, copy, status):
    record = outcome(sent, copy=copy), seen(sent, 100.0, evidence=[{"off": 1.5}] * 4)
    (history,) = read(run_of(tmp_path, sent, record)).histories
    assert history.status == status


def test_cases_of_two_copies_are_not_held_against_each_other():
    """Other sources may draw other weights."""

    def history(layout: str, copy: str, loss: float) -> History:
        of = replace(case_of(layout), id=layout)
        record = replace(observed(of), evidence=[{"first_loss": loss}] * of.world_size)
        return History(of, (outcome(of, repeat=1, copy=copy),), (record,))

    one, two = history("tp1", "aa", 5.0), history("dp2", "bb", 6.0)
    assert [each.wrong for each in TrainStep.agreements([one, two]).values() if each.wrong] == []
    same = TrainStep.agreements([one, history("dp2", "aa", 6.0)])
    assert any(each.wrong for each in same.values())


@pytest.mark.usefixtures("planted_benchmark")
def test_what_another_copy_expects_is_read_as_strictly_as_a_case(tmp_path, sent):
    run = run_of(tmp_path, sent, (outcome(sent), seen(sent, 100.0)))
    with open(run.path / "plan.jsonl", "a", encoding="utf-8") as plan:
        nameless = {"step_time[axis]": {"value": 1.0, "unit": "s", "basis": ""}}
        plan.write(json.dumps({"kind": "expected", "copy": "cc", "hash": sent.hash, "expected": nameless}) + "\n")
        plan.write(json.dumps({"kind": "expected", "copy": "bb", "hash": sent.hash, "expected": {}}) + "\n")
    assert len(run.plan().replanned) == 1
    assert run.problems == [
        "plan.jsonl:4 was left out: 'expected' holds \"step_time[axis]\", which does not name a figure",
        "plan.jsonl:5 says again what an earlier line says, and was left out",
    ]
