"""Which steps multiply in float8, and which parts of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from clusterbench.model.modules import Linear
from clusterbench.parallel.float8 import Float8
from clusterbench.training.assemble import assemble
from tests.training.jobs import make_job, objection_to


@pytest.mark.parametrize(
    ("layout", "options", "changes", "reason"),
    [
        ("tp1", {}, {}, "float8 rowwise rounds what is multiplied in bfloat16, and dtype is float64"),
        (
            "tp2",
            {},
            {"dtype": "bfloat16"},
            "float8 rowwise and tp2: weights are DTensors there, for which torch knows no product in float8",
        ),
        (
            "cp2",
            {},
            {"dtype": "bfloat16", "micro_batch_size": 1},
            "float8 products take multiples of 16, and the tokens of a micro-batch on a rank are 8",
        ),
        (
            "tp1",
            {"compile": True},
            {"dtype": "bfloat16"},
            "float8 rowwise and compile: compiled for a CPU (torch 2.13), such products are not finite",
        ),
    ],
)
def test_what_cannot_be_says_why(
    layout: str, options: dict[str, object], changes: dict[str, object], reason: str
) -> None:
    assert objection_to((layout, {"float8": "rowwise", **options}, changes)) == reason


def test_on_a_gpu_it_can_be_compiled() -> None:
    options = {"float8": "tensorwise", "compile": True}
    assert objection_to(("tp1", options, {"dtype": "bfloat16", "device": "cuda"})) is None


@pytest.mark.parametrize(("shape", "number"), [("llama-tiny", 7), ("moe-shared-tiny", 4)])
def test_projections_are_in_float8_and_head_router_and_experts_are_not(shape: str, number: int) -> None:
    job = make_job(shape=shape, dtype="bfloat16")
    assembly = assemble(job, [Float8(float8="tensorwise")], None, torch.arange(16), torch.device("cpu"))
    (decoder,) = assembly.decoders
    linear = {name: module for name, module in decoder.named_modules() if isinstance(module, Linear)}
    in_float8 = {name for name, module in linear.items() if module.product is not F.linear}
    assert len(in_float8) == number * job.shape.num_layers
    assert {name.split(".")[-1] for name in linear.keys() - in_float8} >= {"head"}
    assert all(".attention." in name or ".feed_forward." in name for name in in_float8)
