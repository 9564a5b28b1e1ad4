from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clusterbench.cases import Reading
from clusterbench.cli import main
from clusterbench.derive import read
from clusterbench.derive.several_runs import read_several
from clusterbench.diagnoses import Answer, examine
from clusterbench.run_folder import RunFolder
from clusterbench.shape import named_shape, point_of_shape
from clusterbench.types import Case, Floor
from tests.report.synthetic import ENVIRONMENT, case, observation, outcome, write_run

EXAMPLE = RunFolder.open(Path(__file__).parents[2] / "reports" / "examples" / "tp_scale-cpu")


def part(path: Path, is_in: Callable[[Case], bool], cpu: str = "", suite: str = "") -> RunFolder:
    """A run of some cases of the example, on its machine or on another one, in its suite or in another one."""
    plan, environment = EXAMPLE.plan(), copy.deepcopy(dict(EXAMPLE.environment()))
    if cpu:
        plan = replace(plan, cluster=replace(plan.cluster, cpu_name=cpu))
        environment["hosts"]["vm"]["cpu_model"] = cpu
    if suite:
        plan = replace(plan, suite=suite, question=f"What of {suite}?")
    cases = tuple(case for case in plan.cases if is_in(case))
    kept = {case.hash for case in cases}
    run = RunFolder.create(path, b"suite: part\n", replace(plan, cases=cases), environment)
    observed = {
        (observation.hash, observation.repeat, observation.attempt): observation
        for observation in EXAMPLE.observations()
    }
    for ended in EXAMPLE.outcomes():
        if ended.hash in kept:
            run.record(ended, observed.get((ended.hash, ended.repeat, ended.attempt)))
    return run


def scaling(reading: Reading) -> dict[str, float | None]:
    return {row.case.split(": ")[-1]: row.value for row in reading.rows if row.metric == "scaling_efficiency"}


def test_runs_of_different_sizes_are_one_experiment(tmp_path: Path) -> None:
    small = part(tmp_path / "one-rank", lambda case: case.world_size == 1)
    large = part(tmp_path / "more", lambda case: case.world_size > 1)
    whole, together = read(EXAMPLE), read_several([small, large])
    assert scaling(together) == scaling(whole)
    assert scaling(read(large)) != scaling(whole)
    assert len(together.histories) == len(whole.histories)
    assert {row.run for row in together.rows} == {"one-rank", "more"}
    assert all(row.case.startswith(f"{row.run}: ") and "run" not in row.point for row in together.rows)


def test_runs_on_other_machines_are_no_experiment(tmp_path: Path) -> None:
    """What a large run on faster CPUs gains over a small one is no scaling."""
    small = part(tmp_path / "one-rank", lambda case: case.world_size == 1)
    large = part(tmp_path / "more", lambda case: case.world_size > 1, cpu="AMD EPYC 9965")
    together = read_several([small, large])
    assert scaling(together) == scaling(read(small)) | scaling(read(large))
    assert {row.point["run"] for row in together.rows} == {"one-rank", "more"}


def of_model(run: RunFolder, path: Path, num_layers: int) -> RunFolder:
    """The same run as one of a model that is not on record, called 'mine'."""
    own = replace(named_shape("llama-tiny"), name="mine", num_layers=num_layers)
    plan = run.plan()
    cases = [replace(case, point={**case.point, **point_of_shape(own)}) for case in plan.cases]
    hashes = {before.hash: after.hash for before, after in zip(plan.cases, cases, strict=True)}
    copied = RunFolder.create(path, b"suite: part\n", replace(plan, cases=tuple(cases)), run.environment())
    observed = {(seen.hash, seen.repeat, seen.attempt): seen for seen in run.observations()}
    for ended in run.outcomes():
        seen = observed.get((ended.hash, ended.repeat, ended.attempt))
        own_hash = hashes[ended.hash]
        copied.record(replace(ended, hash=own_hash), seen and replace(seen, hash=own_hash))
    return copied


