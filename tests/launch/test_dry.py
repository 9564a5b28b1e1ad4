"""``run --dry``: a suite's training cases become rows of what a step holds and sends, and nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.cluster import Cluster, MachineOptions
from clusterbench.derive import derive_rows, read
from clusterbench.dry.processes import DryRunFailed, DryTask
from clusterbench.errors import SuiteError
from clusterbench.job.dry import DryRank, Held, Sent, Work
from clusterbench.launch import dry
from clusterbench.planning import make_plan
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from clusterbench.types import Plan

SUITE = """
suite: small
question: What fits?
num_nodes: [1, 2]
benchmarks:
  - {benchmark: train_step, layouts: [tp1, tp2, pp2], seed: [0, 1], micro_batch_size: 1, global_batch_size: 8}
  - {benchmark: train_step, shape: moe-tiny, layouts: [dp2+ep2]}
  - {benchmark: all_reduce, min_size: 1KiB, max_size: 1KiB}
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    return path


def planned(suite: Path) -> Plan:
    return dry.dry_plan(make_plan(load_suite(suite), Cluster(2, 1, "cpu")))


def test_training_cases_become_dry_ones_and_all_others_are_refused_with_a_reason(suite: Path) -> None:
    plan = planned(suite)
    assert [case.id for case in plan.cases] == [
        *("dry_step/1n1/tp1-seed=0", "dry_step/1n1/tp1-seed=1"),
        *("dry_step/2n2/tp2-seed=0", "dry_step/2n2/pp2-seed=0", "dry_step/2n2/tp2-seed=1", "dry_step/2n2/pp2-seed=1"),
    ]
    reasons = {refusal.id: refusal.reason for refusal in plan.refusals if refusal.num_nodes == 2}
    assert reasons["train_step/2n2/dp2+ep2"].startswith("routing real sends what the router decides")
    assert reasons["all_reduce/2n2/1KiB-float32"].startswith("all_reduce measures a machine")
    kept = {key.partition("[")[0] for key in plan.cases[0].expected}
    assert kept <= {"peak_memory", "traffic_bytes", "collectives"}
    assert "peak_memory" in kept


def test_a_time_for_which_a_list_is_run_is_none_of_a_dry_run(suite: Path) -> None:
    suite.write_text(f"for: 2h\n{SUITE}")
    assert planned(suite).for_s == 0.0


def test_what_changes_nothing_that_is_held_or_sent_is_run_once(suite: Path) -> None:
    tasks = {case.id: dry.tasks_of(case) for case in planned(suite).cases}
    assert tasks["dry_step/2n2/tp2-seed=0"] == tasks["dry_step/2n2/tp2-seed=1"]
    assert [task.rank for task in tasks["dry_step/2n2/pp2-seed=0"]] == [0, 1]
    assert len({task for of_case in tasks.values() for task in of_case}) == 1 + 1 + 2


def known(rank: int, total: int) -> DryRank:
    return DryRank(
        rank=rank,
        memory={"total": total, "parameters": 100, "activations": total},
        peak_at="backward of the loss",
        held=[Held("parameters", "", 100), Held("activations", "layers.0", total - 100)],
        sent=[Sent("pp", "send", 1024, "float32", 2, 3), Sent("dp", "all_reduce", 512, "float32", 2, 1)],
        chain={"pp": 4},
        executed=[],
        operators=70,
        spent_s=0.5,
        process_bytes=1,
        host={"optimizer_state": 64},
        left_out=["compile is left out"],
        work=[Work("layers.*.attention", "forward", "products", 4, 1000 * (1 + rank), 30, 10)],
    )


def answered(tasks: Iterable[DryTask]) -> Iterator[tuple[DryTask, DryRank | DryRunFailed]]:
    """In another order than asked; two ranks of tp fail."""
    for task in list(tasks)[::-1]:
        is_bad = task.job.layout.tp == 2
        yield task, DryRunFailed(f"rank {task.rank}: no") if is_bad else known(task.rank, 1000 * (1 + task.rank))


