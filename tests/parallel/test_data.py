"""Compressed gradients: what is sent, what is lost, and where there is no hook to compress in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterbench.expected.tolerances import PARITY_METRICS, allowed_of
from clusterbench.layout import ParallelLayout
from clusterbench.parallel.data import DataParallel, factor_numel, num_sent
from tests.ranks import run_ranks
from tests.training.jobs import make_job, parity_of, traffic_of


@pytest.mark.gloo
def test_bf16_rounds_gradients_and_nothing_else() -> None:
    evidence = run_ranks(2, parity_of, "dp2", {"compress": "bf16"}, {})[0]
    assert 1e-4 < evidence["parity_gradients"] <= 2**-7
    # uncompressed it is one rank's to the last bits
    assert max(off for key, off in evidence.items() if key.endswith("[source=float64]")) < 1e-11


@pytest.mark.gloo
@pytest.mark.parametrize("layout", ["dp2", "cp2"])
def test_powersgd_with_all_columns_is_exact(layout: str) -> None:
    evidence = run_ranks(2, parity_of, layout, {"compress": "powersgd", "powersgd_rank": 2}, {})[0]
    assert max(evidence[metric] for metric in PARITY_METRICS) < 1e-9


def with_a_factor_lost(layout: str) -> Any:
    """The first factor of each matrix is not orthogonalized."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    powerSGD_hook._orthogonalize = lambda matrices, epsilon=0: None  # type: ignore[assignment]
    return parity_of(layout, {"compress": "powersgd"}, {})


@pytest.mark.gloo
def test_powersgd_that_is_wrong_is_found_out() -> None:
    assert "does not compute what one rank computes" in run_ranks(2, with_a_factor_lost, "dp2")[0]


@pytest.mark.gloo
def test_bf16_halves_the_bytes_of_float32() -> None:
    plain = run_ranks(2, traffic_of, "dp2", {}, {"dtype": "float32"})[0][0]
    counted, formula = run_ranks(2, traffic_of, "dp2", {"compress": "bf16"}, {"dtype": "float32"})[0]
    assert counted == formula
    assert 2 * counted["dp", "all_reduce"][1] == plain["dp", "all_reduce"][1]


def test_what_powersgd_sends_of_a_matrix() -> None:
    assert factor_numel((4096, 14336), rank=4) == 4 * (4096 + 14336)
    assert factor_numel((8, 8), rank=4) == 64  # two factors would be no less
    assert factor_numel((4096,), rank=4) == 4096


@pytest.mark.gloo
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_all_that_powersgd_sends_is_counted_its_callbacks_on_other_threads_too(num_ranks: int) -> None:
    options = {"compress": "powersgd", "powersgd_rank": 2}
    for counted, formula in run_ranks(num_ranks, traffic_of, f"dp{num_ranks}", options, {}):
        assert counted == formula


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "dtype", "shape"),
    [
        ("dp2", "float64", "llama-tiny"),
        ("cp2", "float32", "llama-tiny"),
        ("dp2", "bfloat16", "llama-tiny-tied"),
        ("dp2-tp2+sp", "bfloat16", "llama-tiny"),
        ("dp2+zero1", "float32", "llama-tiny"),
        ("dp2+ep2", "float32", "moe-flat-tiny"),
        ("dp4", "float32", "llama-tiny"),
    ],
)
def test_topk_sends_the_largest_elements_and_keeps_the_others(layout: str, dtype: str, shape: str) -> None:
    num_ranks = ParallelLayout.parse(layout).world_size
    options, changes = {"compress": "topk"}, {"dtype": dtype, "shape": shape, "global_batch_size": 12}
    evidence = run_ranks(num_ranks, parity_of, layout, options, changes)[0]
    assert isinstance(evidence, dict), evidence
    assert evidence["parity_unsent"] < (1e-3 if dtype == "bfloat16" else 1e-5)  # against gradients in float64
    assert evidence["parity_largest"] < 1e-5
    assert "parity_factors" not in evidence


def spoilt(layout: str, how: str, share: float) -> dict[str, float] | str:
    """A step whose compression is wrong."""
    from clusterbench.model.top_k import TopK

    honest = TopK._largest

    def first(self: TopK, parameter: Tensor, gradient: Tensor) -> Tensor:
        kept = self.kept.setdefault(parameter, torch.zeros_like(gradient))
        gradient.add_(kept)
        at = torch.arange(self.num_sent(gradient.numel()))
        kept.copy_(gradient).index_fill_(0, at, 0)
        return at

    def forgetful(self: TopK, parameter: Tensor, gradient: Tensor) -> Tensor:
        at = honest(self, parameter, gradient)
        self.kept[parameter].zero_()
        return at

    def without_sign(self: TopK, parameter: Tensor, gradient: Tensor) -> Tensor:
        kept = self.kept.setdefault(parameter, torch.zeros_like(gradient))
        gradient.add_(kept)
        at = gradient.topk(self.num_sent(gradient.numel())).indices
        kept.copy_(gradient).index_fill_(0, at, 0)
        return at

    ways = {"first": first, "forgetful": forgetful, "without_sign": without_sign}
    TopK._largest = ways[how]  # type: ignore[method-assign]
    return parity_of(layout, {"compress": "topk", "topk_share": share}, {"dtype": "float32"})


