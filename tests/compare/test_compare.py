"""Runs on disk with planted differences, held against each other."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result

from clusterbench.cli import main
from clusterbench.cluster import Cluster
from clusterbench.compare import Comparing, compare_runs
from clusterbench.compare.against_baseline import compare_with_baseline
from clusterbench.compare.text import as_markdown, as_text, summary
from clusterbench.derive.baseline import write_baseline
from clusterbench.errors import SuiteError
from clusterbench.types import SAMPLES, Case, Expected, HostCounters, Metric, MetricKind, Observation, Place, Timing
from tests.report.synthetic import ENVIRONMENT, Planted, case, observation, outcome, write_run

ROOT = Path(__file__).parents[2]

EXAMPLES = sorted((Path(__file__).parents[2] / "reports" / "examples").iterdir())


@dataclass(frozen=True, kw_only=True)
class Declared(Planted):
    """Times and rates of the same samples, and whatever a test put into the pass ``figures``."""

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("step_time", "s", "lower", "time of an iteration"),
        MetricKind("tokens_per_s", "tokens/s", "higher", "rate of the same samples"),
        MetricKind("mfu", "fraction", "higher", "the same over the peak of the card"),
        MetricKind("bandwidth", "B/s", "higher", "a program's own"),
        MetricKind("exposed", "s", "lower", "timed in one pass"),
        MetricKind("peak_memory", "B", "lower", "counted", exact=True),
        MetricKind("errors", "1", "lower", "counted", exact=True),
        MetricKind("parity_loss", "1", "lower", "a deviation"),
        MetricKind("loss", "1", "neither", "of no better side"),
    )

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        for metric in super().derive(case, observation, place):
            yield metric
            if metric.name == "step_time" and metric.value:
                yield Metric("tokens_per_s", "tokens/s", 4096 / metric.value, iterations=metric.iterations)
                if peak := place.cluster.peak_flops_per_s("bfloat16"):
                    yield Metric("mfu", "fraction", 1e12 / metric.value / peak[0], iterations=metric.iterations)
        for key, values in (observation.passes.get(SAMPLES) or [{}])[0].items():
            yield Metric(key, "B/s", values[0])


@pytest.fixture(autouse=True)
def _planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "example" not in request.fixturenames:  # examples are of real benchmarks
        for module in ("derive", "derive.figures", "derive.rows_of_cases", "compare.figures"):
            monkeypatch.setattr(f"clusterbench.{module}.benchmarks", lambda: {"planted": Declared})


def run_of(
    path: Path,
    times_s: Mapping[str, float],
    *,
    repeats: int = 10,
    iterations: int = 20,
    cv: float = 0.005,
    figures: Mapping[str, list[dict[str, Any]]] | None = None,
    expected: Mapping[str, Expected] | None = None,
    **changes: Any,
) -> Path:
    """A run whose cases took so long, up to noise from repeat to repeat; ``figures`` are of the first repeat's pass."""
    draw = random.Random(path.name)
    cases = [case(label, repeats=repeats, iterations=iterations, expected=expected or {}) for label in times_s]
    records = []
    for planned, time_s in zip(cases, times_s.values(), strict=True):
        for repeat in range(repeats):
            seconds = [[time_s * (1 + draw.gauss(0, cv))] * iterations] * planned.world_size
            taken = (figures or {}).get(planned.id.rpartition("/")[2], []) if repeat == 0 else []
            records.append((outcome(planned, repeat=repeat), observation(planned, seconds, taken, repeat=repeat)))
    return write_run(path, cases, records, **{"environment": ENVIRONMENT, **changes}).path


def verdicts(comparing: Comparing) -> dict[str, str]:
    return {
        difference.case.rpartition("/")[2]: difference.verdict(comparing.margin)
        for difference in comparing.differences
        if difference.quantity == "step_time"
    }


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)], catch_exceptions=False)


def figure(name: str, unit: str, value: float) -> dict[str, Any]:
    return {"name": name, "unit": unit, "value": value}


# Verdicts and exit codes.


def test_a_planted_slowdown_is_worse_and_the_rest_is_the_same(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010, "b": 0.020, "c": 0.030})
    new = run_of(tmp_path / "new", {"a": 0.010, "b": 0.023, "c": 0.026})
    comparing = compare_runs(base, new)
    assert verdicts(comparing) == {"a": "same", "b": "worse", "c": "better"}
    assert verdicts(compare_runs(base, new, margin=0.5)) == {"a": "same", "b": "same", "c": "same"}
    assert (comparing.exit_code, compare_runs(base, new, margin=0.5).exit_code) == (1, 0)
    assert summary(comparing)[-2].startswith("Base is one run, which does not show how far runs differ by themselves")
    assert not any("Base is one run" in sentence for sentence in summary(compare_runs(base, new, margin=0.5)))
    assert comparing.cautions == ()
    assert comparing.environment == ()


def on_gpus(name: str) -> dict[str, Any]:
    return {"cluster": Cluster(1, 4, "cuda", name, hosts=("laptop",))}


