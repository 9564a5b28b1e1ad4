"""Drifts and steps that are planted, steady times with noise, and series too short to tell."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from clusterbench.cases import Reading
from clusterbench.diagnoses.drift import MOST, Drift, _stretches
from tests.report.synthetic import case, observation, outcome, reading


def run_of(times_of: dict[str, list[float]]) -> Reading:
    """A run in which each case's repeats took so long, on four ranks."""
    cases = [case(name, repeats=len(times)) for name, times in times_of.items()]
    told = [
        (outcome(of, repeat=repeat), observation(of, [[time] * 5] * 4, repeat=repeat))
        for of, times in zip(cases, times_of.values(), strict=True)
        for repeat, time in enumerate(times)
    ]
    return reading(*told, cases=cases)


def noisy(times: list[float], seed: int, sd: float = 0.01) -> list[float]:
    chance = random.Random(seed)
    return [time * chance.lognormvariate(0, sd) for time in times]


def test_a_case_that_becomes_slower_little_by_little_is_named_and_steady_ones_are_not() -> None:
    warm = [1 + 0.01 * repeat for repeat in range(20)]
    run = run_of({"hot": noisy(warm, 1), **{f"cool{n}": noisy([1.0] * 20, n) for n in range(2, 8)}})
    (finding,) = Drift().findings(run)
    assert (finding.where, finding.severity) == ("planted/1n4/hot", "warning")
    assert finding.what.endswith("% slower more and more")
    assert 15 <= int(finding.what.split()[0]) <= 23


def test_a_step_says_since_when() -> None:
    run = run_of({"link": noisy([1.0] * 8 + [1.3] * 12, 3)})
    (finding,) = Drift().findings(run)
    assert finding.what == "30 % slower from repeat 9 of 20 on"
    assert finding.evidence.startswith("990.185 ms an iteration at the beginning of 20 repeats, 1.320 s at their end")


@pytest.mark.parametrize("replaced_at", [8, 14])
def test_a_host_that_replaced_another_is_no_step(replaced_at: int) -> None:
    """It was '30 % slower from repeat 9 of 20 on', though each host kept its time."""
    of = case("link", repeats=20)
    told = []
    for repeat, time in enumerate(noisy([1.0] * replaced_at + [1.3] * (20 - replaced_at), 3)):
        hosts = ("n0",) if repeat < replaced_at else ("n1",)
        told.append((outcome(of, repeat=repeat), observation(of, [[time] * 5] * 4, repeat=repeat, hosts=hosts)))
    answer = Drift().answer(reading(*told, cases=[of]))
    assert answer.findings == ()
    slower = [(ended, replace(seen, hosts=("n1",))) for ended, seen in told[replaced_at - 6 :]]
    (finding,) = Drift().findings(reading(*told[: replaced_at - 6], *slower, cases=[of]))
    assert finding.what == f"30 % slower from repeat {replaced_at + 1} of 20 on"


def test_what_became_faster_is_a_note() -> None:
    answer = Drift().answer(run_of({"cold": noisy([1.4] * 5 + [1.0] * 10, 4)}))
    assert [finding.severity for finding in answer.findings] == ["note"]
    assert answer.state == "healthy"


@pytest.mark.parametrize(
    "noise",
    [lambda chance: chance.lognormvariate(0, 0.05), lambda chance: 1 + 0.02 * chance.paretovariate(1.5)],
    ids=["5 %", "heavy tails"],
)
def test_steady_runs_are_called_drifting_in_few_of_a_hundred(noise: Callable[[random.Random], float]) -> None:
    found = 0
    for seed in range(100):
        chance = random.Random(seed)
        run = run_of({f"c{n}": [noise(chance) for _ in range(12)] for n in range(10)})
        found += bool(Drift().findings(run))
    assert found <= 10  # 5 are allowed; of 100 draws with 5 % more than 10 come in 1 of 100