@pytest.mark.gloo
@pytest.mark.parametrize("share", [0.01, 0.5])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("first", "dp2 does not send the largest elements: what it sends of a weight is "),
        ("without_sign", "dp2 does not send the largest elements: what it sends of a weight is "),
        ("forgetful", "dp2 loses what it does not send: 0."),
    ],
)
def test_topk_that_is_wrong_is_found_out(how: str, said: str, share: float) -> None:
    sentence = run_ranks(2, spoilt, "dp2", how, share)[0]
    assert str(sentence).startswith(said)


def test_what_topk_sends_of_a_weight() -> None:
    assert [num_sent(numel, 0.01) for numel in (1, 99, 100, 101, 4096 * 14336)] == [1, 1, 1, 2, 587203]


@pytest.mark.gloo
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_topk_sends_is_counted(num_ranks: int, dtype: str) -> None:
    changes = {"dtype": dtype, "global_batch_size": 6}
    for counted, formula in run_ranks(num_ranks, traffic_of, f"dp{num_ranks}", {"compress": "topk"}, changes):
        assert counted == formula


def test_places_that_no_int32_holds_are_refused() -> None:
    job = make_job("dp2", shape="llama-405b", dtype="float32")
    assert DataParallel(compress="topk").objection(job) is None
    wide = replace(job, shape=replace(job.shape, vocab_size=2**18))
    assert DataParallel(compress="topk").objection(wide) == (
        "compress topk sends places as int32, and embedding.weight has 4,294,967,296 elements"
    )


def test_without_ddp_there_is_nothing_to_compress() -> None:
    objection = DataParallel(compress="bf16").objection(make_job("pp2-dp2"))
    assert objection == "compress bf16 is a hook of DDP, without which pp2 reduces gradients"
    assert DataParallel(compress="bf16").objection(make_job("dp2")) is None


def test_the_tolerance_of_rounded_gradients_gives_its_reason() -> None:
    allowed = allowed_of(make_job("dp2"), [DataParallel(compress="bf16")])["parity_gradients"]
    assert (allowed.value, allowed.basis) == (2**-7, "at most; gradients are rounded before they are sent: 0.0078125")
    worst = allowed_of(make_job("dp2", dtype="float32"), [DataParallel(compress="bf16")])["parity_worst_update"]
    assert (worst.value, worst.basis) == (
        0.5,
        "at most; of a norm's few numbers some get another sign; without a step it is 1",
    )


def without_error_feedback(layout: str, rank: int) -> dict[str, float] | str:
    """What compression did not send is forgotten."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

    honest = hooks.PowerSGDState.__init__

    def forgetful(self: Any, *arguments: Any, **options: Any) -> None:
        honest(self, *arguments, **{**options, "use_error_feedback": False})

    hooks.PowerSGDState.__init__ = forgetful  # type: ignore[method-assign]
    return parity_of(layout, {"compress": "powersgd", "powersgd_rank": rank}, {"dtype": "float32"})


@pytest.mark.gloo
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_powersgd_as_it_is_timed_loses_nothing_for_good(rank: int) -> None:
    options = {"compress": "powersgd", "powersgd_rank": rank}
    evidence = run_ranks(2, parity_of, "dp2", options, {"dtype": "float32"})[0]
    assert evidence["parity_unsent"] < 1e-4
    assert evidence["parity_factors"] < 1e-5
    sentence = run_ranks(2, without_error_feedback, "dp2", rank)[0]
    assert sentence.startswith("dp2 loses what it does not send: 0.")


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "shape", "dtype"),
    [
        ("dp2", "moe-flat-tiny", "float64"),
        ("dp2", "moe-flat-tiny", "bfloat16"),
        ("dp2-tp2+sp", "moe-shared-tiny", "float32"),  # whose gradients are summed over tp once they were compressed
    ],
)
def test_powersgd_of_a_model_whose_router_decides_is_held_against_one_routed_alike(
    layout: str, shape: str, dtype: str
) -> None:
    num_ranks = ParallelLayout.parse(layout).world_size
    options = {"compress": "powersgd", "routing": "real"}
    evidence = run_ranks(num_ranks, parity_of, layout, options, {"dtype": dtype, "shape": shape})[0]
    assert evidence["parity_unsent"] < 1e-2
    assert evidence["parity_factors"] < 1e-2


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "shape", "dtype"),
    [
        ("dp2", "llama-tiny-pair", "float64"),
        ("dp2", "llama-tiny-pair", "bfloat16"),
        ("cp2+ep2", "llama-tiny-pair", "float64"),
        ("dp2-tp2+sp+ep2", "llama-tiny-pair", "float64"),
        ("dp2", "llama-tiny-lone", "float64"),
        ("dp2", "llama-tiny-lone", "float32"),
    ],
)
def test_a_router_with_fewer_independent_rows_than_experts_is_exact_too(layout: str, shape: str, dtype: str) -> None:
    num_ranks = ParallelLayout.parse(layout).world_size
    evidence = run_ranks(num_ranks, parity_of, layout, {"compress": "powersgd"}, {"dtype": dtype, "shape": shape})[0]
    assert isinstance(evidence, dict), evidence
    assert dtype != "float64" or max(evidence[metric] for metric in PARITY_METRICS) < 1e-9
