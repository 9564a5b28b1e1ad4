"""Baselines: what runs come to, what never enters, the file, and what holds runs against it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from clusterbench import derive
from clusterbench.baseline.file import baseline_text, read_baseline
from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.cli import main
from clusterbench.cluster import Cluster
from clusterbench.compare.against_baseline import compare_with_baseline
from clusterbench.derive.baseline import baseline_of, left_out
from clusterbench.errors import SuiteError
from clusterbench.fingerprint import Fingerprint
from clusterbench.floors import floors_of, read_floor
from clusterbench.formulas.statistics import median
from clusterbench.planning import _has_other_peak, make_plan
from clusterbench.recorded import Recorded, of_next
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from tests.report.synthetic import observation, outcome

H100 = {"name": "NVIDIA H100 80GB HBM3", "driver_version": "570.86"}
SUITE = "suite: s\nrepeats: {}\nbenchmarks:\n  - benchmark: matmul\n    sizes: [64, 128]\n"
ALONE = "  - benchmark: train_step\n    layouts: [dp2]\n    communication: fake\n"
STEADY = (0.010, 0.0101, 0.0099)


def environment(driver: str = "570.86") -> dict[str, Any]:
    gpus = [{**H100, "driver_version": driver}]
    return {"hosts": {"n1": {"gpus": gpus, "cpu_model": "AMD EPYC 9654", "infiniband": [], "network": []}}}


def run_of(
    folder: Path,
    times_s: Sequence[float] = STEADY,
    driver: str = "570.86",
    noise: float = 0.001,
    ends: Callable[[int, int], str] = lambda case, repeat: "ok",
    suite: str = SUITE,
) -> RunFolder:
    """A repeat of two products for each time; of the second they take twice as long."""
    folder.mkdir()
    file = folder / "s.yaml"
    file.write_text(suite.format(len(times_s)))
    plan = make_plan(load_suite(file), Cluster(1, 1, "cuda", H100["name"], hosts=("n1",)))
    run = RunFolder.create(folder / folder.name, file.read_bytes(), plan, environment(driver))
    for number, case in enumerate(plan.cases):
        for repeat, time_s in enumerate(times_s, 1):
            seconds = [[(number + 1) * time_s * (1 + noise * (each % 3)) for each in range(20)]]
            status = ends(number, repeat)
            seen = observation(case, seconds, repeat=repeat, hosts=("n1",)) if status in ("ok", "wrong") else None
            run.record(outcome(case, status, repeat=repeat), seen)
    return run


def verb(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def said(done: Result) -> str:
    return " ".join(done.output.replace("\n#", "").split())


def step_times(file: Path) -> list[Recorded]:
    (machine,) = read_baseline(file).machines
    return [figures["step_time"] for figures in machine.figures.values()]


# What is expected of the next


@pytest.mark.parametrize("count", [3, 5, 8, 9, 10, 30])
def test_the_next_sample_lies_between_the_ends_with_80_percent(count: int) -> None:
    draw, inside, tries = random.Random(count), 0, 4000
    for _ in range(tries):
        *seen, following = (draw.lognormvariate(0.0, 0.03) for _ in range(count + 1))
        low, high = of_next(seen)
        inside += low <= following <= high
    assert inside / tries == pytest.approx(0.8, abs=0.025)


def test_one_or_two_samples_are_no_surer_than_their_iterations() -> None:
    known = Recorded("s", (1.0, 1.2), (0.9, 1.1), "r")
    expected = known.expectation
    assert expected is not None
    assert (expected.low, expected.value, expected.high) == (0.9, 1.1, 1.2)
    assert known.doubt == pytest.approx(0.2)
    assert (expected.origin, expected.source) == ("baseline", "median of 2 samples of r")


def test_more_samples_tell_the_median_better() -> None:
    doubts = [Recorded("s", (1.0, 1.01, 0.99) * times, None).doubt for times in (1, 3, 9)]
    assert doubts == sorted(doubts, reverse=True)


def test_a_count_of_nothing_is_kept_and_nothing_is_expected() -> None:
    assert Recorded("1", (0.0, 0.0, 0.0), None).expectation is None


# What enters


def test_every_repeat_of_every_run_is_a_sample(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / name, [scale * time_s for time_s in STEADY]) for name, scale in (("a", 1), ("b", 1.02))]
    done = verb("baseline", *(run.path for run in runs), "--out", tmp_path / "base.jsonl")
    assert done.exit_code == 0, done.output
    assert "4 figures of 2 cases, 6 samples each, of 2 runs on 1 host: gpu h100-sxm-80gb, gpus_per_node 1" in said(done)
    first, second = step_times(tmp_path / "base.jsonl")
    assert len(first.samples) == 6
    expected = first.expectation
    assert expected is not None
    assert expected.value == pytest.approx(median(first.samples))
    assert expected.low < min(first.samples) < max(first.samples) < expected.high, "two of six would lie outside"
    assert expected.source == "median of 6 samples of a, b"
    assert second.samples == pytest.approx([2 * sample for sample in first.samples])


@pytest.mark.parametrize("status", ["wrong", "failed", "timeout"])
def test_a_case_with_one_bad_repeat_never_enters(tmp_path: Path, status: str) -> None:
    run = run_of(tmp_path / "a", ends=lambda case, repeat: status if (case, repeat) == (0, 2) else "ok")
    reading = derive.read(run)
    (machine,) = baseline_of([reading], "base").machines
    assert list(machine.cases.values()) == ["matmul/1n1/128-float32"]
    assert left_out(reading) == {"matmul/1n1/64-float32": status}
    assert f"a: left out as {status}: matmul/1n1/64-float32" in said(
        verb("baseline", run.path, "--out", tmp_path / "base.jsonl")
    )


def test_a_case_whose_iterations_differ_never_enters(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", noise=0.2)
    done = verb("baseline", run.path, "--out", tmp_path / "base.jsonl")
    assert (done.exit_code, (tmp_path / "base.jsonl").exists()) == (2, False)
    assert "no figure enters a baseline: 2 unsteady.\nhint: iterations of a case differ too much; more" in done.output


def test_a_case_whose_figures_cannot_be_never_enters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"matmul/1n1/64-float32": "flops_mismatch: -40 % against the formula"}
    monkeypatch.setattr("clusterbench.derive.baseline.wrong_figures", lambda reading: wrong)
    reading = derive.read(run_of(tmp_path / "a"))
    (machine,) = baseline_of([reading], "base").machines
    assert list(machine.cases.values()) == ["matmul/1n1/128-float32"]
    assert left_out(reading) == {"matmul/1n1/64-float32": "wrong"}


def test_runs_of_two_machines_are_two_machines(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / name, driver=name) for name in ("570.86", "575.1", "570.86b")]
    made = baseline_of([derive.read(run) for run in runs], "base")
    assert [machine.machine.driver for machine in made.machines] == ["570.86", "575.1", "570.86b"]
    assert [machine.runs for machine in made.machines] == [("570.86",), ("575.1",), ("570.86b",)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda run: (run.path / "environment.json").write_text("{}"), "its environment.json describes no host"),
        (lambda run: None, "a run is named twice, and its samples would count twice"),
    ],
)
def test_what_is_no_part_of_a_baseline_is_refused(tmp_path: Path, change: Any, sentence: str) -> None:
    run = run_of(tmp_path / "a")
    change(run)
    done = verb("baseline", run.path, run.path, "--out", tmp_path / "base.jsonl")
    assert (done.exit_code, sentence in done.output) == (2, True), done.output


def test_no_file_is_replaced(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a")
    (tmp_path / "base.jsonl").write_text("mine")
    done = verb("baseline", run.path, "--out", tmp_path / "base.jsonl")
    assert (done.exit_code, (tmp_path / "base.jsonl").read_text()) == (2, "mine")


# The file


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Three runs of three repeats."""
    runs = [
        run_of(tmp_path / f"run{number}", [(1 + number / 500) * time_s for time_s in STEADY]) for number in range(3)
    ]
    path = tmp_path / "base.jsonl"
    assert verb("baseline", *(run.path for run in runs), "--out", path).exit_code == 0
    return path