def test_shares_of_another_peak_are_not_compared(tmp_path: Path) -> None:
    """Of twice the speed and three times the peak two thirds of the share are left, and nothing is slower."""
    base = run_of(tmp_path / "base", {"a": 0.010, "b": 0.020}, **on_gpus("NVIDIA A100-SXM4-80GB"))
    new = run_of(tmp_path / "new", {"a": 0.005, "b": 0.010}, **on_gpus("NVIDIA H200"))
    comparing = compare_runs(base, new)
    assert comparing.exit_code == 0
    assert {difference.quantity for difference in comparing.judged} == {"step_time", "tokens_per_s"}
    assert comparing.whole is not None
    assert math.exp(float(comparing.whole.log)) == pytest.approx(0.5, rel=0.02)
    assert "not compared, as they are shares of another peak in each run: mfu" in comparing.cautions


def test_shares_of_one_peak_change_as_the_time_does(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010, "b": 0.020}, **on_gpus("NVIDIA H100 80GB HBM3"))
    new = run_of(tmp_path / "new", {"a": 0.010, "b": 0.020}, **on_gpus("NVIDIA H200"))
    comparing = compare_runs(base, new)
    assert {difference.quantity for difference in comparing.judged} == {"step_time", "tokens_per_s", "mfu"}
    assert len({difference.samples for difference in comparing.judged}) == 2


def bounded(path: Path, time_s: float) -> Path:
    """Case b may have the rate of 0.017 s at most, and a tenth more."""
    return run_of(
        path, {"a": 0.030, "b": time_s}, expected={"tokens_per_s": Expected(4096 / 0.017, "tokens/s", "", True)}
    )


def test_a_case_with_figures_that_cannot_be_is_wrong_however_fast_it_is(tmp_path: Path) -> None:
    right, wrong = bounded(tmp_path / "right", 0.020), bounded(tmp_path / "wrong", 0.014)
    comparing = compare_runs(right, wrong)
    assert (comparing.exit_code, comparing.broken) == (1, ("planted/1n4/b",))
    assert verdicts(comparing) == {"a": "same"}
    (said,) = comparing.ended_otherwise
    assert said.startswith("planted/1n4/b: ok, then wrong (beyond bound: tokens per s 29")
    # What is slower than a wrong result is no regression, and what is wrong in both is said.
    back = compare_runs(wrong, right)
    assert (back.exit_code, verdicts(back)) == (0, {"a": "same"})
    assert back.ended_otherwise[0].startswith("planted/1n4/b: wrong, then ok")
    again = compare_runs(wrong, bounded(tmp_path / "again", 0.014))
    assert "failed or wrong in both runs, so not compared: planted/1n4/b (wrong)" in again.cautions


def test_cases_of_one_name_that_are_not_the_same_are_said(tmp_path: Path) -> None:
    """Among others that are compared: 'only in base' and 'only in new' name the same case and do not say why."""
    cases = [case("a", repeats=3), case("b", repeats=3)]
    for name, other in (("base", 20), ("new", 40)):
        planned = [cases[0], replace(cases[1], iterations=other)]
        records = [(outcome(each, repeat=n), observation(each, repeat=n)) for each in planned for n in range(3)]
        write_run(tmp_path / name, planned, records, environment=ENVIRONMENT)
    comparing = compare_runs(tmp_path / "base", tmp_path / "new")
    assert comparing.only_base == comparing.only_new == comparing.gone == ("planted/1n4/b",)
    assert comparing.exit_code == 3
    assert comparing.cautions == ("both have 'planted/1n4/b', but iterations is 20 and 40; it is not compared",)


def test_noise_that_could_hide_a_slowdown_is_undecided_and_says_how_many_repeats_would_decide(tmp_path: Path) -> None:
    ended = command(*(run_of(tmp_path / name, {"a": 0.010}, cv=0.05) for name in ("base", "new")))
    assert ended.exit_code == 3
    lines = ended.output.splitlines()
    assert lines[0] == "# UNDECIDED whether there is a regression beyond 5.0%: 1 undecided."
    assert lines[1].startswith("# Undecided: 1 figure. ")
    assert "repeats of each run would decide all, if noise stays" in lines[1]


def test_a_regression_that_is_excluded_ends_with_0(tmp_path: Path) -> None:
    ended = command(*(run_of(tmp_path / name, {"a": 0.010, "b": 0.020}) for name in ("base", "new")))
    assert ended.exit_code == 0
    assert ended.output.splitlines()[0] == "# NO REGRESSION beyond 5.0%: 2 same."


def test_a_regression_that_is_shown_ends_with_1_and_is_sorted_by_change(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010, "b": 0.020, "c": 0.030})
    new = run_of(tmp_path / "new", {"a": 0.010, "b": 0.030, "c": 0.020})
    ended = command(base, new)
    lines = ended.output.splitlines()
    assert ended.exit_code == 1
    assert lines[0].startswith(
        "# REGRESSION (margin 5.0%): 1 worse, 1 better, 1 same; worst: step_time of planted/1n4/b, +"
    )
    (head,) = [index for index, line in enumerate(lines) if line.startswith("# case")]
    assert " ".join(lines[head].split()) == (
        "# case figure base new change interval of the change smallest change this would have shown repeats verdict"
    )
    rows = [line.split() for line in lines[head + 1 :] if line.startswith("  ")]
    cells = [(row[0].rpartition("/")[2], row[1], row[-1]) for row in rows]
    assert cells[:3] == [("b", "step_time", "worse"), ("b", "tokens_per_s", "worse"), ("a", "step_time", "same")]
    assert sorted(cells[3:]) == [("c", "step_time", "better"), ("c", "tokens_per_s", "better")]


