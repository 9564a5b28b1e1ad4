"""What makes a dry run quick changes nothing of what it says: torch's own fake tensors, and a first step before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from clusterbench.dry import rank as dry_step
from clusterbench.dry.processes import dry_ranks
from clusterbench.engine import quick_fakes
from clusterbench.engine.compat import fake_tensors
from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism, from_options
from clusterbench.trainers.ours import Ours
from clusterbench.training.built_step import BuiltStep
from tests.training.jobs import Case, make_job, name_of

HALF = {"dtype": "bfloat16", "seq_len": 32}
CASES: list[Case] = [
    ("tp2+sp", {}, HALF),
    ("dp4+zero3", {"shard_group_size": 2, "recompute": "selective"}, HALF),
    ("dp4+ep2+zero2", {"routing": "balanced"}, {**HALF, "shape": "moe-tiny", "micro_batch_size": 1}),
    ("cp2+zero3", {"recompute": "full"}, HALF),
]


def said_by_dry_run(case: Case) -> dict[str, Any]:
    layout, options, changes = case
    job = make_job(layout, device="cuda", **changes)
    (found,) = dry_ranks(Ours(), job, from_options(options), "megatron", [job.layout.world_size - 1])
    said = asdict(found)
    for own in ("spent_s", "process_bytes"):
        said.pop(own)
    # FSDP's buffers are made in the first step, and change size in those that follow
    held = Counter[tuple[str, str]]()
    for each in found.held:
        held[each.category, "" if each.category == "parameters" else each.made_in] += each.size_bytes
    return said | {"held": held}


def settle_by_a_step(step: BuiltStep, job: TrainingJob, every: Sequence[Parallelism]) -> None:
    step()


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_what_is_quick_says_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = said_by_dry_run(case)
    monkeypatch.setattr(quick_fakes, "QuickFakes", lambda: FakeTensorMode(allow_non_fake_inputs=True))
    monkeypatch.setattr(dry_step, "_settle", settle_by_a_step)
    slow = said_by_dry_run(case)
    assert {name for name in slow if slow[name] != quick[name]} == set()


def test_answers_are_of_tensors_that_are_alike() -> None:
    """Each line differs from the one before in one thing, and is asked twice."""
    with fake_tensors():
        whole = torch.empty(4, 8)
        asked = [
            whole,
            whole.t(),
            whole[:, :4],
            whole[:, 4:],
            whole.to(torch.bfloat16),
            torch.empty(4, 8, device="meta"),
            torch.empty(32)[:0],
        ]
        for tensor in asked * 2:
            flat = tensor.reshape(-1)
            assert (flat.numel(), flat.dtype, flat.device) == (tensor.numel(), tensor.dtype, tensor.device)
            shares = tensor.is_contiguous()
            assert (flat.untyped_storage()._cdata == tensor.untyped_storage()._cdata) == shares
        for _ in range(2):
            assert whole.sum(0, keepdim=True).shape == (1, 8)
            assert whole.sum(1).shape == (4,)
            assert [part.storage_offset() for part in whole.split(2)] == [0, 16]
            assert whole.add_(1) is whole
            assert (whole + 1).dtype == torch.float32
            assert (whole.long() + 1.5).dtype == torch.float32
            assert (whole.long() + 1).dtype == torch.int64
            assert (whole.long() + True).dtype == torch.int64
