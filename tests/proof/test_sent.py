"""Gradients that a compression sent in another dtype than was asked for are wrong, however near they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.training.jobs import parity_of

pytestmark = pytest.mark.gloo


def with_float16(layout: str, dtype: str) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    default_hooks.bf16_compress_hook = default_hooks.fp16_compress_hook
    return parity_of(layout, {"compress": "bf16"}, {"dtype": dtype})


def with_all_rounded(layout: str) -> Any:
    """Behind the last backward, on the ranks of a layout: they have it in bfloat16, and nobody asked."""
    from clusterbench.training.step import TrainingStep

    honest = TrainingStep.forward_backward

    def rounding(self: Any) -> Any:
        loss = honest(self)
        for weight in self.weights if self.grid and self.job.dtype == "bfloat16" else ():
            weight.gradient.copy_(weight.gradient.bfloat16())
        return loss

    TrainingStep.forward_backward = rounding  # type: ignore[method-assign]
    return parity_of(layout, {}, {"dtype": "bfloat16"})


@pytest.mark.parametrize("layout", ["pp2", "tp2+sp", "dp2+zero2"])
def test_gradients_that_are_rounded_unasked_are_wrong(layout: str) -> None:
    for said in run_ranks(2, with_all_rounded, layout):
        assert said.startswith(
            f"{layout} rounds gradients to bfloat16, which nothing asks for: 100% of the gradient of "
        )


def healthy(layout: str, dtype: str, shape: str) -> Any:
    return parity_of(layout, {"compress": "bf16"}, {"dtype": dtype, "shape": shape})


def of_seed(seed: int) -> Any:
    return parity_of("dp4", {"compress": "bf16"}, {"dtype": "float32", "shape": "moe-tiny", "seed": seed})


@pytest.mark.parametrize("seed", [13, 15])
def test_a_norm_of_which_rounding_turns_one_sign_is_right(seed: int) -> None:
    for evidence in run_ranks(4, of_seed, seed):
        assert isinstance(evidence, dict), evidence


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_float16_in_the_place_of_bfloat16_is_wrong(dtype: str) -> None:
    for said in run_ranks(2, with_float16, "dp2", dtype):
        assert said.startswith("dp2 does not send gradients in bfloat16: ")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("layout", "shape"), [("dp2-tp2+sp", "llama-tiny-tied"), ("dp2-cp2+zero1", "llama-tiny"), ("dp4+ep2", "moe-tiny")]
)
def test_bfloat16_is_what_it_is(layout: str, dtype: str, shape: str) -> None:
    for evidence in run_ranks(4, healthy, layout, dtype, shape):
        assert isinstance(evidence, dict), evidence