def test_the_threshold_is_the_margin(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010})
    new = run_of(tmp_path / "new", {"a": 0.0115})
    assert [command(base, new, "--threshold", margin).exit_code for margin in (0.05, 0.5)] == [1, 0]


def test_a_sure_slowdown_within_half_the_margin_is_the_same(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010}, cv=0.001)
    new = run_of(tmp_path / "new", {"a": 0.0102}, cv=0.001)
    comparing = compare_runs(base, new)
    (difference,) = [found for found in comparing.differences if found.quantity == "step_time"]
    assert difference.interval is not None
    assert difference.interval[0] > 1
    assert (verdicts(comparing), comparing.exit_code) == ({"a": "same"}, 0)


def test_what_is_slower_everywhere_is_worse_even_with_four_repeats(tmp_path: Path) -> None:
    labels = [f"c{number}" for number in range(20)]
    base = run_of(tmp_path / "base", dict.fromkeys(labels, 0.010), repeats=4, cv=0.03)
    new = run_of(tmp_path / "new", dict.fromkeys(labels, 0.011), repeats=4, cv=0.03)
    comparing = compare_runs(base, new)
    assert list(verdicts(comparing).values()).count("worse") <= 1
    assert (comparing.whole_verdict, comparing.exit_code) == ("worse", 1)
    assert summary(comparing)[0].startswith("REGRESSION (margin 5.0%): the run as a whole is worse; ")


# Runs that f044351 called no regression, or a regression of nothing.


def jittered(example: Path, to: Path, factor: float, seed: int) -> Path:
    """A copy that takes ``factor`` times as long, up to 1 % from repeat to repeat and from iteration to iteration."""
    draw = random.Random(seed)
    shutil.copytree(example, to)
    lines = []
    for line in (to / "observations.jsonl").read_text().splitlines():
        record = json.loads(line)
        of_repeat = factor * math.exp(draw.gauss(0, 0.01))
        jitter = [of_repeat * math.exp(draw.gauss(0, 0.01)) for _ in record["seconds"][0]]
        record["seconds"] = [[s * by for s, by in zip(rank, jitter, strict=True)] for rank in record["seconds"]]
        for rank in record.get("passes", {}).get(SAMPLES, []):
            for key, values in rank.items():
                by = 1 / of_repeat if "bandwidth" in key or "rate" in key else of_repeat
                rank[key] = [value * by for value in values]
        lines.append(json.dumps(record))
    (to / "observations.jsonl").write_text("\n".join(lines) + "\n")
    return to


@pytest.fixture(params=EXAMPLES, ids=lambda path: path.name)
def example(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_a_run_three_times_slower_is_a_regression(tmp_path: Path, example: Path) -> None:
    """With two iterations and one repeat there was no interval, so all was unsure, and unsure was NO REGRESSION."""
    ended = command(example, jittered(example, tmp_path / "slow", 3.0, seed=1))
    assert ended.exit_code == 1
    assert ended.output.startswith("# REGRESSION (margin 5.0%)")


def test_the_same_run_with_jitter_is_no_regression_and_of_one_repeat_nothing_is_excluded(
    tmp_path: Path, example: Path
) -> None:
    base, new = (jittered(example, tmp_path / str(seed), 1.0, seed) for seed in (2, 3))
    comparing = compare_runs(base, new)
    assert comparing.exit_code == 3
    assert {difference.verdict(0.05) for difference in comparing.judged} <= {"same", "undecided"}
    assert comparing.environment == ()


def test_rates_of_a_training_step_are_compared_beside_its_time(tmp_path: Path, example: Path) -> None:
    if example.name != "layouts_5d-cpu":
        return
    comparing = compare_runs(example, jittered(example, tmp_path / "slow", 3.0, seed=1))
    of_case = {found.quantity: found for found in comparing.differences if found.case == "train_step/1n8/dp8"}
    memory = "peak_memory[category=total]"
    assert {"step_time", "tokens_per_s", memory, "parity_loss", "traffic_bytes[axis=dp]"} <= of_case.keys()
    assert of_case["tokens_per_s"].samples == of_case["step_time"].samples
    assert of_case["tokens_per_s"].ratio == pytest.approx(1 / 3, rel=0.05)
    assert of_case[memory].verdict(0.05) == "same"
    assert sum(found.figure.how == "repeats" and found.quantity == "step_time" for found in comparing.differences) == 32


# Few repeats, few iterations, figures of all kinds.


def test_a_single_repeat_decides_nothing(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010}, repeats=1)
    ended = command(base, run_of(tmp_path / "new", {"a": 0.010}, repeats=1))
    assert ended.exit_code == 3
    assert (
        "# Undecided: 1 figure with one repeat in each run, which does not show how far another would differ."
        in ended.output
    )
    assert "too few repeats" in ended.output
    assert command(base, run_of(tmp_path / "slow", {"a": 0.030}, repeats=1)).exit_code == 3


def test_of_imports_it_is_a_suite_that_has_repeats(tmp_path: Path) -> None:
    """'Add repeats to the suite' was said of figures that another program had printed."""
    planned = case("a", id="imported/1n4/a")
    runs = []
    for name, time_s in (("base", 0.010), ("new", 0.011)):
        seen = outcome(planned), observation(planned, [[time_s] * 20] * planned.world_size)
        runs.append(write_run(tmp_path / name, [planned], [seen], environment=ENVIRONMENT).path)
    (undecided,) = [said for said in summary(compare_runs(*runs)) if said.startswith("Undecided")]
    assert "Run a suite here with 'repeats: 10': it tells twice the margin" in undecided


