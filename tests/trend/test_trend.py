"""Series of runs on disk with planted changes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from click.testing import CliRunner, Result

from clusterbench.cases.series import Shift
from clusterbench.cli import main
from clusterbench.run_folder import RunFolder
from clusterbench.trend import Course, Series, Trend, _same
from clusterbench.trend.changed import NOTHING, changes
from clusterbench.types import MetricKind
from tests.report.synthetic import ENVIRONMENT, Planted, case, observation, outcome, write_run


@dataclass(frozen=True, kw_only=True)
class Declared(Planted):
    metrics: ClassVar[tuple[MetricKind, ...]] = (MetricKind("step_time", "s", "lower", "time of an iteration"),)


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        "clusterbench.derive",
        "clusterbench.derive.figures",
        "clusterbench.derive.rows_of_cases",
        "clusterbench.trend",
    ):
        monkeypatch.setattr(f"{module}.benchmarks", lambda: {"planted": Declared})


def environment(torch: str = "2.8.0") -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(ENVIRONMENT)
    made["hosts"]["laptop"]["packages"] = {"torch": torch}
    return made


def series(folder: Path, times_s: Sequence[float], *, step_at: int = 99, status: str = "ok") -> list[Path]:
    """A run a day; from run ``step_at`` on with another torch. The second run ends with ``status``."""
    made = []
    draw = random.Random(5)
    for day, time_s in enumerate(times_s):
        planned = case("a")
        seconds = [[time_s * draw.gauss(1, 0.002)] * 20] * planned.world_size
        how = status if day == 1 else "ok"
        ended = outcome(planned, how, started=f"2026-03-{day + 1:02}T14:10:00")
        records = [(ended, observation(planned, seconds) if how == "ok" else None)]
        torch = "2.9.0" if day >= step_at else "2.8.0"
        made.append(write_run(folder / f"day{day}", [planned], records, environment=environment(torch)).path)
    return made


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["trend", *map(str, arguments)], catch_exceptions=False)


def test_a_step_is_found_in_any_order_of_the_arguments_with_what_changed(tmp_path: Path) -> None:
    runs = series(tmp_path, [0.010] * 6 + [0.012] * 6, step_at=6)
    ended = command(*reversed(runs), "--json", tmp_path / "trend.json")
    assert ended.exit_code == 1
    assert ended.output.startswith("# WORSE by 2.0% or more in 12 runs")
    (figure,) = json.loads((tmp_path / "trend.json").read_text())["figures"]
    assert (figure["verdict"], figure["what"], figure["figure"]) == ("worse", "step", "step_time")
    assert figure["between"] == [str(runs[5]), str(runs[6])]
    assert figure["change"] == pytest.approx(0.2, abs=0.01)
    assert figure["changed"] == ["torch: 2.8.0 -> 2.9.0"]
    assert "torch: 2.8.0 -> 2.9.0" in " ".join(ended.output.replace("\n#", "").split())  # wherever a line ends


def test_a_step_without_a_cause_on_record_says_so(tmp_path: Path) -> None:
    ended = command(*series(tmp_path, [0.012] * 6 + [0.010] * 6))
    assert ended.exit_code == 0
    assert "1 better" in ended.output
    assert NOTHING in " ".join(ended.output.replace("#", " ").split())


def test_a_drift_is_found(tmp_path: Path) -> None:
    ended = command(*series(tmp_path, [0.010 * 1.02**day for day in range(12)]))
    assert ended.exit_code == 1
    assert "drift" in ended.output


def test_steady_runs_are_silent(tmp_path: Path) -> None:
    ended = command(*series(tmp_path, [0.010] * 12))
    assert ended.exit_code == 0
    assert ended.output.endswith("figure: 1 steady.\n")


def test_a_last_run_that_is_far_worse_than_all_before_is_no_step_and_is_said(tmp_path: Path) -> None:
    """A step that took twice as long in the last of twelve runs was '1 steady', and nothing more."""
    runs = series(tmp_path, [0.010] * 11 + [0.020])
    ended = command(*runs)
    assert ended.exit_code == 0
    said = " ".join(ended.output.replace("\n#", "").split())
    assert "the last run alone is worse than all before it, which is no step yet: step_time of planted/1n4/a (+" in said
    assert f"Hold it against an earlier one: clusterbench compare {runs[-2]} {runs[-1]}" in said
    assert "alone" not in command(*series(tmp_path / "steady", [0.010] * 12)).output
    assert "alone" not in command(*series(tmp_path / "better", [0.010] * 11 + [0.005])).output


def test_of_five_runs_the_last_is_seldom_far_worse_by_chance_and_half_slower_is_said() -> None:
    """Of 30 figures one was in 60 of 100 series: four others span little by luck."""

    def is_said(seed: int, slower: float = 1.0) -> bool:
        draw = random.Random(seed)
        values = [tuple(draw.lognormvariate(0, 0.02) for _ in range(4)) for _ in range(30)]
        last = [draw.lognormvariate(0, 0.02) * (slower if figure == 0 else 1.0) for figure in range(30)]
        kind = MetricKind("step_time", "s", "lower", "")
        of_runs = [
            Series("a", "step_time", kind, tuple(range(5)), (*before, now))
            for before, now in zip(values, last, strict=True)
        ]
        courses = [Course(each, Shift("step", 2, 0.0, 1.0), 1.0, can_show=False) for each in of_runs]
        trend = Trend(tuple("12345"), tuple("12345"), 0.02, tuple(courses), (), ())
        return courses[0] in trend.worse_at_last if slower > 1 else bool(trend.worse_at_last)

    assert sum(map(is_said, range(100))) <= 10
    assert sum(is_said(seed, 1.5) for seed in range(100)) >= 95


def test_too_few_runs_to_show_anything_are_nothing_judged(tmp_path: Path) -> None:
    """It was 'NOTHING SHOWN TO BE WORSE', with exit code 0, though twice as long would have been that, too."""
    ended = command(*series(tmp_path, [0.0105, 0.010, 0.0102, 0.021, 0.020]))
    assert ended.exit_code == 3
    assert ended.output.startswith("# NOTHING JUDGED in 5 runs, ")
    assert "by 2.0%" not in ended.output


def test_a_case_that_ends_badly_in_the_last_run_is_worse(tmp_path: Path) -> None:
    """Four runs out of memory behind four good ones were 'NOTHING SHOWN TO BE WORSE', with exit code 0."""
    runs = series(tmp_path, [0.010] * 12)
    last = RunFolder.open(runs[-1])
    (planned,) = last.plan().cases
    ended_badly = outcome(planned, "out_of_memory", started="2026-03-13T14:10:00")
    write_run(tmp_path / "day12", [planned], [(ended_badly, None)], environment=environment())
    ended = command(*runs, tmp_path / "day12", "--json", tmp_path / "trend.json")
    assert ended.exit_code == 1
    said = " ".join(ended.output.replace("\n#", "").split())
    assert said.startswith(
        "# WORSE: 1 case ended badly in the last run that ran before: planted/1n4/a (out of memory); nothing shown to "
        "be worse by 2.0% or more in 13 runs"
    )
    assert json.loads((tmp_path / "trend.json").read_text())["broken"] == ["planted/1n4/a (out of memory)"]


def test_a_change_below_the_threshold_is_steady(tmp_path: Path) -> None:
    runs = series(tmp_path, [0.010] * 6 + [0.012] * 6)
    assert command(*runs, "--threshold", "0.5").exit_code == 0


def test_a_failed_case_does_not_enter_and_is_named(tmp_path: Path) -> None:
    runs = series(tmp_path, [0.010] * 12, status="failed")
    ended = command(*runs, "--json", tmp_path / "trend.json")
    found = json.loads((tmp_path / "trend.json").read_text())
    assert len(found["figures"][0]["values"]) == 11
    assert found["left_out"] == [f"planted/1n4/a of {runs[1]} (failed)"]
    assert "left out" in ended.output


def test_a_case_that_was_disturbed_does_not_enter_and_is_named(tmp_path: Path) -> None:
    runs = series(tmp_path, [0.010] * 12)
    records = runs[1] / "observations.jsonl"
    grown = {"mlx5_0 port 1": {"link_downed": 1, "packets": 10**6}}
    (line,) = map(json.loads, records.read_text().splitlines())
    line["counters"] = {"laptop": {"over_s": 2.0, "read": {"port": 1}, "grown": grown}}
    records.write_text(json.dumps(line) + "\n")
    command(*runs, "--json", tmp_path / "trend.json")
    found = json.loads((tmp_path / "trend.json").read_text())
    assert len(found["figures"][0]["values"]) == 11
    assert found["left_out"] == [f"planted/1n4/a of {runs[1]} (disturbed)"]


def test_a_case_whose_figures_cannot_be_does_not_enter_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = series(tmp_path, [0.010] * 12)
    wrong = {"day1": {"planted/1n4/a": "flops_mismatch: -40 % against the formula"}}
    monkeypatch.setattr("clusterbench.derive.baseline.wrong_figures", lambda reading: wrong.get(reading.run, {}))
    command(*runs, "--json", tmp_path / "trend.json")
    found = json.loads((tmp_path / "trend.json").read_text())
    assert len(found["figures"][0]["values"]) == 11
    assert found["left_out"] == [f"planted/1n4/a of {runs[1]} (wrong)"]


def test_five_runs_are_too_few_to_call_anything_steady(tmp_path: Path) -> None:
    assert "1 too few runs" in command(*series(tmp_path, [0.010] * 5)).output


@pytest.mark.parametrize(
    ("number", "words"), [(4, "of 4 runs here at most 4 have"), (1, "of 1 run here at most 1 has")]
)
def test_fewer_than_five_runs_are_refused(tmp_path: Path, number: int, words: str) -> None:
    ended = command(*series(tmp_path, [0.010] * number))
    assert ended.exit_code == 2
    assert f"a trend takes 5 runs that have a main figure of one case, and {words} one." in ended.output
    assert "\nhint: name more runs of the same suite" in ended.output


def test_runs_whose_cases_are_all_unsteady_are_not_told_to_be_more(tmp_path: Path) -> None:
    """Six runs on a noisy host were refused with 'name more runs', which would have been refused, too."""
    planned = case("a")
    runs = [
        write_run(
            tmp_path / f"day{day}",
            [planned],
            [
                (
                    outcome(planned, started=f"2026-03-{day + 1:02}T14:10:00"),
                    observation(planned, [[0.01, 0.09] * 10] * 4),
                )
            ],
        ).path
        for day in range(6)
    ]
    ended = command(*runs)
    assert ended.exit_code == 2
    assert "hint: iterations of a case differ too much" in ended.output


def test_a_run_named_twice_is_refused(tmp_path: Path) -> None:
    runs = series(tmp_path, [0.010] * 5)
    ended = command(*runs, runs[0])
    assert (ended.exit_code, "a run is named twice" in ended.output) == (2, True)


@pytest.mark.parametrize(
    ("started", "words"),
    [
        ("", "no outcome says when it was started"),
        ("yesterday", "is no time as 2026-03-02T14:10:00"),
        ("2026-03-01T14:10:00", "so which was first is unknown"),
    ],
)
def test_a_run_of_unknown_time_is_refused(tmp_path: Path, started: str, words: str) -> None:
    planned = case("a")
    odd = write_run(tmp_path / "odd", [planned], [(outcome(planned, started=started), observation(planned))]).path
    ended = command(*series(tmp_path, [0.010] * 5), odd)
    assert ended.exit_code == 2
    assert words in ended.output


def test_hosts_and_variables_that_changed_are_named() -> None:
    before = {"hosts": {"n1": {"variables": {"NCCL_ALGO": "Ring"}}, "n2": {"variables": {"NCCL_ALGO": "Ring"}}}}
    after = {"hosts": {"n1": {"variables": {"NCCL_ALGO": "Tree"}}, "n3": {"variables": {"NCCL_ALGO": "Tree"}}}}
    found = changes(before, after)
    assert found[:2] == ("without n2", "now with n3")
    assert found[2].endswith("NCCL_ALGO: Ring -> Tree")
    assert changes(before, before) == (NOTHING,)
    assert changes(before, {})[0].startswith("not known")


def test_memory_and_settings_that_changed_are_named_where_both_runs_know_them() -> None:
    before = {"hosts": {"n1": {"memory_bytes": 512 * 2**30, "gpus": [{"power_limit_w": 700.0}] * 8}}}
    after = {"hosts": {"n1": {"memory_bytes": 256 * 2**30, "gpus": [{"power_limit_w": 450.0}] * 8}}}
    found = changes(before, after)
    assert "the power limit of GPUs: 700 W -> 450 W" in found
    assert "the memory: 512 GiB -> 256 GiB" in found
    assert not any("power limit" in said for said in changes({"hosts": {"n1": {}}}, after))


def test_a_time_and_a_rate_of_the_same_samples_are_one_figure() -> None:
    times = tuple(0.01 + 0.0003 * number for number in range(6))

    def figure(values: Sequence[float], better: Literal["higher", "lower"] = "lower", unit: str = "s") -> Series:
        return Series("planted/1n4/a", "x", MetricKind("x", unit, better, "planted"), (0, 1, 2, 3, 4, 5), tuple(values))

    assert _same(figure(times), figure([7 / time_s for time_s in times], "higher", "tokens/s"))
    assert _same(figure(times), figure([3 * time_s for time_s in times]))
    assert not _same(figure(times), figure([7 / time_s for time_s in times]))
    assert not _same(figure(times), figure([7 * time_s for time_s in times], "higher", "tokens/s"))
    assert not _same(figure(times), figure(times, unit="B"))