def test_a_file_reads_as_it_was_written(base: Path) -> None:
    made = read_baseline(base)
    assert baseline_text(made) == base.read_text()
    (machine,) = made.machines
    assert machine.machine == Fingerprint(
        gpu="h100-sxm-80gb", gpus_per_node="1", cpu="AMD EPYC 9654", driver="570.86", network="none"
    )
    assert (machine.runs, machine.hosts) == (("run0", "run1", "run2"), ("n1",))


def changed(line: str, **fields: Any) -> str:
    return json.dumps({**json.loads(line), **fields})


DAMAGES: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "cut off": (lambda lines: lines[:-1], ":1: damaged: it says 1 machines and 4 figures, but it has 1 and 3."),
    "half a line": (lambda lines: [*lines[:-1], lines[-1][:80]], ":6: damaged: the line is no whole JSON."),
    "another sample": (
        lambda lines: [*lines[:2], changed(lines[2], samples=[0.02] * 9), *lines[3:]],
        ":3: damaged: 'value' is 0.01",
    ),
    "a sample lost": (
        lambda lines: [*lines[:2], changed(lines[2], samples=[0.01] * 8), *lines[3:]],
        ":3: damaged: 'num_samples' is 9, and there are 8.",
    ),
    "samples of no run": (
        lambda lines: [*lines[:2], changed(lines[2], by_run=[4, 4]), *lines[3:]],
        ":3: damaged: 'by_run' is [4, 4]: each must be 1 or more, and all together the 9 that there are.",
    ),
    "a run without a sample": (
        lambda lines: [*lines[:2], changed(lines[2], by_run=[0, 9]), *lines[3:]],
        ":3: damaged: 'by_run' is [0, 9]: each must be 1 or more, and all together the 9 that there are.",
    ),
    "text in place of a number": (
        lambda lines: [*lines[:2], changed(lines[2], value="fast"), *lines[3:]],
        ":3: damaged: 'value' is \"fast\", not a number.",
    ),
    "an unknown field": (
        lambda lines: [lines[0], changed(lines[1], machine={"gpuu": "x"}), *lines[2:]],
        ":2: damaged: in 'machine' 'gpuu' is not known here. Did you mean 'gpu'?",
    ),
    "twice": (
        lambda lines: [changed(lines[0], num_figures=5), *lines[1:], lines[2]],
        ":7: damaged: step_time of matmul/1n1/64-float32 is there twice.",
    ),
    "another version": (
        lambda lines: [changed(lines[0], clusterbench_baseline=2), *lines[1:]],
        ":1: a baseline of version 2, and this clusterbench reads 1.",
    ),
    "something else": (lambda lines: ["suite: s"], ':1: this is no baseline, whose first line begins {"clusterbench_'),
    "nothing": (lambda lines: [], ":1: this is no baseline"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_with_its_line_and_what_to_do(base: Path, damage: str) -> None:
    change, sentence = DAMAGES[damage]
    base.write_text("".join(f"{line}\n" for line in change(base.read_text().splitlines())))
    with pytest.raises(SuiteError) as error:
        read_baseline(base)
    assert str(error.value).startswith(f"{base}{sentence}")
    assert "\nhint: write it again with 'clusterbench baseline RUN... --out FILE'" in str(error.value)


# Runs held against it


def test_a_run_as_before_is_no_regression_and_a_slower_one_is(base: Path, tmp_path: Path) -> None:
    for name, scale, exit_code, words in (
        ("same", 1.0, 0, "NO REGRESSION beyond 5.0%"),
        ("slow", 1.2, 1, "REGRESSION (margin 5.0%)"),
    ):
        run = run_of(tmp_path / name, [scale * time_s for time_s in STEADY * 2])
        done = verb("compare", base, run.path)
        assert (done.exit_code, words in done.output) == (exit_code, True), done.output
    assert "the baseline is of 3 runs on 1 host: run0, run1, run2" in said(done)
    assert "9, then 6" in done.output


def test_a_run_that_differs_as_those_of_the_baseline_do_is_no_regression(tmp_path: Path) -> None:
    """Six runs lay within 6 %, and one 1 % beyond the slowest was a REGRESSION, as each of its repeats counted."""
    factors = (1.0, 1.06, 1.0, 1.06, 1.0, 1.06)
    runs = [run_of(tmp_path / f"run{number}", [factor * 0.010] * 3) for number, factor in enumerate(factors)]
    verb("baseline", *(run.path for run in runs), "--out", tmp_path / "base.jsonl")
    done = verb("compare", tmp_path / "base.jsonl", run_of(tmp_path / "new", [0.0107] * 10).path)
    assert done.exit_code == 3, done.output
    assert (
        "Undecided: 2 figures in which the runs of the baseline differ by more than their repeats, so that new counts "
        "as one run more. It takes a baseline of more runs."
    ) in said(done)


def test_runs_with_other_numbers_of_repeats_are_kept_apart(tmp_path: Path) -> None:
    """Samples were cut into equal parts, in which those of a run with two lay beside some of the next: REGRESSION."""
    factors = (1.0, 1.06, 1.0, 1.06, 1.0, 1.06)
    runs = [
        run_of(tmp_path / f"run{number}", [factor * 0.010] * (2 if number % 2 else 5))
        for number, factor in enumerate(factors)
    ]
    base = tmp_path / "base.jsonl"
    verb("baseline", *(run.path for run in runs), "--out", base)
    assert [recorded.by_run for recorded in step_times(base)] == [(5, 2, 5, 2, 5, 2)] * 2
    done = verb("compare", base, run_of(tmp_path / "new", [0.0107] * 10).path)
    assert done.exit_code == 3, done.output
    assert "Undecided: 2 figures in which the runs of the baseline differ by more than their repeats" in said(done)


def test_a_case_that_failed_now_is_a_regression(base: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "new", ends=lambda case, repeat: "ok" if case else "failed")
    done = verb("compare", base, run.path)
    assert (done.exit_code, "1 case ended badly that ran before: matmul/1n1/64-float32" in said(done)) == (1, True)


def test_a_repeat_that_was_wrong_is_a_regression(base: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "new", STEADY * 2, ends=lambda case, repeat: "wrong" if (case, repeat) == (0, 2) else "ok")
    done = verb("compare", base, run.path)
    assert (done.exit_code, "1 case ended badly that ran before: matmul/1n1/64-float32" in said(done)) == (1, True)
    assert "repeats of new that failed and are left out: 1 of matmul/1n1/64-float32 (wrong)" in said(done)


@pytest.mark.parametrize(("disturbed", "exit_code"), [(1, 1), (6, 3)])
def test_times_of_disturbed_repeats_say_nothing(base: Path, tmp_path: Path, disturbed: int, exit_code: int) -> None:
    down = {"n1": {"over_s": 2.0, "read": {"port": 1}, "grown": {"p port 1": {"link_downed": 1, "packets": 10**6}}}}
    records = run_of(tmp_path / "new", [2 * time_s for time_s in STEADY * 2]).path / "observations.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    changed = [line | {"counters": down} if line["repeat"] <= disturbed else line for line in lines]
    records.write_text("".join(json.dumps(line) + "\n" for line in changed))
    done = verb("compare", base, tmp_path / "new" / "new")
    assert done.exit_code == exit_code, done.output
    assert f"{disturbed} of matmul/1n1/64-float32 (p port 1 on n1: the link went down)" in said(done)


def test_the_runs_of_a_baseline_lack_nothing(tmp_path: Path) -> None:
    """Scaling efficiencies are of several cases: no repeat has them by itself."""
    run = tmp_path / "run"
    shutil.copytree(Path(__file__).parents[1] / "reports" / "examples" / "tp_scale-cpu", run)
    lines = [json.loads(line) for line in (run / "observations.jsonl").read_text().splitlines()]
    steady = [
        line | {"seconds": [[0.01 + 1e-5 * (at % 3) for at in range(20)]] * len(line["seconds"])} for line in lines
    ]
    (run / "observations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steady))
    recorded = baseline_text(baseline_of([derive.read(RunFolder.open(run))], "base.jsonl"))
    (tmp_path / "base.jsonl").write_text(recorded)
    done = verb("compare", tmp_path / "base.jsonl", run)
    assert ("scaling_efficiency" in recorded, "lack" in said(done)) == (True, False), done.output


def test_another_machine_is_refused_and_said_where_it_is_accepted(base: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "new", driver="575.1")
    refused = verb("compare", base, run.path)
    assert refused.exit_code == 2
    assert "is of another machine: it has driver 570.86, and this one driver 575.1." in refused.output
    taken = verb("compare", base, run.path, "--accept-other", "driver")
    assert taken.exit_code in (0, 3)
    assert "machine: driver is 575.1 in new and 570.86 in base, which was accepted" in said(taken)


def test_a_run_without_any_case_of_it_is_said(base: Path, tmp_path: Path) -> None:
    lines = base.read_text().replace('"hash": "', '"hash": "0')
    base.write_text(lines)
    done = verb("compare", base, run_of(tmp_path / "new").path)
    assert (done.exit_code, "has no case of" in done.output) == (2, True)


def test_a_rank_that_computed_alone_is_not_compared_and_not_missing(tmp_path: Path) -> None:
    run, again = (run_of(tmp_path / name, suite=SUITE + ALONE) for name in ("run", "again"))
    assert verb("baseline", run.path, "--out", tmp_path / "b").exit_code == 0
    compared = compare_with_baseline(tmp_path / "b", again.path)
    assert (compared.only_base, compared.gone) == ((), ())
    assert "a case of one rank that computed alone, with nothing sent, cannot be compared" in compared.cautions


def test_a_case_of_the_baseline_that_the_run_lacks_leaves_undecided(base: Path, tmp_path: Path) -> None:
    folder = run_of(tmp_path / "new").path
    for name in ("plan.jsonl", "observations.jsonl", "outcomes.jsonl"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(line for line in lines if "/128-" not in line))
    gone = verb("compare", base, folder)
    assert gone.exit_code == 3
    assert "1 case of base that new does not have: matmul/1n1/128-float32." in said(gone)
    assert verb("compare", base, folder, "--fewer-cases").exit_code == 0


FLOORED = (
    "suite: s\nbenchmarks:\n  - benchmark: matmul\n    sizes: [64]\n"
    "    at_least: {flops_per_s_per_rank: 0.9 of baseline}\n"
)


def floored(tmp_path: Path, baseline: Path | None, driver: str = "570.86", accepted: Sequence[str] = ()) -> Any:
    suite = tmp_path / "floored.yaml"
    suite.write_text(FLOORED)
    machine = Fingerprint(gpu="h100-sxm-80gb", driver=driver)
    cluster = Cluster(1, 1, "cuda", H100["name"], hosts=("n1",))
    (case,) = make_plan(load_suite(suite, baseline=baseline), cluster, machine, accepted).cases
    (floor,) = case.floors
    return floor


def test_a_floor_is_a_share_of_the_median_of_this_machine(base: Path, tmp_path: Path) -> None:
    floor = floored(tmp_path, base)
    (machine,) = read_baseline(base).machines
    recorded = machine.figures[next(iter(machine.cases))]["flops_per_s_per_rank"]
    assert floor.bound == pytest.approx(0.9 * median(recorded.samples))
    assert floor.doubt == pytest.approx(0.9 * recorded.doubt)
    assert floor.doubt < 0.02 * floor.bound
    assert floor.basis.endswith(": median of 9 samples of run0, run1, run2")


def test_a_floor_is_no_share_of_another_machine(base: Path, tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"it has driver 570\.86, and this one driver 575\.1"):
        floored(tmp_path, base, "575.1")
    assert floored(tmp_path, base, "575.1", ("driver",)).bound == floored(tmp_path, base).bound
    with pytest.raises(SuiteError, match=r"needs a baseline to hold it against"):
        floored(tmp_path, None)


def test_a_floor_of_mfu_is_no_share_of_another_cards_peak(tmp_path: Path) -> None:
    """40 % of an A100's peak are 125 TFLOP/s, of an H100's 396: MFU of a step twice as fast was missed."""
    asked = {
        name: read_floor("at_least", name, "0.9 of baseline", TrainStep.metrics, (), 1)
        for name in ("mfu", "tokens_per_s")
    }
    known = {
        "mfu[convention=palm]": Recorded("fraction", (0.4,) * 3, None, "run"),
        "tokens_per_s": Recorded("tokens/s", (9e3,) * 3, None, "run"),
    }
    for has_other_peak, bound in ((False, pytest.approx(0.36)), (True, None)):
        (mfu,) = floors_of(asked["mfu"], {}, {}, known, "base.jsonl", "a node", has_other_peak)
        (speed,) = floors_of(asked["tokens_per_s"], {}, {}, known, "base.jsonl", "a node", has_other_peak)
        assert (mfu.bound, speed.bound) == (bound, pytest.approx(8100))
    assert mfu.basis == "base.jsonl has it as a share of another device's peak; ask for tokens_per_s instead"


@pytest.mark.parametrize(
    ("recorded", "cluster", "expected"),
    [
        (Fingerprint(gpu="a100-sxm4-80gb"), Cluster(1, 1, "cuda", H100["name"]), True),
        (Fingerprint(gpu="h100-sxm-80gb"), Cluster(1, 1, "cuda", H100["name"]), False),
        (Fingerprint(), Cluster(1, 1, "cuda", H100["name"]), False),
        (Fingerprint(gpu="none", cpu="AMD EPYC 7763"), Cluster(1, 1, "cpu", cpu_name="AMD EPYC 9654"), True),
        (Fingerprint(gpu="none", cpu="AMD EPYC 7763"), Cluster(1, 1, "cpu", cpu_name="AMD EPYC 7763"), False),
    ],
)
def test_an_accepted_machine_has_another_peak_where_its_device_is_another(
    recorded: Fingerprint, cluster: Cluster, expected: bool
) -> None:
    assert _has_other_peak(recorded, cluster) == expected


def test_the_command_line_names_a_baseline_where_it_has_an_effect(base: Path, tmp_path: Path) -> None:
    suite = tmp_path / "floored.yaml"
    suite.write_text(FLOORED)
    planned = verb("plan", suite, "--baseline", base, "--gpu", "NVIDIA H100 80GB HBM3")
    assert planned.exit_code == 0, planned.output
    assert "median of 9 samples of run0, run1, run2" in said(planned)
    other = verb("plan", suite, "--baseline", base, "--gpu", "NVIDIA H200")
    assert (other.exit_code, "has gpu h100-sxm-80gb, and this one gpu h200-sxm-141gb" in other.output) == (2, True)
    suite.write_text(SUITE.format(1))
    for said_too in (("--baseline", base), ("--accept-other", "driver")):
        idle = verb("plan", suite, *said_too, "--num-ranks", "1", "--device", "cpu")
        assert (idle.exit_code, f"{said_too[0]} has no effect" in idle.output) == (2, True), idle.output