def test_single_repeats_of_several_cases_show_three_times_as_slow(tmp_path: Path) -> None:
    labels = [f"c{number}" for number in range(8)]
    base = run_of(tmp_path / "base", dict.fromkeys(labels, 0.010), repeats=1, iterations=2)
    slow = run_of(tmp_path / "slow", dict.fromkeys(labels, 0.030), repeats=1, iterations=2)
    assert set(verdicts(compare_runs(base, slow)).values()) == {"worse"}
    assert compare_runs(slow, base).exit_code == 3


def test_two_iterations_of_many_repeats_decide(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / name, {"a": 0.010}, iterations=2) for name in ("base", "new")]
    assert compare_runs(*runs).exit_code == 0


def test_metrics_of_the_same_samples_count_once(tmp_path: Path) -> None:
    base, new = (run_of(tmp_path / name, {"a": 0.010}) for name in ("base", "new"))
    comparing = compare_runs(base, new)
    assert [(found.quantity, found.samples) for found in comparing.differences] == [
        ("step_time", 0),
        ("tokens_per_s", 0),
    ]
    assert comparing.whole is None
    slower, faster = (found.interval for found in comparing.differences)
    assert slower is not None
    assert faster is not None
    assert faster == pytest.approx((1 / slower[1], 1 / slower[0]))
    assert "from the same samples as step_time, and changed as it: tokens_per_s" in as_text(comparing)


def with_memory(path: Path, size: float, **more: float) -> Path:
    taken = [figure("peak_memory", "B", size), *(figure(name, "1", value) for name, value in more.items())]
    expected = {"parity_loss": Expected(1e-5, "1", "at most; rounding")}
    return run_of(path, {"a": 0.010}, figures={"a": taken}, expected=expected)


@pytest.mark.parametrize(
    ("size", "verdict", "exit_code"), [(1.04e9, "same", 0), (1.06e9, "worse", 1), (0.9e9, "better", 0)]
)
def test_memory_is_compared_exactly_within_the_margin(
    tmp_path: Path, size: float, verdict: str, exit_code: int
) -> None:
    comparing = compare_runs(with_memory(tmp_path / "base", 1e9), with_memory(tmp_path / "new", size))
    (memory,) = [found for found in comparing.differences if found.quantity == "peak_memory"]
    assert (memory.verdict(0.05), comparing.exit_code) == (verdict, exit_code)


def test_a_deviation_below_its_limit_is_rounding_and_what_is_beyond_is_judged_as_a_share_of_it(tmp_path: Path) -> None:
    """Steps on unlike CPUs were 1e-7 and 1e-6 off one rank, of 1e-5 allowed: 'REGRESSION ... parity_loss, +395.0%'."""
    base = with_memory(tmp_path / "base", 1e9, parity_loss=2e-7)
    on_another_cpu = compare_runs(base, with_memory(tmp_path / "other", 1e9, parity_loss=9.9e-7))
    assert on_another_cpu.exit_code == 0
    assert "counted, and within its tolerance: parity_loss" in as_text(on_another_cpu)
    comparing = compare_runs(base, with_memory(tmp_path / "far", 1e9, parity_loss=2e-5))
    assert comparing.exit_code == 1
    assert summary(comparing)[0].endswith("of what is counted 1 worse; worst: parity_loss of planted/1n4/a, +9900.0%.")


@pytest.mark.parametrize(("size", "verdict", "exit_code"), [(65536, "same", 0), (0.7e6, "worse", 1)])
def test_buffers_of_collectives_are_judged_as_a_share_of_all_memory(
    tmp_path: Path, size: float, verdict: str, exit_code: int
) -> None:
    """A thread of Gloo lets go of a buffer when it comes to it: of 8 runs of one step on two CPU ranks 3 had two at
    once, 65,536 B of 10.8 MB in place of 32,768, and such a run was 'REGRESSION ... peak_memory, +100.0%'."""

    def run(name: str, size: float) -> Path:
        of = {"total": 10.8e6 + size, "communication": size}
        taken = [{**figure("peak_memory", "B", each), "detail": {"category": part}} for part, each in of.items()]
        return run_of(tmp_path / name, {"a": 0.010}, figures={"a": taken})

    comparing = compare_runs(run("base", 32768), run("new", size))
    buffers = next(each for each in comparing.differences if each.quantity == "peak_memory[category=communication]")
    assert (buffers.verdict(0.05), comparing.exit_code) == (verdict, exit_code)


def test_how_a_gpu_rounds_a_clipping_factor_is_no_regression(tmp_path: Path) -> None:
    """Two runs of one step on an H200 were off by 0.0011 and 0.0014, of 0.0059: rounding of two other norms."""
    base = ROOT / "reports" / "examples" / "one_gpu-h200"
    new = Path(shutil.copytree(base, tmp_path / "new"))
    seen = (new / "observations.jsonl").read_text()
    assert '"clipping":0.0010846' in seen
    off = seen.replace('"clipping":0.0010846', '"clipping":0.0013851')
    (new / "observations.jsonl").write_text(off.replace('"began_s":1', '"began_s":2'))  # of another moment
    comparing = compare_runs(base, new)
    assert comparing.exit_code != 1
    assert not [found for found in comparing.differences if found.verdict(0.05) == "worse"]


