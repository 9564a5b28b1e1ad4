"""A run whose ranks shared GPUs has proofs, bytes and counts, and nothing of it is fast or slow."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterbench import derive
from clusterbench.benchmarks import benchmarks
from clusterbench.cases import Reading
from clusterbench.compare import compare_runs
from clusterbench.diagnoses import examine
from clusterbench.launch.worker import _Worker
from clusterbench.measured.speed import TIMED, TIMED_UNITS
from clusterbench.run_folder import RunFolder
from clusterbench.verdict import verdict

EXAMPLE = Path(__file__).parents[2] / "reports/examples/layouts_5d-cpu"
REAL = {"peak_memory", "memory_at_rest", "traffic_bytes", "collectives", "parity_loss", "parity_gradients"}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The run of the example as if two of its ranks had each GPU."""
    folder = tmp_path / "shared"
    shutil.copytree(EXAMPLE, folder)
    first, *cases = (folder / "plan.jsonl").read_text().splitlines(keepends=True)
    plan = json.loads(first)
    plan["cluster"]["ranks_per_gpu"] = 2
    (folder / "plan.jsonl").write_text("".join([json.dumps(plan) + "\n", *cases]))
    return folder


def reading_of(folder: Path) -> Reading:
    return derive.read(RunFolder.open(folder))


def test_no_figure_rests_on_a_clock_and_all_others_are_there(shared: Path) -> None:
    rows = reading_of(shared).rows
    alone = reading_of(EXAMPLE).rows
    left = {row.metric for row in rows if row.value is not None}
    assert left >= REAL
    assert not {"step_time", "tokens_per_s", "mfu", "scaling_efficiency", "time_cv", "bubble"} & left
    assert {row.metric for row in alone if row.value is not None} - left == {
        *("step_time", "tokens_per_s", "tokens_per_s_per_rank", "model_flops_per_s_per_rank", "scaling_efficiency"),
        *("scaling_loss_part", "step_part", "exposed_communication", "bubble", "expert_time", "attention_time"),
        *("attention_imbalance", "time_cv", "time_max_over_median"),
    }
    void = [row for row in rows if row.metric == "step_time"]
    assert len(void) == 32
    assert {row.basis for row in void} == {"void: 2 ranks share each GPU"}


def test_every_metric_that_rests_on_a_clock_is_known_as_one() -> None:
    """A new one with a unit of its own would slip through."""
    counted = {"B", "1", "tokens", "FLOP"}
    units = {kind.unit for benchmark in benchmarks().values() for kind in benchmark.metrics}
    assert units - TIMED_UNITS - {"C"} <= counted
    assert {kind.name for benchmark in benchmarks().values() for kind in benchmark.metrics} >= TIMED


def test_nothing_is_said_of_the_machine(shared: Path) -> None:
    reading = reading_of(shared)
    answers = examine(reading)
    judged = verdict(reading, answers)
    assert judged.machine.word == "NOT JUDGED"
    assert judged.machine.sentence == (
        "ranks share a GPU, so no time is that of a machine; it takes a run with one rank a GPU"
    )
    assert judged.proven.word == "PROVEN"
    assert not reading.unsteady


def test_a_comparison_holds_no_times(shared: Path) -> None:
    compared = compare_runs(shared, EXAMPLE)
    assert not {difference.figure.kind.unit for difference in compared.differences} & TIMED_UNITS


@pytest.mark.parametrize(("ranks_per_gpu", "gpus"), [(1, [0, 1, 0, 1]), (2, [0, 0, 1, 1]), (4, [0, 0, 0, 0])])
def test_neighbours_share_a_gpu(monkeypatch: Any, ranks_per_gpu: int, gpus: list[int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr("clusterbench.launch.worker.pci_address", lambda device: "nowhere")
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    for local_rank, gpu in enumerate(gpus):
        worker = _Worker.__new__(_Worker)
        worker.start = SimpleNamespace(device="cuda", ranks_per_gpu=ranks_per_gpu, environment={})  # type: ignore[assignment]
        worker.place = SimpleNamespace(local_rank=local_rank)  # type: ignore[assignment]
        assert worker.open_device() == torch.device("cuda", gpu)


def test_a_gpu_that_is_lost_costs_its_neighbours_no_rank(monkeypatch: Any) -> None:
    def lost(device: torch.device) -> str:
        raise RuntimeError("CUDA error: an illegal instruction was encountered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr("clusterbench.launch.worker.pci_address", lost)
    worker = _Worker.__new__(_Worker)
    worker.start = SimpleNamespace(device="cuda", ranks_per_gpu=1, environment={})  # type: ignore[assignment]
    worker.place = SimpleNamespace(local_rank=1)  # type: ignore[assignment]
    assert worker.open_device() == torch.device("cuda", 1)


def test_each_rank_is_a_host_to_nccl_unless_the_user_says_which(monkeypatch: Any) -> None:
    worker = _Worker.__new__(_Worker)
    worker.host, worker.rank = "gpu-01", 3
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    worker.have_own_host()
    assert os.environ["NCCL_HOSTID"] == "gpu-01-3"
    monkeypatch.setenv("NCCL_HOSTID", "mine")
    worker.have_own_host()
    assert os.environ["NCCL_HOSTID"] == "mine"
