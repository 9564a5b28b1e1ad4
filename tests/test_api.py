"""What another program may use of the package, through ``import clusterbench`` alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusterbench
from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.rows import COLUMNS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SUITE = "suite: s\nquestion: q?\nbenchmarks:\n  - {benchmark: all_reduce, max_size: 64B}\n"
TWO_RANKS = clusterbench.Cluster(1, 2, "cpu")


def named(what: str) -> set[str]:
    """What the first column of a table of docs/run_folder.md names."""
    page = (ROOT / "docs" / "run_folder.md").read_text(encoding="utf-8")
    (lines,) = re.findall(rf"^\| {what} \| holds \|\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    return {name for line in lines.splitlines() for name in re.findall("`([^`]+)`", line.split(" | ")[0])}


def test_every_column_and_every_file_of_a_run_is_described() -> None:
    assert named("column") == {*COLUMNS}
    recorded = {path.name for path in (ROOT / "reports" / "examples").glob("*-*/*")}
    assert recorded <= named("file")


@pytest.mark.gloo
def test_the_program_of_the_page_runs_with_nothing_but_the_public_names(tmp_path: Path) -> None:
    assert re.findall(r"import .*", PROGRAM) == ["import Path", "import clusterbench"]
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-W", "error", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 cases, the first is all_reduce/1n2/8B-float32\nfailed: none\n")
    assert done.stdout.endswith(
        "error: elsewhere: there is no such folder.\n"
        "hint: name the folder that 'clusterbench run' printed, e.g. reports/2026-03-02-1410-tp_scale\n"
    )
    assert done.stdout.count("all_reduce/1n2/512B-float32") == 2
    assert {path.name for path in (tmp_path / "smoke").iterdir()} <= named("file")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_ranks": 0}, "num_ranks is 0; it must be 1 or more."),
        ({"num_nodes": -1}, "num_nodes is -1; it must be 1 or more."),
        ({"num_ranks": 2.5}, "num_ranks is 2.5; it must be a whole number."),
        ({"num_ranks": "2"}, "num_ranks is '2'; it must be a whole number."),
        ({"device": "gpu"}, "device is 'gpu'; it must be 'cpu' or 'cuda'."),  # was taken for GPUs
        ({"time_limit_s": -1.0}, "time_limit_s is -1.0; it must be more than 0."),
        ({"time_limit_s": "5m"}, "time_limit_s is '5m'; it must be a number of seconds."),
        ({"time_limit_s": float("nan")}, "time_limit_s is nan; it must be more than 0."),
    ],
)
def test_a_run_refuses_numbers_that_mean_nothing(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    with pytest.raises(clusterbench.ClusterbenchError, match=f"^{re.escape(words)}"):
        clusterbench.run(tmp_path / "s.yaml", out=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ((1, 2, "tpu"), "device is 'tpu'; it must be 'cpu' or 'cuda'."),
        ((1, 0, "cpu"), "ranks_per_node is 0; it must be 1 or more."),
        ((0, 2, "cpu"), "num_nodes is 0; it must be 1 or more."),
        (
            (1, 8, "cuda", "h200-sxm-141gb"),
            "gpu_name is 'h200-sxm-141gb', as the tables have it; it must be 'NVIDIA H200', as drivers do.",
        ),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(machine: Any, words: str) -> None:
    with pytest.raises(clusterbench.ClusterbenchError, match=f"^{re.escape(words)}"):
        clusterbench.Cluster(*machine)


@pytest.mark.parametrize("given", [None, {"suite": "s"}, b"s.yaml", 5])
def test_what_is_no_path_is_refused(given: Any) -> None:
    """It ended with a TypeError of pathlib."""
    calls: list[tuple[str, Callable[[], object]]] = [
        ("suite", lambda: clusterbench.plan(given, TWO_RANKS)),
        ("suite", lambda: clusterbench.run(given)),
        ("folder", lambda: clusterbench.read(given)),
        ("folder", lambda: clusterbench.read_rows(given)),
        ("folder", lambda: clusterbench.wide_rows(given)),
    ]
    for what, call in calls:
        with pytest.raises(clusterbench.ClusterbenchError) as refused:
            call()
        assert str(refused.value) == f"{what} is {given!r}; it must be a path: text, or a pathlib.Path."
        assert refused.value.exit_code == 2


@pytest.mark.parametrize("given", [None, "cpu", 8])
def test_what_is_no_cluster_is_refused(given: Any, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    with pytest.raises(clusterbench.ClusterbenchError) as refused:
        clusterbench.plan(tmp_path / "s.yaml", given)
    assert str(refused.value) == (
        f"cluster is {given!r}; it must be a Cluster, as clusterbench.Cluster(num_nodes=1, ranks_per_node=8, "
        "device='cuda')."
    )


def test_the_page_describes_every_public_name() -> None:
    described = set(re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE))
    assert described == {*clusterbench.__all__} - {"__version__"}


RECORDED = {
    *("step_time", "tokens_per_s", "tokens_per_s_per_rank", "model_flops_per_s_per_rank", "mfu", "hfu", "peak_memory"),
    *("memory_at_rest", "traffic_bytes", "collectives", "exposed_communication", "step_part", "bubble"),
    *("longest_seq_len", "attention_time", "attention_imbalance", "expert_time", "expert_imbalance"),
    *("energy_per_token", "routing_margin", "scaling_efficiency", "scaling_loss_part"),
    *("parity_loss", "parity_gradients", "parity_parameters"),
}
"""Metrics of a training step that the first recorded runs have."""


def test_the_page_lists_every_metric_of_a_step_that_the_first_recorded_runs_lack() -> None:
    listed = PAGE.partition("## Columns and metrics added")[2]
    added = {kind.name for kind in TrainStep.metrics} - RECORDED
    assert {name for name in added if f"`{name}`" not in listed} == set()


def test_importing_it_loads_nothing_that_is_not_used() -> None:
    program = (
        "import sys, clusterbench\n"
        "clusterbench.plan, clusterbench.run, clusterbench.read, clusterbench.read_rows, clusterbench.wide_rows\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'matplotlib', 'yaml', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_mistake_raises_what_the_command_line_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = tmp_path / "s.yaml"
    suite.write_text(SUITE.replace("max_size", "max_sise"))
    with pytest.raises(clusterbench.ClusterbenchError) as planned:
        clusterbench.plan(suite, TWO_RANKS)
    with pytest.raises(clusterbench.ClusterbenchError) as run:
        clusterbench.run(suite, out=tmp_path / "run", device="cpu")
    assert str(planned.value) == str(run.value)
    assert str(run.value).startswith(f"{suite}:4: benchmark 'all_reduce' has no option 'max_sise'.")
    assert run.value.exit_code == 2
    suite.write_text(SUITE)
    with pytest.raises(clusterbench.ClusterbenchError, match="exists and is not empty"):
        clusterbench.run(suite, out=tmp_path, device="cpu")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(clusterbench.ClusterbenchError, match=r"give it out=FOLDER"):
        clusterbench.run(suite)


def test_a_plan_is_made_for_a_machine_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    plan = clusterbench.plan(str(tmp_path / "s.yaml"), clusterbench.Cluster(2, 8, "cuda", "NVIDIA H100 80GB HBM3"))
    assert {case.world_size for case in plan.cases} == {16}


def test_a_recorded_run_is_read() -> None:
    reading = clusterbench.read(ROOT / "reports" / "examples" / "tp_scale-cpu")
    assert {history.status for history in reading.histories} == {"ok"}
    assert len(clusterbench.read_rows(ROOT / "reports" / "examples" / "tp_scale-cpu")) == len(reading.rows)