def test_errors_where_there_were_none_are_worse_and_none_twice_are_the_same(tmp_path: Path) -> None:
    none, some = (with_memory(tmp_path / name, 1e9, errors=count) for name, count in (("none", 0), ("some", 3)))
    ended = command(none, some)
    assert ended.exit_code == 1
    assert "from 0" in ended.output
    assert compare_runs(none, with_memory(tmp_path / "again", 1e9, errors=0)).exit_code == 0
    assert compare_runs(some, none).exit_code == 0


def counting(path: Path, *errors: float) -> Path:
    """A run whose repeats counted so many errors."""
    planned = case("a", repeats=len(errors))
    records = [
        (outcome(planned, repeat=repeat), observation(planned, None, [figure("errors", "1", count)], repeat=repeat))
        for repeat, count in enumerate(errors)
    ]
    return write_run(path, [planned], records, environment=ENVIRONMENT).path


@pytest.mark.parametrize(
    ("base", "new", "verdict"),
    [
        ((0, 1), (0, 1), "undecided"),  # was 'worse': of a case that counts one in some repeats no two runs were alike
        ((0, 0), (0, 1), "undecided"),
        ((0, 1), (1, 1), "undecided"),
        ((0, 0), (1, 1), "worse"),
        ((1, 1), (0, 0), "better"),
        ((0, 1), (0, 0), "same"),
    ],
)
def test_counts_of_nothing_and_of_something_are_held_against_each_other_as_others_are(
    tmp_path: Path, base: tuple[float, ...], new: tuple[float, ...], verdict: str
) -> None:
    comparing = compare_runs(counting(tmp_path / "base", *base), counting(tmp_path / "new", *new))
    (errors,) = [found for found in comparing.differences if found.quantity == "errors"]
    assert errors.verdict(0.05) == verdict
    assert as_text(comparing)
    assert comparing.is_regression == (verdict == "worse")
    undecided = [said for said in summary(comparing) if "repeats should all be alike and are not: errors" in said]
    assert len(undecided) == (verdict == "undecided")


def test_what_a_run_times_once_is_named_and_not_judged(tmp_path: Path) -> None:
    runs = [
        run_of(
            tmp_path / name, {"a": 0.010}, figures={"a": [figure("exposed", "s", value), figure("loss", "1", value)]}
        )
        for name, value in (("base", 0.001), ("new", 0.002))
    ]
    comparing = compare_runs(*runs)
    assert comparing.exit_code == 0
    assert "taken once a run, or 0, so not judged: exposed" in as_text(comparing)
    assert "loss" not in as_text(comparing)


def of_a_program(path: Path, rates: list[float]) -> Path:
    planned = case("a", repeats=len(rates))
    records = [
        (
            outcome(planned, repeat=repeat),
            replace(observation(planned, repeat=repeat), passes={SAMPLES: [{"bandwidth": [rate]}, {}, {}, {}]}),
        )
        for repeat, rate in enumerate(rates)
    ]
    return write_run(path, [planned], records, environment=ENVIRONMENT).path


@pytest.mark.parametrize(
    ("rates", "verdict", "exit_code"), [([0.0, 0.0], "worse", 1), ([0.0, 1e9], "undecided", 3), ([0.0], "worse", 1)]
)
def test_a_rate_that_falls_to_nothing_is_no_silence(
    tmp_path: Path, rates: list[float], verdict: str, exit_code: int
) -> None:
    """It has no ratio, was not judged, and a link that carried nothing any more ended with 'NO REGRESSION'."""
    base, new = of_a_program(tmp_path / "base", [1e9, 1e9]), of_a_program(tmp_path / "new", rates)
    comparing = compare_runs(base, new)
    (rate,) = [found for found in comparing.differences if found.quantity == "bandwidth"]
    assert (rate.verdict(0.05), comparing.exit_code) == (verdict, exit_code)
    assert as_text(comparing)
    file = tmp_path / "base.jsonl"
    write_baseline([base], file)
    assert compare_with_baseline(file, new).exit_code == exit_code
    assert compare_runs(new, base).exit_code != 1


@pytest.mark.parametrize("text", ["NaN", "1e999", "-0.5", "0.0"])
def test_a_record_that_is_not_finite_is_left_out_and_said(tmp_path: Path, text: str) -> None:
    base, new = (run_of(tmp_path / name, {"a": 0.010, "b": 0.020}) for name in ("base", "new"))
    records = (new / "observations.jsonl").read_text().splitlines()
    first = json.loads(records[0])["seconds"][0][0]
    (new / "observations.jsonl").write_text("\n".join([records[0].replace(repr(first), text, 1), *records[1:]]) + "\n")
    comparing = compare_runs(base, new)
    assert comparing.exit_code == 0
    (caution,) = comparing.cautions
    assert caution.startswith("records of new that cannot be read: ")
    assert {len(found.figure.new) for found in comparing.differences if found.case.endswith("a")} == {9}


def test_noise_beyond_all_numbers_is_still_a_line_of_the_table(tmp_path: Path) -> None:
    base, new = of_a_program(tmp_path / "base", [1e-9, 1e9]), of_a_program(tmp_path / "new", [1e9, 1e-9])
    comparing = compare_runs(base, new)
    assert comparing.exit_code == 3
    assert "anything" in as_text(comparing)


