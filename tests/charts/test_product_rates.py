from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterbench.charts.product_rates import ProductRates, Products
from clusterbench.measured.step import BURST
from clusterbench.rows import Row
from tests.charts.steps import trained
from tests.report.synthetic import case, of_rows, row

PEAK = 989e12


def product(dtype: str, ranks: int, value: float | None, peak: float | None = None, **shape: int) -> Row:
    point: dict[str, Any] = {"dtype": dtype, "num_ranks": ranks, **(shape or {"size": 8192})}
    words = "x".join(map(str, (shape or {"size": 8192}).values()))
    of = case(f"{words}-{dtype}", ranks, id=f"matmul/1n{ranks}/{words}-{dtype}", benchmark="matmul", point=point)
    if value is None:
        return row(of, "", None, status="failed")
    return row(of, "flops_per_s_per_rank", value, unit="FLOP/s", expected=peak)


WIDE = {"m": 8192, "n": 28672, "k": 8192}
ROWS = [
    product("float32", 1, 50e12),
    product("float32", 8, 50e12),
    product("bfloat16", 1, 700e12, PEAK),
    product("bfloat16", 1, 720e12, PEAK, **WIDE),
    product("bfloat16", 8, 680e12, PEAK),
    product("bfloat16", 8, 660e12, PEAK, **WIDE),
]


def selected(rows: list[Row]) -> list[Products]:
    return ProductRates().select(of_rows(rows)) or []


def test_the_answer_is_the_best_shape_of_each_dtype_while_all_compute() -> None:
    """The suite compute asks it; no chart spoke of 288 of its 353 cases."""
    assert ProductRates().answer(selected(ROWS)) == (
        "Matrix products reach, on each of 8 ranks at once: bfloat16 680.0 TFLOP/s (69 % of the data sheet's, "
        "8192 x 8192 x 8192); float32 50.0 TFLOP/s. One rank alone is up to 6 % faster (bfloat16)."
    )


def test_the_fastest_shape_is_drawn_over_ranks_and_all_shapes_as_bars() -> None:
    over_ranks, shapes = ProductRates().draw(selected(ROWS))
    assert [(entry.cells[0], entry.cells[1], entry.cells[2]) for entry in over_ranks.entries][:2] == [
        ("bfloat16", "1", 720e12),
        ("bfloat16", "8", 680e12),
    ]
    assert shapes.title == "bfloat16, 8 ranks at once"
    assert [entry.cells[0] for entry in shapes.entries] == ["8192 x 8192 x 8192", "8192 x 28672 x 8192"]


def test_where_ranks_share_cores_one_alone_is_so_many_times_as_fast() -> None:
    shared = selected([product("float32", 1, 70e9), product("float32", 4, 20e9)])
    assert ProductRates().answer(shared).endswith("One rank alone is up to 3.5 times as fast (float32).")
    alike = selected([product("float32", 1, 70e9), product("float32", 4, 69.9e9)])
    assert ProductRates().answer(alike) == "Matrix products reach, on each of 4 ranks at once: float32 69.9 GFLOP/s."


def test_that_ranks_share_cores_stands_beside_what_each_reaches_at_once() -> None:
    """'on each of 4 ranks at once' was said of 4 ranks that took turns on 2 cores."""
    read = replace(of_rows([product("float32", 4, 15e9)]), environment={"hosts": {"laptop": {"num_cores": 2}}})
    answer = ProductRates().answer(ProductRates().select(read) or [])
    assert answer == "Matrix products reach, on each of 4 ranks at once, which share 2 cores: float32 15.0 GFLOP/s."
    enough = replace(read, environment={"hosts": {"laptop": {"num_cores": 4}}})
    assert "share" not in ProductRates().answer(ProductRates().select(enough) or [])


def test_what_a_burst_reaches_beyond_is_said() -> None:
    """The suite one_gpu_ceilings asks it."""
    burst = [row._replace(metric=BURST, value=(row.value or 0.0) * 1.08) for row in ROWS[4:]]
    assert (
        ProductRates()
        .answer(selected([*ROWS, *burst]))
        .endswith(" The first products, before clocks come down, are up to 8 % faster (bfloat16).")
    )
    alike = [row._replace(metric=BURST) for row in ROWS[4:]]
    assert ProductRates().answer(selected([*ROWS, *alike])).endswith(" before clocks come down, are no faster.")


def test_a_shape_that_failed_is_last_and_named_and_no_best() -> None:
    (kind,) = selected([product("bfloat16", 8, None, **WIDE), product("bfloat16", 8, 680e12)])
    assert [found.value for found in kind.shapes] == [680e12, None]
    (panel,) = ProductRates().draw([kind])
    assert [entry.cells[-1] for entry in panel.entries] == ["", "failed"]
    assert selected([product("bfloat16", 8, None)]) == []


def test_one_rank_is_said_plainly() -> None:
    assert ProductRates().answer(selected([product("float32", 1, 50e9)])) == (
        "Matrix products reach, on one rank: float32 50.0 GFLOP/s."
    )


def test_runs_that_stand_side_by_side_are_not_mixed() -> None:
    rows = [each._replace(run=run) for run in ("a", "b") for each in (ROWS[1],)]
    assert [kind.dtype for kind in selected(rows)] == ["float32, a", "float32, b"]


def test_one_product_beside_a_training_step_is_its_peak_and_no_answer() -> None:
    step = trained("dp2", {"tokens_per_s": 1e4})
    one = [product("float32", 1, 50e9), product("float32", 2, 50e9)]
    assert ProductRates().select(of_rows([*one, *step])) is None
    assert ProductRates().select(of_rows([*one, product("bfloat16", 2, 9e9), *step])) is not None
    assert ProductRates().select(of_rows(one)) is not None


def test_collectives_along_an_axis_are_no_training_steps() -> None:
    """Beside them the one product of fabric on CPU ranks was in no chart, and one that failed was a failed step."""
    rows = [product("float32", 2, 50e9)]
    for status, metric, value in (("ok", "busbw", 1e9), ("timeout", "", None)):
        point = {"size_bytes": 8, "layout": "dp2-tp4", "axis": "tp"}
        rows.append(row(case(status, benchmark="all_reduce", point=point), metric, value, status=status))
    assert of_rows(rows).trained == []
    assert ProductRates().select(of_rows(rows)) is not None
