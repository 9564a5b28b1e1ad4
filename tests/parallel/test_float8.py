"""Which steps multiply in float8, and which parts of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clusterbench.errors import NotHere
from clusterbench.expected.twin import twin_of
from clusterbench.model.assembly import Assembly
from clusterbench.model.modules import Linear
from clusterbench.parallel.float8 import Float8
from clusterbench.shape import named_shape
from clusterbench.training.assemble import assemble
from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig, objection_to, parity_of


@pytest.mark.parametrize(
    ("layout", "options", "changes", "reason"),
    [
        ("tp1", {}, {}, "float8 rowwise rounds what is multiplied in bfloat16, and dtype is float64"),
        (
            "tp8",
            {},
            {"dtype": "bfloat16", "shape": "llama-tiny-narrow"},
            "float8 products take multiples of 16, and the channels of queries on a rank are 8",
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
        (
            "pp2",
            {"schedule": "zbv"},
            {"dtype": "bfloat16", "micro_batch_size": 2},
            "float8 rowwise and zbv: it splits backward, and a float8 product has both of its gradients at once, so "
            "that each would be computed twice; 1f1b and interleaved_1f1b do not",
        ),
    ],
)
def test_what_cannot_be_says_why(
    layout: str, options: dict[str, object], changes: dict[str, object], reason: str
) -> None:
    assert objection_to((layout, {"float8": "rowwise", **options}, changes)) == reason


def test_a_gpu_without_such_products_skips_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an A100 it failed within torch, where matmul says that the device has none."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    job, float8 = make_job(dtype="bfloat16"), Float8(float8="tensorwise")
    assembly = Assembly([nn.Module()], None, job, torch.device("cuda"))  # type: ignore[list-item, arg-type]
    assembly.decoders = []
    with pytest.raises(NotHere, match="are those of NVIDIA GPUs since the L4 and the H100, and this device has none"):
        float8.apply(assembly)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    float8.apply(assembly)


@pytest.mark.parametrize(("layout", "head_dim", "seq_len"), [("tp2", 8, 16), ("tp4", 16, 16), ("cp2-tp2", 8, 32)])
def test_the_twin_has_sizes_of_which_products_can_be_taken(layout: str, head_dim: int, seq_len: int) -> None:
    job = make_job(layout, dtype="bfloat16")
    twin = twin_of(job, [Float8(float8="tensorwise")])
    assert (twin.shape.head_dim, twin.seq_len) == (head_dim, seq_len)
    assert Float8(float8="tensorwise").objection(twin) is None
    assert twin_of(job, [Float8()]).shape.head_dim == 8


@pytest.mark.parametrize(
    ("shape", "tp", "head_dim", "width"),
    [("llama-405b", 2, 4, 512), ("llama-405b", 8, 16, 1024), ("llama-8b", 2, 8, 256), ("llama1-30b", 2, 8, 416)],
)
def test_the_twin_is_no_larger_than_products_need(shape: str, tp: int, head_dim: int, width: int) -> None:
    """Of llama-405b tp2 it was 2048 wide, and healthy steps were 0.14 off in the norm of the second step."""
    job = replace(make_job(f"tp{tp}", dtype="bfloat16"), shape=named_shape(shape))
    twin = twin_of(job, (Float8(float8="rowwise"),))
    assert (twin.shape.head_dim, twin.shape.hidden_size) == (head_dim, width)


@pytest.mark.gloo
def test_a_healthy_step_of_many_heads_is_proven() -> None:
    for evidence in run_ranks(2, _parity_of_many_heads):
        assert evidence["parity_second_norm"] < 0.05


def _parity_of_many_heads() -> Any:
    from clusterbench.parallel import from_options
    from clusterbench.proof.parity import check_parity
    from clusterbench.trainers import trainer_of

    job = replace(make_job("tp2+sp", dtype="bfloat16", seq_len=32), shape=named_shape("llama-405b"))
    rig = make_rig(job.layout)
    return check_parity(trainer_of({}), job, from_options({"float8": "rowwise"}), rig.grid, rig.device)


def test_on_a_gpu_it_can_be_compiled() -> None:
    options = {"float8": "tensorwise", "compile": True}
    for layout in ("tp1", "tp2+sp"):
        assert objection_to((layout, options, {"dtype": "bfloat16", "device": "cuda"})) is None


def without_sums(layout: str) -> str | dict[str, float]:
    """What is said of products of which each rank takes its own part of a sum for the whole."""
    from torch.distributed.tensor import Replicate

    from clusterbench.model import float8

    float8.Partial = Replicate  # type: ignore[assignment,misc]
    return parity_of(layout, {"float8": "tensorwise"}, {"dtype": "bfloat16"})


@pytest.mark.gloo
def test_a_part_of_a_sum_that_is_taken_for_the_whole_is_found() -> None:
    for said in run_ranks(2, without_sums, "tp2"):
        assert str(said).startswith("tp2 does not compute what one rank computes: ")


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