# Cases and machines that are not the same.


def test_a_case_that_ran_before_and_fails_now_is_a_regression(tmp_path: Path) -> None:
    planned = case("a")
    base = run_of(tmp_path / "base", {"a": 0.010}, repeats=1)
    new = write_run(tmp_path / "new", [planned], [(outcome(planned, "failed", reason="rank 3 was killed"), None)]).path
    comparing = compare_runs(base, new)
    assert comparing.exit_code == 1
    assert summary(comparing)[0] == (
        "REGRESSION (margin 5.0%): nothing was compared; 1 case ended badly that ran before: planted/1n4/a."
    )
    assert comparing.ended_otherwise == ("planted/1n4/a: ok, then failed (rank 3 was killed)",)
    assert compare_runs(new, base).broken == ()
    assert compare_runs(new, base).exit_code == 3


def test_a_case_that_is_not_measured_any_more_is_undecided(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010, "b": 0.010})
    cases = [case(label, repeats=10) for label in "ab"]
    kept = run_of(tmp_path / "kept", {"a": 0.010})
    new = write_run(tmp_path / "new", cases, [], environment=ENVIRONMENT).path
    for name in ("outcomes.jsonl", "observations.jsonl"):
        shutil.copy(kept / name, new / name)
    comparing = compare_runs(base, new)
    assert (comparing.exit_code, comparing.untold) == (3, ("planted/1n4/b",))
    assert summary(comparing)[0].endswith("1 same; 1 case not measured that ran before: planted/1n4/b.")


def test_a_case_of_which_base_lost_the_record_excludes_no_regression(tmp_path: Path) -> None:
    """It ended well there, is ten times slower now, and the others alone were 'NO REGRESSION', exit code 0."""
    base = run_of(tmp_path / "base", {"a": 0.010, "b": 0.010})
    kept = [line for line in (base / "observations.jsonl").read_text().splitlines() if "/b" not in line]
    (base / "observations.jsonl").write_text("\n".join(kept) + "\n")
    comparing = compare_runs(base, run_of(tmp_path / "new", {"a": 0.010, "b": 0.100}))
    assert (comparing.exit_code, comparing.void) == (3, ("planted/1n4/b",))
    assert summary(comparing)[0].endswith("1 case of which one run has no time that counts: planted/1n4/b.")


def with_faults(path: Path, status: str, num: int) -> Path:
    """A run of ten repeats of one case, of which the first ended so."""
    planned = case("a", repeats=10)
    records = [
        (outcome(planned, status, repeat=repeat), None)
        if repeat < num
        else (outcome(planned, repeat=repeat), observation(planned, repeat=repeat))
        for repeat in range(10)
    ]
    return write_run(path, [planned], records, environment=ENVIRONMENT).path


@pytest.mark.parametrize(("status", "num"), [("failed", 2), ("wrong", 1), ("timeout", 9)])
def test_repeats_that_failed_are_a_regression_and_the_others_compared(tmp_path: Path, status: str, num: int) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010})
    comparing = compare_runs(base, new := with_faults(tmp_path / "new", status, num))
    assert comparing.cautions == (f"repeats of new that failed and are left out: {num} of planted/1n4/a ({status})",)
    assert {len(found.figure.new) for found in comparing.differences} == {10 - num}
    assert (comparing.broken, comparing.exit_code) == (("planted/1n4/a",), 1)
    as_before = compare_runs(new, new)
    assert (as_before.broken, len(as_before.cautions)) == ((), 2)


DOWN = {"laptop": HostCounters(2.0, {"port": 1}, {"mlx5_0 port 1": {"link_downed": 1, "packets": 10**6}})}


def disturbed(path: Path, times_s: Mapping[str, float], repeats: Collection[int]) -> Path:
    """A run in which a link went down in these repeats of its ten, and each step took twice as long in them."""
    records = run_of(path, times_s) / "observations.jsonl"
    lines = []
    for line in map(json.loads, records.read_text().splitlines()):
        if line["repeat"] in repeats:
            line["counters"] = {host: vars(counters) for host, counters in DOWN.items()}
            line["seconds"] = [[2 * second for second in of_rank] for of_rank in line["seconds"]]
        lines.append(json.dumps(line) + "\n")
    records.write_text("".join(lines))
    return path


def test_times_of_disturbed_repeats_are_left_out_and_said(tmp_path: Path) -> None:
    few, none = disturbed(tmp_path / "few", {"a": 0.010}, (3,)), run_of(tmp_path / "none", {"a": 0.010})
    slower = disturbed(tmp_path / "slower", {"a": 0.014}, (3,))
    for base, new, name in ((none, few, "new"), (few, none, "base")):
        comparing = compare_runs(base, new)
        assert (verdicts(comparing), comparing.exit_code) == ({"a": "same"}, 0)
        assert comparing.cautions == (
            f"repeats of {name} that were disturbed, so that their times are left out: "
            "1 of planted/1n4/a (mlx5_0 port 1 on laptop: the link went down)",
        )
    assert verdicts(compare_runs(none, slower)) == {"a": "worse"}


