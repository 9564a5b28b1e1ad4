from __future__ import annotations

from clusterbench.charts.variables_worth import VariablesWorth, Worth
from clusterbench.derive.environment_ratios import environment_ratio_rows
from clusterbench.rows import Row
from tests.report.synthetic import of_rows, plain_row

MIB = 2**20


def swept(benchmark: str, rates: list[float], num_nodes: int = 2, run: str = "r", **variables: str) -> list[Row]:
    """Bus bandwidth of 1 MiB, 8 MiB and so on, and the latency of the same calls."""
    rows = []
    for number, rate in enumerate(rates):
        point = {"size_bytes": MIB * 8**number, "dtype": "bfloat16", **variables}
        about = {"num_nodes": num_nodes, "world_size": 8 * num_nodes, "run": run}
        case = f"{benchmark}/{num_nodes}/{sorted(map(str, point.items()))}"
        rows.append(plain_row(benchmark, "busbw", rate, point, case=case, **about))
        latency_s = point["size_bytes"] / rate  # type: ignore[operator]
        rows.append(plain_row(benchmark, "latency", latency_s, point, case=case, unit="s", **about))
    return rows


IB = [
    *swept("all_reduce", [2e10, 4e10], NCCL_IB_DISABLE="0"),
    *swept("all_reduce", [1e10, 5e9], NCCL_IB_DISABLE="1"),
    *swept("all_reduce", [9e10, 3e11], 1, NCCL_IB_DISABLE="0"),
    *swept("all_reduce", [9e10, 3e11], 1, NCCL_IB_DISABLE="1"),
]
NVLS = [
    *swept("all_reduce", [2e10, 4e10], NCCL_NVLS_ENABLE="2"),
    *swept("all_reduce", [2e10, 3.9e10], NCCL_NVLS_ENABLE="0"),
]


def selected(rows: list[Row]) -> list[Worth]:
    return VariablesWorth().select(of_rows([*rows, *environment_ratio_rows(rows)])) or []


def test_each_variable_is_said_where_it_changes_most() -> None:
    """The suite gpu_direct asks it; its ratios were in the table of cases alone."""
    assert VariablesWorth().answer(selected([*NVLS, *IB])) == (
        "NCCL_IB_DISABLE=1 in place of 0 (InfiniBand or RoCE against sockets) leaves 12 % of the bus bandwidth of "
        "all_reduce, 16 ranks at 8MiB.\nLess than 5 % is changed by NCCL_NVLS_ENABLE=0/2."
    )


def test_a_panel_is_a_variable_and_a_curve_an_operation_over_sizes() -> None:
    first, second = VariablesWorth().draw(selected([*NVLS, *IB]))
    assert (first.title, second.title) == (
        "Bus bandwidth, NCCL_IB_DISABLE=1 over 0",
        "Bus bandwidth, NCCL_NVLS_ENABLE=0 over 2",
    )
    assert [entry.cells[:3] for entry in first.entries] == [
        ("all_reduce, 16 ranks", "1MiB", 0.5),
        ("all_reduce, 16 ranks", "8MiB", 0.125),
        ("all_reduce, 8 ranks", "1MiB", 1.0),
        ("all_reduce, 8 ranks", "8MiB", 1.0),
    ]


def test_a_ratio_within_the_noise_of_iterations_is_not_called_a_change() -> None:
    def spread(share: float) -> list[Row]:
        return [row._replace(low=(row.value or 0.0) / share, high=(row.value or 0.0) * share) for row in IB[:8]]

    assert VariablesWorth().answer(selected(spread(1.02))).startswith("NCCL_IB_DISABLE=1 in place of 0 ")
    assert VariablesWorth().answer(selected(spread(4))) == (
        "Iterations differ by more than what is changed by NCCL_IB_DISABLE=1/0."
    )


def test_what_is_faster_with_the_second_value_is_said_as_times() -> None:
    swapped = [
        *swept("send_recv", [1e10], 1, NCCL_NET_GDR_READ="1"),
        *swept("send_recv", [2e10], 1, NCCL_NET_GDR_READ="0"),
    ]
    said = VariablesWorth().answer(selected(swapped))
    assert said.endswith(" gives 2.00 times the bus bandwidth of send_recv at 1MiB.")


def test_where_calls_have_no_bandwidth_the_latency_of_the_smallest_is_said() -> None:
    rows = [
        plain_row(
            "ucx_perftest", "latency", time_s, {"size_bytes": size, "UCX_TLS": tls}, unit="s", case=f"{size}{tls}"
        )
        for tls, times_s in (("posix", (1e-6, 9e-6)), ("tcp", (5e-6, 9e-6)))
        for size, time_s in zip((8, 4096), times_s, strict=True)
    ]
    assert VariablesWorth().answer(selected(rows)) == (
        "UCX_TLS=tcp in place of posix (the transports that UCX may use) makes the latency of ucx_perftest at 8B "
        "5.00 times as long."
    )


def test_settings_beside_cases_with_none_have_a_chart_of_their_own() -> None:
    assert selected([*swept("all_reduce", [2e10, 4e10]), *NVLS]) == []


def test_a_few_ratios_of_a_run_that_asks_something_else_are_not_drawn() -> None:
    others = [row for number in range(20) for row in swept(f"op{number}", [1e9, 2e9])]
    assert selected([*others, *NVLS]) == []
    assert selected([*NVLS, *(row._replace(run="another") for row in IB)]) == []
