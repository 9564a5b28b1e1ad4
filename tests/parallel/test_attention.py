"""One kernel for attention: which ran, where it is refused, and that it computes the same."""

from __future__ import annotations

import pytest
import torch

from clusterbench.engine.compat import attention_by
from clusterbench.errors import NotHere
from clusterbench.expected.flops import executed_by_all
from clusterbench.expected.memory import not_predicted
from clusterbench.expected.twin import twin_of
from clusterbench.job.flops import BATCHED_PRODUCTS, CAUSAL_ATTENTION
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import active_in, from_options, objection_to
from clusterbench.parallel.attention import AttentionBackend
from tests.training.jobs import make_job


def objection(backend: str, layout: str = "tp1", device: str = "cuda", **options: object) -> str | None:
    dtype, shape = options.pop("dtype", "bfloat16"), options.pop("shape", "llama-tiny-mha")
    job = make_job(layout, dtype=dtype, device=device, shape=shape)
    return objection_to(job, active_in(job.layout, from_options({"attention_backend": backend, **options})))


def test_by_default_torch_chooses() -> None:
    assert not AttentionBackend().active(ParallelLayout())
    assert objection("auto", device="cpu") is None


@pytest.mark.parametrize("backend", ["cudnn", "efficient", "flash3"])
def test_a_cpu_has_no_kernel_of_a_gpu(backend: str) -> None:
    assert objection(backend, device="cpu") == (
        f"attention_backend {backend} needs a GPU; on CPUs torch has flash and math"
    )
    assert objection(backend) is None


@pytest.mark.parametrize("backend", ["flash", "flash3", "cudnn"])
def test_kernels_of_16_bits_are_refused_in_float32(backend: str) -> None:
    assert objection(backend, dtype="float32") == (
        f"attention_backend {backend} computes in 16 bits only, not in float32; efficient takes float32, math both"
    )
    # efficient is refused where queries share keys
    assert (objection(backend, dtype="float32", shape="llama-8b") or "").endswith("; math computes in it")


def test_efficient_is_refused_in_float64() -> None:
    assert objection("efficient", dtype="float64") == (
        "attention_backend efficient does not compute in float64; math does"
    )


def test_efficient_is_refused_where_heads_share_keys() -> None:
    """Seen on an H200 with torch 2.11: "both fused kernels require query, key and value to have the same num_heads"."""
    assert objection("efficient", shape="llama-tiny") == (
        "attention_backend efficient takes as many heads of keys as of queries, and llama-tiny has 4 for 8; flash, "
        "cudnn and math take groups"
    )
    assert objection("flash", shape="llama-tiny") is None


@pytest.mark.parametrize("backend", ["cudnn", "efficient"])
def test_heads_that_a_kernel_does_not_take_are_refused_and_no_twin_has_them(backend: str) -> None:
    """torch finds "No available kernel": it fills heads up for flash attention alone."""
    assert objection(backend, shape="llama-tiny-uneven") == (
        f"attention_backend {backend} takes heads of a multiple of 8 channels in bfloat16, and llama-tiny has heads of "
        "10; flash, in bfloat16, and math take any"
    )
    assert objection("flash", shape="llama-tiny-uneven") is None
    job = make_job(dtype="bfloat16", device="cuda", shape="llama-70b")
    assert twin_of(job, [AttentionBackend(attention_backend=backend)]).shape.head_dim == 8
    assert twin_of(job, [AttentionBackend(attention_backend="flash")]).shape.head_dim == 4


@pytest.mark.parametrize("context", ["ring", "zigzag", "all_gather"])
def test_attention_of_its_own_operators_takes_no_other_kernel(context: str) -> None:
    reason = objection("flash", "cp2", context=context)
    assert reason is not None
    assert reason.startswith(f"attention_backend flash and context {context}, which calls operators of its own")
    assert objection("flash", "cp2", context="ulysses") is None


@pytest.mark.parametrize(
    ("dtype", "shape", "is_plain"),
    [
        ("float64", "llama-tiny-mha", True),
        ("float32", "llama-tiny", True),
        ("float32", "llama-tiny-mha", False),
        ("float32", "llama-tiny-uneven", True),
        ("bfloat16", "llama-tiny", False),
    ],
)
def test_attention_of_which_a_gpu_has_no_kernel_is_made_of_products(dtype: str, shape: str, is_plain: bool) -> None:
    """As an H200 with torch 2.11 ran it: activations were 2.4 times those of the formula."""
    job = make_job(dtype=dtype, device="cuda", shape=shape)
    assert ("activations" in not_predicted(job, [])) == is_plain
    kinds = {kind for kind, _ in executed_by_all([], job)}
    assert (BATCHED_PRODUCTS in kinds, CAUSAL_ATTENTION in kinds) == (is_plain, not is_plain)
    assert not_predicted(make_job(dtype=dtype, shape=shape), []) == {}, "a CPU has a kernel for each"


def test_where_torch_fills_heads_up_no_activations_are_predicted() -> None:
    """Flash attention takes multiples of 8 channels: of heads with 10 it keeps queries, keys and values of 16."""
    job = make_job(dtype="bfloat16", device="cuda", shape="llama-tiny-uneven")
    why = not_predicted(job, [])["activations"]
    assert why == "on a GPU torch fills heads of 10 channels up to 16 for attention, and keeps them so"
    assert not_predicted(make_job(dtype="bfloat16", shape="llama-tiny-uneven"), []) == {}


@pytest.mark.parametrize(("context", "is_plain"), [("ring", False), ("all_gather", False), ("ulysses", True)])
def test_attention_with_operators_of_its_own_is_not_left_to_torch(context: str, is_plain: bool) -> None:
    job = make_job("cp2", dtype="float32", device="cuda")
    active = active_in(job.layout, from_options({"context": context}))
    assert ("activations" in not_predicted(job, active)) == is_plain


def test_of_stored_scores_no_memory_is_predicted() -> None:
    job = make_job(dtype="bfloat16")
    assert "activations" in not_predicted(job, active_in(job.layout, from_options({"attention_backend": "math"})))
    assert not_predicted(job, active_in(job.layout, from_options({"attention_backend": "flash"}))) == {}


def test_the_proof_in_float64_leaves_the_kernel_to_torch_as_few_can() -> None:
    assert AttentionBackend(attention_backend="cudnn").exact() == AttentionBackend()
    assert AttentionBackend(attention_backend="math").exact() == AttentionBackend(attention_backend="math")


def test_a_torch_without_flash_attention_3_skips_the_case() -> None:
    with pytest.raises(NotHere, match="hint: install the wheel flash-attn-3, or use flash or cudnn"):
        attention_by("flash3")


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_attention_is_as_torch_would_have_it(backend: str) -> None:
    q, k, v = torch.randn(3, 2, 4, 8, 16, dtype=torch.float64)
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with attention_by(backend):
        torch.testing.assert_close(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), whole)