@pytest.fixture
def run(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(dry, "dry_answers", answered)
    assert dry.run_dry(suite, MachineOptions("cpu", 1), tmp_path / "run") == 1  # what failed is missing
    return RunFolder.open(tmp_path / "run")


def test_rows_are_those_of_the_fullest_rank_and_say_that_they_are_dry(run: RunFolder) -> None:
    rows = derive_rows(run)
    figures = {(row.metric, *row.detail.values()): row for row in rows if row.case == "dry_step/2n2/pp2-seed=0"}
    total = figures["peak_memory", "total", "dry run"]
    assert (total.value, total.basis) == (2000, "rank 1, in backward of the loss; compile is left out")
    assert figures["host_memory", "optimizer_state", "dry run"].value == 64
    assert figures["peak_memory", "parameters", "dry run"].expected is not None
    assert figures["traffic_bytes", "pp", "dry run"].value == 3 * 1024
    assert figures["traffic_bytes", "dp", "dry run"].value == 512
    assert figures["collective_chain", "pp", "dry run"].value == 4
    assert figures["operators", "dry run"].value == 70
    of_attention = ("layers.*.attention", "forward products", "dry run")
    assert figures["operator_bytes", *of_attention].value == 40
    assert figures["operator_flops", *of_attention].value in (1000, 2000)
    assert figures["dry_run_time", "dry run"].value == 1.0
    assert all(row.detail["source"] == "dry run" for row in rows if row.value is not None and "time_" not in row.metric)
    assert not [row for row in rows if "tokens_per_s" in row.metric or row.metric in ("mfu", "step_time")]


def test_a_rank_that_fails_is_a_named_row_and_the_rest_runs(run: RunFolder) -> None:
    ended = {outcome.case: (outcome.status, outcome.reason) for outcome in run.outcomes()}
    assert ended["dry_step/2n2/tp2-seed=0"] == ("failed", "rank 0: no")
    assert ended["dry_step/1n1/tp1-seed=0"] == ended["dry_step/2n2/pp2-seed=1"] == ("ok", "")


def test_the_verdict_claims_neither_proof_nor_machine(run: RunFolder) -> None:
    said = json.loads((run.path / "verdict.json").read_text())
    assert [said[about]["word"] for about in ("measured", "proven", "machine")] == [
        *("incomplete", "not proven", "not judged"),
    ]
    assert "nothing was computed" in said["proven"]["sentence"]
    assert said["machine"]["sentence"].startswith("a dry run uses none")
    page = (run.path / "index.html").read_text()
    assert "needs most" in page
    assert "Speed: nothing was computed and nothing sent." in page
    assert not read(run).trained_with("tokens_per_s")[0].value("tokens_per_s")


def test_a_card_is_held_against_what_is_needed(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(tasks: Iterable[DryTask]) -> Iterator[tuple[DryTask, DryRank]]:
        for task in tasks:
            yield task, known(task.rank, {1: 155_000_000_000, 2: 130_000_000_000}[task.job.layout.world_size])

    monkeypatch.setattr(dry, "dry_answers", large)
    assert dry.run_dry(suite, MachineOptions(gpus_per_node=1, gpu="NVIDIA H200"), tmp_path / "run") == 0
    run = RunFolder.open(tmp_path / "run")
    shares = {row.case: row for row in derive_rows(run) if row.metric == "memory_share"}
    assert shares["dry_step/1n1/tp1-seed=0"].value == pytest.approx(155 / 141)
    assert shares["dry_step/1n1/tp1-seed=0"].basis == "of the 141 GB of NVIDIA H200"
    page = (run.path / "index.html").read_text()
    assert "0 of 6 cases fit the 141 GB of NVIDIA H200, 4 close, to be measured, 2 too large" in page


def test_of_two_dry_runs_what_is_counted_is_compared_and_not_what_they_took(run: RunFolder) -> None:
    result = CliRunner().invoke(main, ["compare", str(run.path), str(run.path)])
    assert "no time is compared, and all 44 counted figures are the same" in result.output
    assert "time of an iteration" not in result.output


def test_a_suite_in_which_nothing_trains_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("suite: s\nbenchmarks:\n  - {benchmark: all_reduce, min_size: 1KiB, max_size: 1KiB}\n")
    with pytest.raises(SuiteError, match="nothing of it can be run dry: all_reduce measures a machine"):
        dry.run_dry(path, MachineOptions("cpu", 2), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dry", "--time-limit", "5m"], "--time-limit has no effect with --dry"),
        (["--dry", "--launch", "mpirun -n 2"], "--launch has no effect with --dry"),
        (["--gpu", "NVIDIA H200"], "--gpu has no effect without --dry"),
        (["--dry", "--gpu", "NVIDIA H300"], "--gpu 'NVIDIA H300' is not in the tables"),
        (["--dry", "--gpu", "NVIDIA H200", "--device", "cpu"], "--gpu has no effect with --device cpu"),
    ],
)
def test_options_without_effect_are_mistakes(suite: Path, options: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["run", str(suite), *options])
    assert result.exit_code == 2
    assert words in result.output


def test_there_is_nothing_to_resume(run: RunFolder) -> None:
    result = CliRunner().invoke(main, ["run", "--resume", str(run.path), "--num-ranks", "1", "--device", "cpu"])
    assert result.exit_code == 2
    assert "is no run on a machine" in result.output


def test_a_suite_is_run_dry_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("suite: s\nbenchmarks:\n  - {benchmark: train_step, layouts: [dp2+zero3]}\n")
    result = CliRunner().invoke(main, ["run", "--dry", str(path), "--device", "cpu", "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert "DRY RUN" in result.output
    totals = [
        row.value for row in derive_rows(RunFolder.open(tmp_path / "run")) if row.detail.get("category") == "total"
    ]
    assert len(totals) == 1
    assert totals[0]
