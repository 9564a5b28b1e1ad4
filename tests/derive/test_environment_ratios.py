"""One variable at a time, against its first value, and nothing else that differs."""

from __future__ import annotations

import pytest

from clusterbench.derive.environment_ratios import environment_ratio_rows
from clusterbench.rows import Row
from tests.report.synthetic import plain_row as row

SIZE = {"size_bytes": 1024, "dtype": "float32"}


def ratios(*rows: Row) -> dict[str, float | None]:
    return {row.detail["part"]: row.value for row in environment_ratio_rows(rows)}


def test_a_variable_is_held_against_its_first_value() -> None:
    near = row("all_reduce", "busbw", 40e9, {"NCCL_NET_GDR_LEVEL": "SYS", **SIZE}, low=39e9, high=50e9)
    far = row("all_reduce", "busbw", 10e9, {"NCCL_NET_GDR_LEVEL": "LOC", **SIZE}, low=5e9, high=13e9)
    (ratio,) = environment_ratio_rows([near, far])
    assert (ratio.case, ratio.metric, ratio.unit) == (far.case, "environment_ratio", "fraction")
    assert (ratio.value, ratio.low) == (0.25, 0.1)
    assert ratio.high == pytest.approx(1 / 3)
    assert ratio.detail == {"category": "busbw", "part": "NCCL_NET_GDR_LEVEL=LOC/SYS"}
    assert ratio.basis == (
        "busbw with NCCL_NET_GDR_LEVEL=LOC over that with NCCL_NET_GDR_LEVEL=SYS: whether cards reach GPU memory "
        "themselves (GPUDirect RDMA), by their distance"
    )


def test_three_values_give_two_ratios() -> None:
    rows = [row("x", "bandwidth", value, {"NCCL_IB_TC": tc}) for tc, value in (("0", 8.0), ("106", 4.0), ("4", 2.0))]
    assert ratios(*rows) == {"NCCL_IB_TC=106/0": 0.5, "NCCL_IB_TC=4/0": 0.25}
    assert {ratio_row.basis for ratio_row in environment_ratio_rows(rows[:2])} == {
        "bandwidth with NCCL_IB_TC=106 over that with NCCL_IB_TC=0"
    }


def test_commas_of_a_value_do_not_break_the_key() -> None:
    rows = [row("x", "latency", value, {"UCX_TLS": tls}) for tls, value in (("posix,self", 1.0), ("tcp,self", 30.0))]
    assert ratios(*rows) == {"UCX_TLS=tcp+self/posix+self": 30.0}


def test_two_variables_are_compared_one_at_a_time() -> None:
    rows = [
        row("x", "bandwidth", value, {"A": a, "B": b})
        for (a, b), value in zip([("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")], [8.0, 4.0, 2.0, 1.0], strict=True)
    ]
    found_ratios = sorted(
        (ratio_row.point["A"], ratio_row.point["B"], ratio_row.detail["part"], ratio_row.value)
        for ratio_row in environment_ratio_rows(rows)
    )
    assert found_ratios == [
        ("0", "1", "B=1/0", 0.5),
        ("1", "0", "A=1/0", 0.25),
        ("1", "1", "A=1/0", 0.25),
        ("1", "1", "B=1/0", 0.5),
    ]


@pytest.mark.parametrize(
    "other",
    [
        row("x", "bandwidth", 1.0, {"V": "1", "size_bytes": 16}),
        row("y", "bandwidth", 1.0, {"V": "1", "size_bytes": 8}),
        row("x", "bandwidth", 1.0, {"V": "1", "W": "0", "size_bytes": 8}),
        row("x", "bandwidth", 1.0, {"V": "1", "size_bytes": 8}, world_size=8),
        row("x", "bandwidth", None, {"V": "1", "size_bytes": 8}),
        row("x", "step_time", 1.0, {"V": "1", "size_bytes": 8}),
        row("x", "bandwidth", 1.0, {"V": "0", "size_bytes": 8}),
    ],
)
def test_what_differs_in_more_than_a_variable_is_not_compared(other: Row) -> None:
    assert ratios(row("x", "bandwidth", 2.0, {"V": "0", "size_bytes": 8}), other) == {}