def test_a_single_slow_repeat_is_no_drift() -> None:
    times = noisy([1.0] * 30, 5)
    times[29] = times[12] = 4.0
    answer = Drift().answer(run_of({"a": times}))
    assert answer.healthy == ("1 case of 30 repeats or more kept their time within 5 %",)


def test_only_of_a_run_that_was_to_last_it_is_said_that_repeats_are_too_few() -> None:
    few = run_of({"a": [1.0, 1.2, 1.4, 1.6, 1.8]})
    assert Drift().answer(few).state == "nothing to judge"
    answer = Drift().answer(replace(few, plan=replace(few.plan, for_s=7200.0)))
    assert [part.sentence for part in answer.not_judged] == [
        "drift of 1 case (too few repeats to tell it from noise; it takes 10 repeats or more)"
    ]
    assert Drift().answer(run_of({"a": [1.0, 1.2]})).state == "nothing to judge"


@pytest.mark.parametrize("rounds", [1, 4])
def test_fewer_than_five_rounds_of_a_run_that_was_to_last_are_not_judged(rounds: int) -> None:
    few = run_of({"a": [1.0] * rounds, "b": [2.0] * rounds})
    assert Drift().answer(few).state == "nothing to judge"
    answer = Drift().answer(replace(few, plan=replace(few.plan, for_s=7200.0)))
    assert [part.sentence for part in answer.not_judged] == [
        "drift of 2 cases (too few repeats to tell it from noise; it takes 10 repeats or more)"
    ]


def test_noise_that_hides_a_change_is_not_judged_and_says_which_change() -> None:
    """Second halves 10 % slower, and noise in which no test can show it."""
    run = run_of({f"c{n}": noisy([0.03] * 16 + [0.03 * 1.1] * 16, 40 + n, sd=0.25) for n in range(4)})
    answer = Drift().answer(run)
    assert (answer.state, answer.findings, answer.healthy) == ("not judged", (), ())
    assert [part.sentence for part in answer.not_judged] == [
        "drift of 4 cases (with this noise a change of up to 120 % might not have shown; it takes a quieter machine)"
    ]


def test_quiet_cases_are_healthy_beside_noisy_ones_and_beside_a_finding() -> None:
    quiet, noisier = noisy([1.0] * 24, 1, sd=0.005), noisy([1.0] * 24, 2, sd=0.03)
    answer = Drift().answer(run_of({"quiet": quiet, "noisier": noisier, "hot": noisy([1.0] * 12 + [1.3] * 12, 3)}))
    assert [finding.where for finding in answer.findings] == ["planted/1n4/hot"]
    (sentence,) = answer.healthy
    assert sentence.startswith("1 case of 24 repeats or more kept their time within 5 %; of 1 other a change of up to ")
    assert answer.not_judged == ()


@pytest.mark.parametrize("sd", [0.01, 0.02, 0.05, 0.25])
def test_a_case_that_became_more_than_5_percent_slower_is_hardly_ever_called_steady(sd: float) -> None:
    """A step of 6 % in the middle, or a drift to 6 %: found or not judged, at any noise."""
    step, drift = [1.0] * 12 + [1.06] * 12, [1 + 0.06 * repeat / 23 for repeat in range(24)]
    steady = sum(
        bool(Drift().answer(run_of({"a": noisy(plan, n, sd)})).healthy) for n in range(100) for plan in (step, drift)
    )
    assert steady <= 10  # of 200


def test_little_noise_is_judged() -> None:
    runs = [run_of({f"c{n}": noisy([1.0] * 24, 10 * seed + n, sd=0.01) for n in range(10)}) for seed in range(20)]
    assert sum(Drift().answer(run).state == "healthy" for run in runs) >= 18


def test_many_repeats_are_taken_together_and_the_step_has_the_number_of_its_repeat() -> None:
    times = noisy([1.0] * 500 + [1.2] * 500, 6)
    assert len(_stretches(times)) == MOST
    (finding,) = Drift().findings(run_of({"long": times}))
    assert finding.what == "20 % slower from repeat 501 of 1000 on"