def test_two_models_of_one_name_are_no_experiment(tmp_path: Path) -> None:
    """They were one row of a heatmap, and one curve of a chart: a config.json that changed between two runs."""
    small, large = (
        of_model(part(tmp_path / f"of-{name}", is_in), tmp_path / name, num_layers)
        for name, is_in, num_layers in (
            ("one-rank", lambda case: case.world_size == 1, 4),
            ("more", lambda case: case.world_size > 1, 8),
        )
    )
    together = read_several([small, large])
    assert {row.point["run"] for row in together.rows} == {"one-rank", "more"}
    assert "run" not in read_several([large, part(tmp_path / "on-record", lambda case: True)]).rows[0].point


def test_the_same_case_in_two_runs_stands_side_by_side(tmp_path: Path) -> None:
    runs = [part(tmp_path / name, lambda case: case.world_size < 3) for name in ("before", "after")]
    alone, together = read(runs[0]), read_several(runs)
    assert {row.point["run"] for row in together.rows} == {"before", "after"}
    rows_before = [row for row in together.rows if row.run == "before"]
    assert [row.value for row in rows_before] == [row.value for row in alone.rows]
    assert [history.case.hash for history in together.histories] == 2 * [
        history_alone.case.hash for history_alone in alone.histories
    ]


def test_folders_of_one_name_are_numbered_and_every_host_is_there_once(tmp_path: Path) -> None:
    runs = [part(tmp_path / name / "run", lambda case: case.world_size == 1) for name in ("a", "b")]
    together = read_several(runs)
    assert together.run == "run (1), run (2)"
    assert together.environment["hosts"] == EXAMPLE.environment()["hosts"]


def test_what_could_not_be_read_says_of_which_run(tmp_path: Path) -> None:
    run = part(tmp_path / "cut", lambda case: case.world_size == 1)
    with (run.path / "outcomes.jsonl").open("a") as file:
        file.write('{"half\n')
    (problem,) = read_several([run, part(tmp_path / "whole", lambda case: case.world_size == 2)]).problems
    assert problem.startswith("cut: outcomes.jsonl:")


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)], catch_exceptions=False)


def test_one_page_of_several_runs_stands_in_a_folder_of_its_own(tmp_path: Path) -> None:
    runs = [part(tmp_path / name, lambda case: case.world_size < 3).path for name in ("before", "after")]
    done = report(*runs, "--out", tmp_path / "both")
    assert done.exit_code == 0
    assert done.stdout == f"{tmp_path}/both/index.html\n"
    page = (tmp_path / "both" / "index.html").read_text()
    assert "before: train_step/1n2/tp2" in page
    assert "after: train_step/1n2/tp2" in page
    assert "Throughput per rank run before" in page  # a panel each
    assert "Throughput per rank run after" in page
    assert page.count("<td>COMPLETE: ") == 2
    table = (tmp_path / "both" / "rows.csv").read_text()
    assert {line.split(",")[0] for line in table.splitlines()[1:]} == {"before", "after"}
    assert not (runs[0] / "index.html").exists()


