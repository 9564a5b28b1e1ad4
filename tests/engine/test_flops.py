"""What the counter of FLOPs sees, by operators whose FLOPs are known by hand."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clusterbench.engine.flops import OWN, FlopCounter, multiplies
from clusterbench.job.flops import (
    ATTENTION,
    BACKWARD,
    BATCHED_PRODUCTS,
    CAUSAL_ATTENTION,
    FORWARD,
    GROUPED_PRODUCTS,
    PRODUCTS,
    UNKNOWN,
)
from clusterbench.job.passes import Executed


def counted(counter: FlopCounter) -> dict[tuple[str, str], int]:
    return {(executed.kind, executed.during): executed.flops for executed in counter.executed()}


def test_a_product_is_two_flop_for_each_row_input_and_output_and_twice_that_in_backward() -> None:
    rows, weight = torch.ones(3, 5, requires_grad=True), torch.ones(7, 5, requires_grad=True)
    with FlopCounter() as counter:
        F.linear(rows, weight).sum().backward()
    assert counter.executed() == [
        Executed("aten::mm", PRODUCTS, BACKWARD, count=2, flops=2 * 2 * 3 * 5 * 7),
        Executed("aten::mm", PRODUCTS, FORWARD, count=1, flops=2 * 3 * 5 * 7),
    ]


def test_what_is_computed_again_counts_as_backward() -> None:
    from torch.utils.checkpoint import checkpoint

    rows, weight = torch.ones(3, 5, requires_grad=True), torch.ones(5, 5, requires_grad=True)
    with FlopCounter() as counter:
        checkpoint(lambda x: (x @ weight).exp(), rows, use_reentrant=False).sum().backward()
    assert counted(counter) == {(PRODUCTS, FORWARD): 150, (PRODUCTS, BACKWARD): 3 * 150}


@pytest.mark.parametrize(("causal", "kind"), [(True, CAUSAL_ATTENTION), (False, ATTENTION)])
def test_attention_is_two_products_of_a_whole_block_and_five_in_backward(causal: bool, kind: str) -> None:
    q = torch.ones(2, 4, 6, 8, requires_grad=True)
    k, v = (torch.ones(2, 2, 6, 8, requires_grad=True) for _ in range(2))
    one_product = 2 * (2 * 4) * 6 * 6 * 8  # of all query heads: their kv heads are shared, not their work
    with FlopCounter() as counter:
        F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).sum().backward()
    assert counted(counter) == {(kind, FORWARD): 2 * one_product, (kind, BACKWARD): 5 * one_product}


@pytest.mark.parametrize("ends", [(2, 5, 9), (0, 9, 9), (2, 5, 7)])
def test_rows_of_a_grouped_product_count_up_to_the_last_groups_end(ends: tuple[int, ...]) -> None:
    rows = torch.ones(9, 16, dtype=torch.bfloat16, requires_grad=True)
    experts = torch.ones(3, 16, 8, dtype=torch.bfloat16, requires_grad=True)
    with FlopCounter() as counter:
        F.grouped_mm(rows, experts, offs=torch.tensor(ends, dtype=torch.int32)).square().sum().backward()
    forward = 2 * ends[-1] * 16 * 8
    assert counted(counter) == {(GROUPED_PRODUCTS, FORWARD): forward, (GROUPED_PRODUCTS, BACKWARD): 2 * forward}


def test_batches_of_matrices_are_a_kind_of_their_own() -> None:
    with FlopCounter() as counter:
        torch.ones(4, 2, 3) @ torch.ones(4, 3, 5)
    assert counted(counter) == {(BATCHED_PRODUCTS, FORWARD): 2 * 4 * 2 * 3 * 5}


def test_a_product_without_a_formula_is_kept_as_unknown() -> None:
    with FlopCounter() as counter:
        torch.mv(torch.ones(3, 5), torch.ones(5))
    assert counter.executed() == [Executed("aten::mv", UNKNOWN, FORWARD, count=1, flops=0)]


def test_an_operator_that_is_not_torchs_is_kept_as_unknown() -> None:
    @torch.library.custom_op("somebody::fused", mutates_args=())
    def fused(x: Tensor) -> Tensor:
        return x @ x

    with FlopCounter() as counter:
        fused(torch.ones(2, 2))
    assert counter.executed()[-1] == Executed("somebody::fused", UNKNOWN, FORWARD, count=1, flops=0)


def test_shapes_that_are_asked_for_count_nothing() -> None:
    from torch._subclasses import FakeTensorMode

    with FlopCounter() as counter, FakeTensorMode():
        torch.ones(3, 5) @ torch.ones(5, 7)
    assert counter.executed() == []


def test_no_operator_of_torch_that_multiplies_matrices_passes_unseen() -> None:
    names = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    looks_so = re.compile(
        r"mm(_|$|\d)|matmul|gemm|linear|conv\d|convolution|attention|(^|_)(mv|addmv|dot|rnn|lstm|gru)(_|$)"
    )
    missed = {
        name
        for name in names
        if name.startswith("aten::") and looks_so.search(name.split("::")[1]) and not multiplies(name)
    }
    assert missed == set()
    assert {name for name in OWN if name not in names} == set()


def test_operators_that_multiply_no_matrices_are_left_alone() -> None:
    for name in (
        "aten::mul",
        "aten::digamma",
        "aten::cummax",
        "aten::_fused_adamw_",
        "c10d::allreduce_",
        "fsdp::chunk_cat",
    ):
        assert not multiplies(name)
