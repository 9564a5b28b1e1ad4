"""Products that send in pieces compute and send what others do; a CPU stands in for GPUs by torch's own fallbacks."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pytest

from clusterbench.benchmarks.train_step import TrainStep, _objection_to_fake
from clusterbench.cluster import Cluster
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import active_in, from_options, objection_to
from clusterbench.parallel.compile import Compile
from clusterbench.torch_release import torch_release
from clusterbench.types import Place
from tests.ranks import run_ranks
from tests.training.jobs import expected, make_job, make_rig, parity_of

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, with which torch compiles on a CPU")

OPTIONS = {"compile": True, "async_tp": True}
HALF = {"dtype": "bfloat16"}


def with_operators_for_a_cpu() -> Any:
    """Has torch fuse products as on a GPU: its fallbacks gather and multiply, or multiply and sum, one after the other.

    Returns the library that holds them, which has to be kept.
    """
    import torch
    import torch.distributed._symmetric_memory as fused

    torch.distributed.is_nccl_available = lambda: True
    if torch_release() > (2, 13):  # which no longer asks whether memory was shared but for a device that can
        fused.is_symm_mem_enabled_for_group = lambda group_name: True
    library = torch.library.Library("symm_mem", "IMPL")  # type: ignore[no-untyped-call]
    for name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
        library.impl(name, getattr(fused, f"_{name}_fallback"), "CPU")  # type: ignore[no-untyped-call]
    return library


def proven(layout: str, changes: dict[str, Any]) -> Any:
    library = with_operators_for_a_cpu()
    evidence = parity_of(layout, OPTIONS, changes)
    del library
    return evidence


def sent(layout: str, changes: dict[str, Any], fuses: bool = True) -> Any:
    """What a step sent and should send, by axis and op, and how often within a product; or why it is wrong."""
    import torch._inductor.config

    from clusterbench.engine.flops import FlopCounter
    from clusterbench.engine.traffic import TrafficCounter
    from clusterbench.errors import WrongResult
    from clusterbench.training.passes import _traffic_of
    from clusterbench.training.step import TrainingStep

    library = with_operators_for_a_cpu() if fuses else None
    torch._inductor.config.force_disable_caches = not fuses  # else what another test compiled may be taken
    job = make_job(layout, **changes)
    rig, every = make_rig(job.layout), from_options(OPTIONS)
    step = TrainingStep(job, every, rig.grid, rig.device)
    step()
    counter = TrafficCounter(rig.grid.names())
    try:
        _traffic_of(step, counter, FlopCounter())
    except WrongResult as error:
        return str(error)
    finally:
        del library
    totals = {key: (total.count, total.size_bytes) for key, total in counter.totals().items()}
    within = Counter((seen.axis, seen.op) for seen in counter.collectives if seen.is_in_product)
    return totals, expected(job, every, rig.grid.rank("pp")), dict(within)


@pytest.mark.in_turn
@pytest.mark.matrix
@pytest.mark.gloo
@needs_compiler
@pytest.mark.parametrize(
    ("layout", "changes"), [("tp2+sp", {"dtype": "float32"}), ("tp2+sp", HALF)], ids=["float32", "bfloat16"]
)
def test_a_step_whose_products_send_equals_one_rank(layout: str, changes: dict[str, Any]) -> None:
    for evidence in run_ranks(2, proven, layout, changes):
        assert isinstance(evidence, dict), evidence


@pytest.mark.in_turn
@pytest.mark.gloo
@needs_compiler
def test_what_products_send_is_counted_as_if_they_did_not() -> None:
    job = make_job("tp2+sp", **HALF)
    times = job.gradient_accumulation_steps * job.num_layers
    for counted, formula, within in run_ranks(2, sent, "tp2+sp", HALF):
        assert counted == formula
        # forward: into and out of attention and feed-forward; backward: as often each of what comes the other way
        assert within["tp", "all_gather"] >= 2 * times
        assert within["tp", "reduce_scatter"] >= 2 * times


@pytest.mark.in_turn
@pytest.mark.gloo
@needs_compiler
def test_a_step_is_wrong_of_which_no_product_sends() -> None:
    for said in run_ranks(2, sent, "tp2+sp", HALF, False):
        assert "was to send within products (async_tp), and no product did on rank" in said


@pytest.mark.parametrize(
    ("layout", "options", "device", "why"),
    [
        ("tp2+sp", {"async_tp": True}, "cuda", "it needs compile: true"),
        ("tp2", OPTIONS, "cuda", "tp2 has no +sp"),
        ("dp2", OPTIONS, "cuda", "dp2 has no +sp"),
        ("tp2+sp", OPTIONS, "cpu", "torch has no such operators for a CPU"),
        ("tp2+sp", {**OPTIONS, "float8": "tensorwise"}, "cuda", "async_tp and float8"),
        ("tp2+sp", OPTIONS, "cuda", None),
    ],
)
def test_what_cannot_send_within_products_is_refused(
    layout: str, options: dict[str, Any], device: str, why: str | None
) -> None:
    job = make_job(layout, device=device, **HALF)
    said = objection_to(job, active_in(ParallelLayout.parse(layout), from_options(options)))
    assert (said is None) if why is None else (said is not None and why in said)


def test_a_rank_alone_has_nobody_whose_memory_it_could_reach() -> None:
    job = make_job("tp2+sp", device="cuda", **HALF)
    point = {"layout": "tp2+sp", "rank_order": "megatron"}
    why = _objection_to_fake(point, job, active_in(job.layout, from_options(OPTIONS)))
    assert why == "communication fake has no other ranks, whose memory async_tp reaches"


def test_a_dry_run_is_of_the_plain_step_and_says_so() -> None:
    (compiled,) = (each for each in from_options(OPTIONS) if isinstance(each, Compile))
    plain, said = compiled.without_data()
    assert plain == Compile()
    assert said.startswith("this step is not compiled")


@pytest.mark.parametrize(("sharing", "why"), [(1, None), (4, "async_tp needs a GPU for each rank, and 4 share one")])
def test_ranks_that_share_a_gpu_are_refused(sharing: int, why: str | None) -> None:
    place = Place(Cluster(1, 2, "cuda", "NVIDIA H200", ranks_per_gpu=sharing), 1)
    benchmark = TrainStep(
        shape="llama-tiny",
        layouts=("tp2+sp",),
        seq_len=32,
        global_batch_size=4,
        dtype="bfloat16",
        shared_by=from_options(OPTIONS),
    )
    (point,) = benchmark.points(place)
    assert benchmark.objection(point, place) == why