def slower(run: RunFolder, path: Path, factor: float) -> RunFolder:
    """A copy in which the step of tp2 takes so many times as long."""
    shutil.copytree(run.path, path)
    records = [json.loads(line) for line in (path / "observations.jsonl").read_text().splitlines()]
    for record in records:
        if record["case"].endswith("/tp2"):
            record["seconds"] = [[factor * second for second in of_rank] for of_rank in record["seconds"]]
    (path / "observations.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return RunFolder.open(path)


def test_runs_of_the_same_cases_are_compared_on_their_page(tmp_path: Path) -> None:
    """Page review D6: a run 23 % slower stood beside the other without a word of it."""
    before = part(tmp_path / "before", lambda case: case.world_size < 3)
    after = slower(before, tmp_path / "after", 9.0)
    said = "after against before: REGRESSION (margin 5.0%): "
    done = report(before.path, after.path, "--out", tmp_path / "both")
    assert said in done.stderr  # the page said it and the terminal did not
    assert f"- {said}" in report(before.path, after.path, "--markdown", "--out", tmp_path / "again").stdout
    page = (tmp_path / "both" / "index.html").read_text()
    first = page.split('<p class="answer">')[1].split("</p>")[0]
    assert first.startswith(said)
    assert "worst: step_time of train_step/1n2/tp2, +800.0%." in first
    table = page.split('<section id="compared">')[1].split("</section>")[0]
    lines = [line.split("</td><td>") for line in table.split("<tbody>")[1].split("<tr><td>")[1:]]
    assert (lines[0][:2], lines[0][4]) == (["train_step/1n2/tp2", "step_time"], "+800.0%")
    assert "smallest change this would have shown" in table


def test_of_a_run_on_cpu_ranks_beside_a_gpu_it_is_said_which_it_is(tmp_path: Path) -> None:
    """The page was of the larger cluster: figures over Gloo stood beside those of a GPU without a word."""
    cpu = part(tmp_path / "laptop", lambda case: case.world_size < 3)
    done = report(cpu.path, EXAMPLE.path.with_name("one_gpu-h200"), "--out", tmp_path / "both")
    said = "laptop: measured on CPU ranks that talk over Gloo: this shows method, memory and traffic, not the speed"
    assert said in done.stderr
    assert said in (tmp_path / "both" / "index.html").read_text()
    both = report(cpu.path, part(tmp_path / "other", lambda case: case.world_size < 3).path, "--out", tmp_path / "cpus")
    assert "\nMeasured on CPU ranks that talk over Gloo: " in both.stderr


def test_runs_on_unlike_machines_are_no_fault_of_either(tmp_path: Path) -> None:
    """A run on one machine beside a run on another made the machine SUSPECT, exit code 1, and hid one of the two."""
    before = part(tmp_path / "before", lambda case: case.world_size < 3)
    after = part(tmp_path / "after", lambda case: case.world_size < 3, cpu="AMD EPYC 9965")
    done = report(before.path, after.path, "--out", tmp_path / "both")
    assert (done.exit_code, "SUSPECT" in done.stderr) == (0, False)
    page = (tmp_path / "both" / "index.html").read_text()
    assert "the CPU is AMD EPYC 9965 in new and AMD EPYC in base" in page
    runs, above = page.split('<section id="runs">')[1].split("</section>")[0], page.split('<section id="runs">')[0]
    assert "<td>AMD EPYC (Gloo)</td>" in runs
    assert "<td>AMD EPYC 9965 (Gloo)</td>" in runs
    assert "<dt>device</dt>" not in above


def test_runs_of_two_suites_are_not_compared_and_ask_two_questions(tmp_path: Path) -> None:
    """They share cases, such as products of matrices, but no question: 5 cases of one were 'not in new'."""
    one, other = (part(tmp_path / name, lambda case: case.world_size < 3, suite=name) for name in ("one", "other"))
    done = report(one.path, other.path, "--out", tmp_path / "both")
    assert done.stderr.startswith("What of one?\nWhat of other?\n")
    page = (tmp_path / "both" / "index.html").read_text()
    assert '<h1 class="several">What of one?\nWhat of other?</h1>' in page
    assert 'id="compared"' not in page


def test_parts_of_one_experiment_are_not_compared(tmp_path: Path) -> None:
    runs = [
        part(tmp_path / "one-rank", lambda case: case.world_size == 1),
        part(tmp_path / "more", lambda case: case.world_size > 1),
    ]
    report(*(run.path for run in runs), "--out", tmp_path / "both")
    page = (tmp_path / "both" / "index.html").read_text()
    assert 'id="compared"' not in page
    assert page.count('<p class="answer">') == 1


def test_where_the_page_goes_is_asked_for_exactly_where_there_are_several(tmp_path: Path) -> None:
    run = part(tmp_path / "run", lambda case: case.world_size == 1).path
    done = report(run, run)
    assert done.exit_code == 2
    assert done.stderr.endswith("a report of 2 runs needs a folder of its own.\nhint: add --out FOLDER\n")
    done = report(run, "--out", tmp_path / "x")
    assert done.exit_code == 2
    assert done.stderr.endswith("--out has no effect on the report of one run, which stands in its folder.\n")
    done = report(run, run, "--out", run)
    assert done.exit_code == 2
    assert done.stderr == f"error: {run} exists and is not empty.\nhint: name a new folder with --out\n"


@pytest.mark.parametrize("size", [1, 2])
def test_one_run_alone_is_itself(tmp_path: Path, size: int) -> None:
    run = part(tmp_path / "alone", lambda case: case.world_size == size)
    assert [row.value for row in read_several([run]).rows] == [row.value for row in read(run).rows]


def test_a_run_named_twice_is_refused(tmp_path: Path) -> None:
    run = part(tmp_path / "run", lambda case: case.world_size == 1)
    ended = report(run.path, tmp_path / "run" / ".." / "run", "--out", tmp_path / "both")
    assert (ended.exit_code, "a run is named twice" in ended.output, (tmp_path / "both").exists()) == (2, True, False)


def beside(folder: Path, name: str, slow: float, size: int = 64) -> RunFolder:
    """A run of products on four ranks, one of them slower, and of a case whose best layout has to reach a floor."""
    products = case("m", id="matmul/1n4/m", benchmark="matmul", point={"size": size}, floors=(REACHED,))
    seconds = [[0.01 * (1 + (number * rank) % 7 / 1000) for number in range(40)] for rank in range(1, 5)]
    seconds[3] = [slow * second for second in seconds[3]]
    return write_run(
        folder / name, [products], [(outcome(products), observation(products, seconds))], environment=ENVIRONMENT
    )


REACHED = Floor("step_time", "at_most", "15 ms", "s", 0.015, best=True)


def test_of_runs_side_by_side_each_is_judged_by_itself(tmp_path: Path) -> None:
    """Beside a healthy run one with a slow rank was 'not judged', and its missed floor met by the other's best."""
    healthy, sick = beside(tmp_path, "healthy", 1.0), beside(tmp_path, "sick", 1.6)
    alone = {run.path.name: titles(read(run)) for run in (healthy, sick)}
    assert alone == {
        "healthy": [],
        "sick": [
            "matmul/1n4/m, step_time, 16.048 ms, 7 % above 15.000 ms, and the best of 1 case",
            "rank 3 on laptop, 60 % slower",
        ],
    }
    together = read_several([healthy, sick])
    assert titles(together) == [f"sick: {alone['sick'][0]}", f"{alone['sick'][1]} in sick"]
    found = examine(together)["straggler"]
    assert "of sick: matmul/1n4/m" in found.findings[0].evidence
    assert found.healthy[0].startswith("healthy: 4 ranks in matmul: none is slower than its peers")


def test_a_slow_rank_of_one_part_is_named_beside_parts_in_which_it_was_not(tmp_path: Path) -> None:
    """Of two runs with other cases on the same ranks one was SUSPECT, and together they were 'not judged'."""
    healthy = [beside(tmp_path, f"healthy {size}", 1.0, size) for size in (128, 256)]
    together = read_several([*healthy, beside(tmp_path, "sick", 1.6, 64)])
    assert not together.hosts_of_runs
    (finding,) = examine(together)["straggler"].findings
    assert finding.title == "rank 3 on laptop, 60 % slower in sick"


def titles(reading: Reading) -> list[str]:
    answers = examine(reading)
    return [finding.title for name in ("floor", "straggler") for finding in answers[name].findings]


def test_two_runs_of_one_host_have_no_links_between_hosts(tmp_path: Path) -> None:
    """Where that host said something else in each run, their links were not judged; in neither run is there one."""
    first, second = (part(tmp_path / name, lambda case: case.world_size < 3, cpu=name) for name in ("before", "after"))
    assert examine(read(first))["slow_link"].state == "nothing to judge"
    assert examine(read_several([first, second]))["slow_link"].state == "nothing to judge"


def test_a_host_that_said_something_else_in_another_run_is_one_host(tmp_path: Path) -> None:
    """How much memory was free made two hosts of one, and 20 checks of it '40 answers of checks of 2 hosts'."""
    (of_one_gpu,) = RunFolder.open(EXAMPLE.path.parent / "one_gpu-h200").environment()["hosts"].values()
    runs = [part(tmp_path / str(size), lambda case, size=size: case.world_size == size) for size in (1, 2)]
    for number, run in enumerate(runs):
        environment = run.environment()
        environment["hosts"]["vm"] |= {"facts": of_one_gpu["facts"], "free_bytes": 2**33 + number}
        run.write("environment.json", json.dumps(environment))
    together = read_several(runs)
    assert set(together.environment["hosts"]) == {"vm", "vm in 2"}
    answers = examine(together)
    (in_order,) = answers["unfit_host"].healthy
    assert "of checks of 1 host in order" in in_order
    assert answers["unlike_hosts"] == Answer()
    assert [finding.where for finding in answers["unfit_host"].findings if "2 hosts" in finding.where] == []