@pytest.mark.parametrize("slower", [1.0, 1.4])
def test_a_run_that_was_disturbed_throughout_excludes_no_regression(tmp_path: Path, slower: float) -> None:
    base = disturbed(tmp_path / "base", {"a": 0.010}, range(10))
    new = run_of(tmp_path / "new", {"a": 0.010 * slower})
    for comparing in (compare_runs(base, new), compare_runs(new, base)):
        assert (comparing.exit_code, comparing.void) == (3, ("planted/1n4/a",))
        assert summary(comparing)[0].endswith("1 case of which one run has no time that counts: planted/1n4/a.")


def test_a_run_whose_ranks_shared_gpus_excludes_no_regression_of_one_in_which_they_did_not(tmp_path: Path) -> None:
    """Steps five times as long had no time that counts, and as much memory: 'NO REGRESSION', exit code 0."""
    memory = {"a": [figure("peak_memory", "B", 1e9)]}
    alone = Cluster(1, 4, "cuda", "NVIDIA H100 80GB HBM3", hosts=("laptop",))
    base = run_of(tmp_path / "base", {"a": 0.010}, figures=memory, cluster=alone)
    new = run_of(tmp_path / "new", {"a": 0.050}, figures=memory, cluster=replace(alone, ranks_per_gpu=2))
    for comparing in (compare_runs(base, new), compare_runs(new, base)):
        assert (comparing.exit_code, comparing.void) == (3, ("planted/1n4/a",))
    assert "2 ranks share each GPU in new, so that no time of it counts" in compare_runs(base, new).cautions
    again = run_of(tmp_path / "again", {"a": 0.060}, figures=memory, cluster=replace(alone, ranks_per_gpu=2))
    assert compare_runs(new, again).exit_code == 0  # neither has a time, and what they count is the same


def steady(example: Path, to: Path, factor: float, unproven: str = "") -> Path:
    """A copy with iterations of 10 ms, and of one case without what its check found."""
    lines = []
    for line in map(json.loads, (Path(shutil.copytree(example, to)) / "observations.jsonl").read_text().splitlines()):
        time_s = 0.010 * factor * (1 + line["repeat"] / 1000)
        line["seconds"] = [[time_s] * len(of_rank) for of_rank in line["seconds"]]
        if line["case"] == unproven:
            line["evidence"] = []
        lines.append(json.dumps(line) + "\n")
    (to / "observations.jsonl").write_text("".join(lines))
    return to


@pytest.mark.parametrize("example", [ROOT / "reports" / "examples" / "tp_scale-cpu"])
def test_a_case_that_was_proven_and_is_not_any_more_leaves_undecided(tmp_path: Path, example: Path) -> None:
    """The speed of what may be wrong excludes no regression; without its evidence a run as fast as before passed."""
    case_id = "train_step/1n4/tp4"
    base, new = steady(example, tmp_path / "base", 1.0), steady(example, tmp_path / "new", 1.001, unproven=case_id)
    file = tmp_path / "base.jsonl"
    write_baseline([base], file)
    for comparing in (compare_runs(base, new), compare_with_baseline(file, new)):
        assert comparing.unproven == (f"{case_id} (without a record of the check)",)
        assert comparing.exit_code == 3
        said = f"1 case not proven now: {case_id} (without a record of the check)."
        assert summary(comparing)[0].endswith(said)
    assert compare_runs(new, base).exit_code == 0


def test_what_only_one_run_has_is_listed(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.01, "b": 0.01})
    comparing = compare_runs(base, run_of(tmp_path / "new", {"a": 0.01, "c": 0.01}))
    assert (comparing.only_base, comparing.only_new) == (("planted/1n4/b",), ("planted/1n4/c",))


def test_a_case_that_is_gone_from_the_plan_leaves_undecided_unless_that_is_on_purpose(tmp_path: Path) -> None:
    base, new = run_of(tmp_path / "base", {"a": 0.01, "b": 0.01}), run_of(tmp_path / "new", {"a": 0.01})
    ended = command(base, new)
    assert ended.exit_code == 3
    assert ended.output.startswith(
        "# UNDECIDED whether there is a regression beyond 5.0%: 1 same; 1 case of base that new does not have: "
        "planted/1n4/b.\n"
    )
    assert "# Undecided: what new leaves out is not compared. Measure it again, or say --fewer-cases" in ended.output
    assert command(base, new, "--fewer-cases").exit_code == 0
    assert command(new, base).exit_code == 0  # what is new cannot have become worse


def test_a_case_that_was_never_measured_cannot_be_gone(tmp_path: Path) -> None:
    cases = [case("a", repeats=2), case("b", repeats=2)]
    records = [(outcome(cases[0], repeat=n), observation(cases[0], repeat=n)) for n in range(2)]
    base = write_run(tmp_path / "base", cases, [*records, (outcome(cases[1], "failed"), None)], environment=ENVIRONMENT)
    comparing = compare_runs(base.path, run_of(tmp_path / "new", {"a": 0.01}))
    assert (comparing.only_base, comparing.gone) == (("planted/1n4/b",), ())


def test_a_run_and_its_copy_are_refused(tmp_path: Path) -> None:
    """With nothing in it that was measured again every case was 'same', so that CI was green for ever."""
    planned = case("a", repeats=2)
    timing = [Timing(1e9 + rank, 1e9 + rank + 1) for rank in range(planned.world_size)]
    for name, seconds in (("base", 0.010), ("new", 0.011)):
        seen = observation(planned, [[seconds] * 20] * planned.world_size, timing=timing)
        write_run(tmp_path / name, [planned], [(outcome(planned), seen)], environment=ENVIRONMENT)
    base, new = tmp_path / "base", tmp_path / "new"
    assert command(base, new).exit_code == 3  # one repeat each
    shutil.copytree(base, tmp_path / "copy")
    for other in (base, tmp_path / "copy"):
        ended = command(base, other)
        assert ended.exit_code == 2
        assert ended.output == (
            f"error: {base} and {other} hold the same records of planted/1n4/a: one is the other or begins with its "
            "copy, and nothing would have changed.\nhint: name two runs, each of which measured these cases itself\n"
        )


