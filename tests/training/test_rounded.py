"""Weights are rounded to the dtype of the arithmetic once a step, and everything follows as if in every micro-batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterbench.engine.compat import TorchDispatchMode
from clusterbench.job import has_copy as job_says
from clusterbench.parallel import from_options
from clusterbench.training import assemble
from clusterbench.training.step import TrainingStep
from tests.share import some_of
from tests.training.jobs import Case, Together, make_job, make_rig, name_of

HALF = {"dtype": "bfloat16"}
MOE, TIED = {"shape": "moe-shared-tiny"}, {"shape": "llama-tiny-tied"}
EIGHT = {"micro_batch_size": 1, "global_batch_size": 8}


class Casts(TorchDispatchMode):
    """Counts the operators that make a tensor of another dtype from one of so many elements or more."""

    def __init__(self, at_least: int) -> None:
        super().__init__()
        self.at_least, self.found = at_least, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].numel() >= self.at_least:
            self.found[f"{args[0].dtype} to {result.dtype}"] += result.dtype != args[0].dtype
        if func is torch.ops.aten._foreach_copy_.default:
            self.found["all at once"] += 1
        return result


def casts_of(num_micro_batches: int, options: dict[str, Any], changes: dict[str, Any]) -> tuple[dict[str, int], int]:
    """Casts of tensors as large as matrices in a second step, and how many matrices there are.

    Without routers', which are as small as activations of one token.
    """
    job = make_job(
        "tp1", **{**HALF, "seq_len": 1, "micro_batch_size": 1, "global_batch_size": num_micro_batches, **changes}
    )
    step = TrainingStep(job, from_options(options), None, torch.device("cpu"))
    step()
    matrices = [weight for weight in step.weights if weight.value.dim() > 1 and "router" not in weight.name]
    with Casts(min(weight.value.numel() for weight in matrices)) as casts:
        step()
    return +casts.found, len(matrices)


@pytest.mark.parametrize(
    ("options", "changes"), [({}, {}), ({}, TIED), ({"recompute": "full"}, {}), ({"recompute": "selective"}, MOE)]
)
def test_casts_are_as_many_whatever_the_number_of_micro_batches(
    options: dict[str, Any], changes: dict[str, Any]
) -> None:
    casts, matrices = casts_of(4, options, changes)
    assert casts == casts_of(2, options, changes)[0]
    assert casts["all at once"] == 1
    # the first gradient of each is made as wide as what is kept of it
    assert casts["torch.bfloat16 to torch.float32"] == matrices + (changes == TIED)
    assert "torch.float32 to torch.bfloat16" not in casts


EVERY: list[Case] = [
    *(("tp1", {}, changes) for changes in ({}, TIED, MOE)),
    *(("tp1", {"recompute": again}, {}) for again in ("full", "selective")),
    *(("tp1", {"loss_chunks": 4}, changes) for changes in ({}, TIED)),
    ("tp1", {"float8": "tensorwise"}, {}),
    ("dp2", {}, {}),
    ("dp2", {}, TIED),
    ("dp2+zero1", {"compress": "bf16"}, {}),
    ("tp2+sp", {}, {}),
    ("tp2", {}, TIED),
    ("tp2", {}, {"shape": "llama-tiny-mqa"}),
    ("cp2", {"recompute": "full"}, {}),
    ("dp2+ep2", {"expert_overlap": True}, {"shape": "moe-tiny"}),
    ("dp2+ep2+zero3", {}, {"shape": "moe-tiny"}),
    *(("pp2", {"schedule": schedule}, EIGHT) for schedule in ("1f1b", "interleaved_zero_bubble", "zbv")),
    ("pp2", {}, {**EIGHT, **TIED}),
]
CASES = some_of(EVERY, name_of)


def steps_of(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> list[dict[str, Tensor]]:
    """Weights, gradients and loss after three steps: of a model with copies, and of one that rounds where it uses."""
    job = make_job(layout, **HALF, **changes)
    rig, every, found = make_rig(job.layout), from_options(options), list[dict[str, Tensor]]()
    for has_copy in (job_says, lambda name, job: False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(assemble, "has_copy", has_copy)
            step = TrainingStep(job, every, rig.grid, rig.device)
        for _ in range(3):
            loss = step()
        found.append({"loss": loss, **{weight.name: weight.value for weight in step.weights}})
        found[-1] |= {f"gradient of {weight.name}": weight.gradient for weight in step.weights}
    return found


AS_BEFORE = Together(steps_of, CASES)


@pytest.mark.gloo
@pytest.mark.parametrize("case", CASES, ids=map(name_of, CASES))
def test_a_step_is_that_of_weights_rounded_where_they_are_used(case: Case) -> None:
    # to the bit, but for a table that is the head's, too: its gradients are added up in another order
    apart = 1e-6 if TIED["shape"] in case[2].values() else 0.0
    for with_copies, without in AS_BEFORE(case):
        assert with_copies.keys() == without.keys()
        for name, expected in without.items():
            assert (with_copies[name] - expected).norm() <= apart * expected.norm(), name
