"""A GPU's step as the product dry-runs it, on CPU tensors, is the one on true fake CUDA tensors, for 8B in bfloat16."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterbench.dry import objection
from clusterbench.dry.processes import DryRunFailed, DryTask, dry_answers
from clusterbench.job import TrainingJob
from clusterbench.job.dry import DryRank
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import from_options
from clusterbench.shape import named_shape
from clusterbench.trainers.ours import Ours
from tests.dry.fake_cuda import build_library, dry_on_cuda
from tests.share import some_of

Case = tuple[str, int, dict[str, Any], int, int]
"""Layout, rank, options, layers, micro-batches."""

BALANCED = {"routing": "balanced"}
OVERLAPPED = {**BALANCED, "expert_overlap": True}

# Layers are alike and each costs the same again, so of 32 there are as few as tell the first from the last, or as have
# one for each stage; one case is whole.
EVERY: list[Case] = [
    ("tp1", 0, {}, 32, 1),
    ("tp1", 0, {"recompute": "full"}, 3, 2),
    ("dp8", 7, {}, 2, 2),
    ("dp8", 7, {"compress": "bf16"}, 2, 1),
    ("dp8+zero1", 3, {}, 2, 1),
    ("dp8+zero2", 0, {}, 2, 2),
    ("dp8+zero3", 0, {"recompute": "selective"}, 3, 1),
    ("dp8+zero3", 3, {"shard_group_size": 4}, 3, 1),
    ("dp8+zero3", 3, {"offload": True}, 3, 1),
    ("dp4-tp2+sp+zero2", 3, {"offload": True, "recompute": "full"}, 3, 2),
    ("dp128-tp8+sp+zero3", 1023, {}, 3, 1),
    ("tp8", 7, {}, 2, 1),
    ("tp8", 7, {"loss_parallel": False}, 2, 1),
    ("tp8+sp", 1, {"recompute": "full"}, 2, 1),
    *(("cp8", 1, {"context": kind}, 2, 1) for kind in ("zigzag", "ring", "all_gather", "ulysses")),
    *(("pp4", 3, {"schedule": kind}, 4, 4) for kind in ("naive", "gpipe", "1f1b")),
    *(("pp4", 0, {"schedule": kind}, 8, 4) for kind in ("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble")),
    ("pp4", 3, {"schedule": "zbv"}, 8, 4),
    ("pp4", 0, {"schedule": "dualpipev"}, 8, 8),
    ("dp8+ep8", 7, BALANCED, 2, 1),
    ("dp8+ep8", 7, OVERLAPPED, 2, 1),
    ("dp8+ep4+zero3", 7, BALANCED, 2, 1),
    ("pp4-dp16-cp2-tp8+sp+zero2", 1023, {"recompute": "full"}, 4, 4),
    ("dp64-cp2-tp8+sp+zero3", 1023, {"context": "ulysses", "shard_group_size": 16}, 2, 1),
]


def name_of(case: Case) -> str:
    layout, rank, options, _, _ = case
    return " ".join([layout, f"rank={rank}", *(f"{name}={value}" for name, value in options.items())])


CASES = some_of(EVERY, name_of)

PINNED = re.search(r"^torch==(.*)$", Path("constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
assert PINNED
pytestmark = [
    pytest.mark.gloo,
    pytest.mark.timeout(900),  # the first test waits for all ranks, 40 s of two free cores
    pytest.mark.skipif(
        torch.__version__.partition("+")[0] != PINNED[1] or torch.version.cuda is not None,
        reason=f"does not apply: made for torch {PINNED[1]} without CUDA, and this is {torch.__version__}",
    ),
]


def task_of(case: Case) -> DryTask:
    layout, rank, options, num_layers, num_micro_batches = case
    parsed, every = ParallelLayout.parse(layout), from_options(options)
    shape = replace(named_shape("mixtral-8x7b" if parsed.degree("ep") > 1 else "llama-8b"), num_layers=num_layers)
    job = TrainingJob(shape, parsed, 4096, num_micro_batches * parsed.dp, 1, "bfloat16", device="cuda")
    assert objection(job, every) is None
    return DryTask(Ours(), job, every, "megatron", rank)


def flops_of(rank: DryRank) -> dict[tuple[str, str, str], int]:
    """By part of the model, forward or backward, and kind of operator."""
    return {(work.where, work.during, work.kind): work.flops for work in rank.work}


Answers = dict[DryTask, DryRank | DryRunFailed]


@pytest.fixture(scope="module")
def tasks() -> list[DryTask]:
    return [task_of(case) for case in CASES]


@pytest.fixture(scope="module")
def on_cpu(tasks: Sequence[DryTask]) -> Answers:
    return dict(dry_answers(tasks))


@pytest.fixture(scope="module")
def on_cuda(tasks: Sequence[DryTask], tmp_path_factory: pytest.TempPathFactory) -> Answers:
    library = build_library(tmp_path_factory.mktemp("library"))
    return dict(zip(tasks, dry_on_cuda(library, tasks), strict=True))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_cpu_tensors_with_cudas_operators_stand_for_cuda_tensors(case: Case, on_cpu: Answers, on_cuda: Answers) -> None:
    dry, true = on_cpu[task_of(case)], on_cuda[task_of(case)]
    assert isinstance(true, DryRank), true
    assert isinstance(dry, DryRank), dry
    assert dry.memory == pytest.approx(true.memory, rel=1e-3)
    assert dry.host == pytest.approx(true.host, rel=1e-3)
    assert dry.sent == true.sent
    assert (dry.chain, dry.peak_at) == (true.chain, true.peak_at)
    assert flops_of(dry) == flops_of(true)
    assert sum(work.moved_bytes for work in dry.work) == pytest.approx(
        sum(work.moved_bytes for work in true.work), rel=1e-3
    )
    # Under cp a CUDA rank copies its log-sum-exps together, which a CPU's operator takes as they lie.
    # Beside a host a number that a loss on parts of the vocabulary puts into a tensor is one of its own.
    rel = 0.03 if "cp" in case[0] else 0.02 if dry.host and "tp" in case[0] else 0
    assert dry.operators == pytest.approx(true.operators, rel=rel)
