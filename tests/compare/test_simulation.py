"""A short share of ``python -m tests.simulate_compare``, and that it judges as the command does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clusterbench.compare import compare_runs
from clusterbench.compare.repeats import Repeats, compare_run
from tests.report.synthetic import case, observation, outcome, plant, write_run
from tests.simulate_compare import (
    LAWS,
    LEAST_FOUND,
    MOST_AA,
    MOST_EXCLUDED,
    Law,
    Setting,
    Tally,
    logarithms,
    main,
    settings,
    tally,
)

PAIRS = 200


def some(kind: str, **fields: object) -> list[Setting]:
    """Settings of up to ten cases, as the whole is a matter of minutes."""
    return [
        setting
        for setting in settings()
        if setting.kind == kind
        and setting.cases <= 10
        and setting.iterations <= 10
        and all(getattr(setting, name) == value for name, value in fields.items())
    ]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_same_program_is_seldom_worse(law: Law) -> None:
    tallies = [tally(setting, PAIRS) for setting in some("aa", law=law) if setting.repeats in (1, 4, 10)]
    assert len(tallies) >= 6
    assert sum(each.count for each in tallies) <= MOST_AA * PAIRS * len(tallies)


@pytest.mark.parametrize("setting", some("found"), ids=lambda setting: f"{setting.law.name}, {setting.planted}")
def test_twice_the_margin_is_found(setting: Setting) -> None:
    assert tally(setting, PAIRS).share >= LEAST_FOUND


def test_a_fifth_longer_is_never_passed() -> None:
    tallies = [tally(setting, PAIRS) for setting in some("excluded", cases=1)]
    assert sum(each.count for each in tallies) <= MOST_EXCLUDED * PAIRS * len(tallies)


def test_runs_on_disk_are_judged_as_simulated_ones(tmp_path: Path) -> None:
    setting = Setting("aa", LAWS[3], cases=3, repeats=4)
    drawn = logarithms(setting, 1, np.random.default_rng(5))
    cases = [case(label, repeats=4) for label in "abc"]
    undo = plant()
    try:
        for name, run in zip(("base", "new"), drawn, strict=True):
            records = [
                (
                    outcome(planned, repeat=repeat),
                    observation(planned, [np.exp(run[0, number, repeat]).tolist()] * 4, repeat=repeat),
                )
                for number, planned in enumerate(cases)
                for repeat in range(4)
            ]
            write_run(tmp_path / name, cases, records)
        comparing = compare_runs(tmp_path / "base", tmp_path / "new")
    finally:
        undo()
    changes, whole = compare_run(*([Repeats.of_iterations(run[0, number]) for number in range(3)] for run in drawn))
    assert whole is not None
    assert comparing.whole is not None
    assert [float(found.change.half_width) for found in comparing.differences if found.change] == pytest.approx(
        [float(change.half_width) for change in changes], rel=1e-6
    )
    assert float(comparing.whole.log) == pytest.approx(float(whole.log), rel=1e-6)


def test_a_setting_that_misses_is_said_to(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    missed = Tally(settings()[0], 100, 6)
    assert not missed.is_met
    monkeypatch.setattr("tests.simulate_compare.settings", lambda: [missed.setting])
    monkeypatch.setattr("tests.simulate_compare.tally", lambda setting: missed)
    assert main([]) == 1
    assert "# 1 of 1 settings missed" in capsys.readouterr().out