def test_a_figure_that_one_run_lacks_is_named(tmp_path: Path) -> None:
    comparing = compare_runs(with_memory(tmp_path / "base", 1e9), run_of(tmp_path / "new", {"a": 0.010}))
    assert comparing.cautions == ("figures that one run lacks: peak_memory of planted/1n4/a",)


def one_case(path: Path, planned: Case) -> Path:
    return write_run(path, [planned], [(outcome(planned), observation(planned))], environment=ENVIRONMENT).path


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"iterations": 40}, "Both have 'planted/1n4/a', but iterations is 20 and 40."),
        ({"point": {"label": "a", "dtype": "float32"}}, "Both have 'planted/1n4/a', but dtype is None and 'float32'."),
        ({"environment": {"NCCL_ALGO": "Ring"}}, "Both have 'planted/1n4/a', but its environment differs."),
        (
            {"id": "planted/1n4/z", "point": {"label": "z"}},
            "The first has planted/1n4/a, the second planted/1n4/z.",
        ),
    ],
)
def test_runs_without_a_common_case_are_refused_with_the_reason(tmp_path: Path, changes: Any, why: str) -> None:
    base, new = one_case(tmp_path / "base", case("a")), one_case(tmp_path / "new", replace(case("a"), **changes))
    with pytest.raises(SuiteError) as caught:
        compare_runs(base, new)
    assert str(caught.value) == f"{base} and {new} have no case in common, so there is nothing to compare. {why}"


def test_the_machines_of_all_hosts_are_compared(tmp_path: Path) -> None:
    laptop: dict[str, Any] = ENVIRONMENT["hosts"]["laptop"]  # type: ignore[index]
    two = {**ENVIRONMENT, "hosts": {"n1": laptop, "n2": laptop}}
    odd = {**ENVIRONMENT, "hosts": {"n1": laptop, "n2": {**laptop, "kernel": "6.9.1"}}}
    base, new = (
        run_of(tmp_path / name, {"a": 0.010}, environment=environment)
        for name, environment in (("base", two), ("new", odd))
    )
    comparing = compare_runs(base, new)
    assert comparing.environment == (
        "the kernel is 6.9.1 on n2 and 6.8.0-45-generic on n1 in new and 6.8.0-45-generic in base",
    )
    assert "# machine: the kernel is 6.9.1 on n2 and " in as_text(comparing)


# As text.


def test_comparing_loads_neither_torch_nor_a_plotting_library() -> None:
    names = ("torch", "matplotlib", "scipy")
    code = f"import sys, clusterbench.compare.text; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_markdown_is_a_table_and_its_cells_stay_cells(tmp_path: Path) -> None:
    base, new = (run_of(tmp_path / name, {"a|b": 0.010}) for name in ("base", "new"))
    text = as_markdown(compare_runs(base, new))
    assert text.splitlines()[0] == "**NO REGRESSION beyond 5.0%: 1 same.**"
    assert "| planted/1n4/a\\|b | step_time |" in text


def test_the_first_lines_say_what_is_undecided_and_what_would_decide_it(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010, "b": 0.020})
    new = run_of(tmp_path / "new", {"a": 0.010, "b": 0.020}, cv=0.05)
    verdict, whole, undecided, runs = summary(compare_runs(base, new))
    assert verdict == "UNDECIDED whether there is a regression beyond 5.0%: 2 undecided."
    assert whole.startswith("The run as a whole, its typical case: ")
    assert undecided.startswith("Undecided: 2 figures. ")
    assert runs == f"base: {base}; new: {new}"


def test_that_the_typical_case_is_the_same_does_not_stand_against_the_cases_that_are_worse(tmp_path: Path) -> None:
    """Of a run with 11 cases worse by 8 % it read 'The run as a whole, its typical case: +0.0%, same.'"""
    usual = dict.fromkeys("abcdefg", 0.01)
    base = run_of(tmp_path / "base", usual, repeats=10, cv=0.005)
    new = run_of(tmp_path / "new", {**usual, "a": 0.013, "b": 0.012}, repeats=10, cv=0.005)
    verdict, whole, *_ = summary(compare_runs(base, new))
    assert verdict.startswith("REGRESSION (margin 5.0%): 2 worse, ")
    assert whole.endswith(", same: that is the median of 7 changes, of which 2 are worse.")


def test_as_many_repeats_as_the_first_lines_ask_for_decide(tmp_path: Path) -> None:
    few = compare_runs(*(run_of(tmp_path / name, {"a": 0.010}, repeats=4, cv=0.02) for name in ("base", "new")))
    (difference,) = few.blocking
    needed = difference.needed(few.margin)
    assert needed is not None
    assert 4 < needed < 100
    more = [run_of(tmp_path / f"{name} of many", {"a": 0.010}, repeats=2 * needed, cv=0.02) for name in ("base", "new")]
    assert compare_runs(*more).exit_code == 0
