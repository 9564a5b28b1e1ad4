from dataclasses import replace
from typing import Any

from clusterbench.cases import Reading
from clusterbench.cases.sweeps import sweep_name
from clusterbench.charts.busbw_by_size import BusbwBySize, Sweep
from clusterbench.cluster import Cluster
from clusterbench.drawing.lines import Mark, Series
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, plain_row, row
from tests.report.synthetic import reading as read


def call(size_bytes: int, busbw: float | None) -> list[Row]:
    planned = case(str(size_bytes), 8, point={"size_bytes": size_bytes, "dtype": "float32"})
    if busbw is None:
        return [row(planned, "", None, status="timeout")]
    return [row(planned, "busbw", busbw, unit="B/s"), row(planned, "latency", 1e-5, unit="s")]


def test_the_answer_is_the_highest_bandwidth_and_its_size() -> None:
    sweep = BusbwBySize().select(of_rows([*call(1024, 1e9), *call(2**30, 359.5e9)]))
    assert sweep is not None
    said = "planted reaches 359.5 GB/s bus bandwidth at 1GiB. A small message takes 10.00 us."
    assert BusbwBySize().answer(sweep) == said


def test_every_other_curve_is_named_with_its_best_and_of_many_the_lowest() -> None:
    def best(name: str, value: float) -> Series:
        return Series(name, (Mark(64.0, value / 2), Mark(2.0**30, value)))

    few = Sweep([best("all_to_all", 45e9), best("all_reduce", 359.5e9), best("all_gather", 310e9)], [])
    assert BusbwBySize().answer(few) == (
        "all_reduce reaches 359.5 GB/s bus bandwidth at 1GiB. Others, each at its best: all_gather 310.0 GB/s at 1GiB; "
        "all_to_all 45.0 GB/s at 1GiB."
    )
    many = Sweep([best(f"op{number}", number * 1e9) for number in range(1, 8)], [])
    assert BusbwBySize().answer(many).endswith("at 1GiB. The lowest of 7 curves: op1 1.0 GB/s at 1GiB.")


def test_a_curve_that_lacks_its_large_messages_is_not_the_lowest() -> None:
    """Where a GPU counted errors, the figures of large messages were void: reduce_scatter 8.9 GB/s was the lowest."""
    whole = [Series(f"op{number}", (Mark(64.0, 1e6), Mark(2.0**30, number * 1e11))) for number in range(1, 8)]
    marks = (Mark(64.0, 1e6), Mark(2.0**18, 8.9e9), Mark(2.0**30, None))
    cut = [Series(f"reduce_scatter, {ranks} ranks", marks) for ranks in (8, 32)]
    assert BusbwBySize().answer(Sweep([*whole, *cut], [])) == (
        "op7 reaches 700.0 GB/s bus bandwidth at 1GiB. The lowest of 7 curves: op1 100.0 GB/s at 1GiB. "
        "Without a figure of large messages: reduce_scatter, 8 ranks; reduce_scatter, 32 ranks."
    )


def test_the_answer_tells_what_the_smallest_messages_take() -> None:
    """A suite asks how fast collectives are from their latency to their peak; the answer told of peaks alone."""

    def calls(name: str, smallest: float, time_s: float) -> Series:
        return Series(name, (Mark(smallest, time_s), Mark(2.0**30, 3e-3)))

    peaks = [Series(name, (Mark(2.0**30, 3e11),)) for name in ("all_reduce", "send_recv")]
    one = Sweep(peaks, [calls("all_reduce", 8.0, 14e-6)])
    assert BusbwBySize().answer(one).endswith(" at 1GiB. A small message takes 14.00 us.")
    # At its best of small sizes, as message_layers tells it; what has no rate is of other layers, and told there.
    late = Series("send_recv", (Mark(8.0, 5e-3), Mark(64.0, 9e-6), Mark(2.0**30, 3e-3)))
    several = Sweep(peaks, [calls("all_reduce", 8.0, 14e-6), late, calls("ucx_perftest", 8.0, 1e-7)])
    assert (
        BusbwBySize()
        .answer(several)
        .endswith(" at 1GiB. A small message takes from 9.00 us (send_recv) to 14.00 us (all_reduce).")
    )
    assert BusbwBySize().answer(Sweep(peaks, [calls("send_recv", 2.0**20, 1e-3)])).endswith(" at 1GiB.")


def test_a_size_that_timed_out_is_a_gap_in_both_panels() -> None:
    sweep = BusbwBySize().select(of_rows([*call(8, 1e6), *call(64, None), *call(512, 1e8)]))
    assert sweep is not None
    for series in (*sweep.bandwidth, *sweep.latency):
        assert [(mark.x, mark.status) for mark in series.marks] == [(8, "ok"), (64, "timeout"), (512, "ok")]
    assert len(BusbwBySize().draw(sweep)) == 2


def test_one_size_alone_shows_nothing() -> None:
    assert BusbwBySize().select(of_rows(call(1024, 1e9))) is None


def test_sweeps_that_differ_in_an_option_are_curves_of_their_own() -> None:
    rows = []
    for op in ("sum", "max"):
        for size_bytes in (8, 64):
            point = {"size_bytes": size_bytes, "dtype": "float32", "op": op}
            planned = case(f"{size_bytes}-{op}", 8, point=point)
            rows += [row(planned, "busbw", 1e9, unit="B/s"), row(planned, "latency", 1e-5, unit="s")]
    sweep = BusbwBySize().select(of_rows(rows))
    assert sweep is not None
    names = ["planted, sum", "planted, max"]
    assert [series.name for series in sweep.bandwidth] == [series.name for series in sweep.latency] == names


def test_an_option_that_does_not_apply_is_not_named() -> None:
    """perftest over memory of the host has no GPU: its curve was 'perftest, gpu_index=None, memory=host'."""
    rows = [
        plain_row("perftest", "bandwidth", 4e10, {"size_bytes": 8, "memory": memory, "gpu_index": gpu})
        for memory, gpu in (("host", None), ("cuda", 0))
    ]
    assert [*map(sweep_name(rows), rows)] == ["perftest, memory=host", "perftest, gpu_index=0, memory=cuda"]


def test_a_curve_has_one_colour_in_both_panels() -> None:
    marks = (Mark(8, 1.0), Mark(64, 2.0))
    some, others = ([Series(name, marks) for name in names] for names in (("a", "b", "c"), ("d", "c", "a")))
    bandwidth, latency = (
        {text.get_text(): text.get_color() for text in panel.figure.axes[0].texts if text.get_text().isalpha()}
        for panel in BusbwBySize().draw(Sweep(some, others))
    )
    assert len({*bandwidth.values(), *latency.values()}) == 4
    assert {name: colour for name, colour in latency.items() if name in bandwidth}.items() <= bandwidth.items()


def test_an_axis_is_named_with_its_layout() -> None:
    rows = []
    for size_bytes in (8, 64):
        point = {"size_bytes": size_bytes, "group_size": 4, "layout": "dp2-tp4", "axis": "tp"}
        rows.append(row(case(f"{size_bytes}", 8, point=point), "busbw", 1e9, unit="B/s"))
    sweep = BusbwBySize().select(of_rows(rows))
    assert sweep is not None
    assert [series.name for series in sweep.bandwidth] == ["planted, 4 of 8 ranks along tp of dp2-tp4"]


def test_what_another_tool_measured_is_named_by_its_operation() -> None:
    rows = [
        row(
            case(f"{op}-{size_bytes}", 8, benchmark="imported", point={"op": op, "size_bytes": size_bytes}),
            "busbw",
            2e9,
        )
        for op in ("all_gather", "all_reduce")
        for size_bytes in (8, 64)
    ]
    both, one = (BusbwBySize().select(of_rows(some)) for some in (rows, rows[:2]))
    assert both is not None
    assert [series.name for series in both.bandwidth] == ["all_gather", "all_reduce"]
    assert one is not None
    assert BusbwBySize().answer(one).startswith("all_gather reaches 2.0 GB/s bus bandwidth at ")


def test_many_curves_are_spread_over_panels() -> None:
    rows = []
    for root in range(20):
        for size_bytes in (8, 64):
            planned = case(f"{size_bytes}-{root}", 8, point={"size_bytes": size_bytes, "root": root})
            rows.append(row(planned, "busbw", 1e9, unit="B/s"))
    sweep = BusbwBySize().select(of_rows(rows))
    assert sweep is not None
    drawn = BusbwBySize().draw(sweep)
    assert [panel.title for panel in drawn] == ["Bus bandwidth", *["Bus bandwidth, more curves"] * 2]
    first, second = ({line.get_color() for line in panel.figure.axes[0].lines} for panel in drawn[:2])
    assert len(second - first) == 2  # the palette has eight
    assert BusbwBySize().left_out(sweep) == "Drawn are the first 18 of 20 curves; all are in the table of cases."


def test_the_rate_between_two_ranks_of_mpi_is_a_curve_beside_its_collectives() -> None:
    """The suite mpi asks for both; its messages between two ranks were in no chart."""
    rows = []
    for op, metric in (("all_reduce", "busbw"), ("bandwidth", "bandwidth")):
        for number, value in enumerate((1e9, 2e9)):
            rows.append(plain_row("mpi", metric, value, {"op": op, "size_bytes": 2**number}))
    rows.append(plain_row("ucx_perftest", "bandwidth", 9e9, {"test": "tag_bw", "size_bytes": 8}))
    sweep = BusbwBySize().select(of_rows(rows))
    assert sweep is not None
    assert [curve.name for curve in sweep.bandwidth] == ["mpi, all_reduce", "mpi, bandwidth"]


def on_more_nodes(rows: list[Row], num_nodes: int, **point: object) -> list[Row]:
    """The same with two ranks on each of so many nodes, and with these options."""
    return [
        each._replace(num_nodes=num_nodes, world_size=2 * num_nodes, point={**each.point, **point}) for each in rows
    ]


def test_where_nodes_were_added_each_operation_has_a_panel_with_its_ranks() -> None:
    """Of 54 curves of two nodes and four the first 18 were drawn: all within a node, and none between nodes."""
    rows = []
    for num_nodes in (1, 2, 4):
        for benchmark in ("all_reduce", "all_gather", "reduce_scatter", "send_recv"):
            rows += on_more_nodes(collective(benchmark, 1e9, 2e9), num_nodes)
        along = {"axis": "tp", "layout": f"dp{num_nodes}-tp2", "group_size": 2}
        rows += on_more_nodes(collective("all_reduce", 1e9, 2e9), num_nodes, **along)
    sweep = BusbwBySize().select(of_rows(rows))
    assert sweep is not None
    drawn = BusbwBySize().draw(sweep)
    assert [panel.title for panel in drawn] == [
        f"Bus bandwidth, {name}" for name in ("all_reduce", "all_gather", "reduce_scatter", "send_recv")
    ]
    of_all = [f"all_reduce, {ranks} ranks" for ranks in (2, 4, 8)]
    along_tp = [f"all_reduce, 2 of {2 * nodes} ranks along tp of dp{nodes}-tp2" for nodes in (1, 2, 4)]
    assert sweep.panels[0] == ("all_reduce", [*of_all, *along_tp])
    assert BusbwBySize().left_out(sweep) == ""


def test_of_more_operations_than_are_drawn_it_is_said_how_many_curves_are() -> None:
    rows = []
    for operation in range(14):
        for num_nodes in (1, 2):
            rows += on_more_nodes(collective(f"op{operation}", 1e9, 2e9), num_nodes)
    sweep = BusbwBySize().select(of_rows(rows))
    assert sweep is not None
    assert BusbwBySize().left_out(sweep) == "Drawn are 24 of 28 curves; all are in the table of cases."


def collective(benchmark: str, *busbw: float, num_nodes: int = 1) -> list[Row]:
    """A sweep of doubling sizes on GPUs."""
    options = ({"size_bytes": 2**number} for number in range(len(busbw)))
    return [
        plain_row(benchmark, "busbw", value, point, num_nodes=num_nodes)
        for point, value in zip(options, busbw, strict=True)
    ]


def matrix(between: str, num_nodes: int, median: float) -> Row:
    return plain_row(
        "link_matrix", "median_bandwidth", median, {"between": between, "size_bytes": 2**22}, num_nodes=num_nodes
    )


def measured(rows: list[Row], gpu: str | None = None) -> Sweep:
    found = read(cases=[], rows=rows)
    plan = replace(found.plan, cluster=Cluster(2, 8, "cuda", gpu))
    sweep = BusbwBySize().select(Reading("run", plan, (), rows))
    assert sweep is not None
    return sweep


def test_within_a_node_the_data_sheet_is_a_level_and_the_answer_holds_against_it() -> None:
    sweep = measured(collective("all_reduce", 1e9, 360e9), "NVIDIA H100 80GB HBM3")
    assert sweep.limits == {"all_reduce": {"GPU link, data sheet": 450e9}}
    assert BusbwBySize().answer(sweep) == (
        "all_reduce reaches 360.0 GB/s bus bandwidth at 2B, 80 % of 450.0 GB/s (GPU link, data sheet)."
    )
    (panel,) = BusbwBySize().draw(sweep)
    assert "GPU link, data sheet" in [text.get_text() for text in panel.figure.axes[0].texts]


def test_groups_within_a_node_are_held_against_links_within_one_however_many_nodes_there_are() -> None:
    """Of acceptance on 4 nodes all_reduce along tp of dp4-tp8 was said to reach 10.7 times a link between nodes."""
    along_tp = {"axis": "tp", "layout": "dp4-tp8", "group_size": 8}

    def sweep(**options: Any) -> Sweep:
        points = [{"size_bytes": 2**number, **along_tp, **options} for number in range(2)]
        rows = [plain_row("all_reduce", "busbw", 360e9, point, num_nodes=4)._replace(world_size=32) for point in points]
        return measured([*rows, matrix("nodes", 4, 40e9)], "NVIDIA H100 80GB HBM3")

    assert [*sweep().limits.values()] == [{"GPU link, data sheet": 450e9}]
    between = [{"median link, measured, 4 nodes": 40e9}]
    assert [*sweep(axis="dp", group_size=4).limits.values()] == between
    assert [*sweep(group_size=16).limits.values()] == between
    assert [*sweep(rank_order="llama3").limits.values()] == between


def test_more_than_a_measured_level_is_no_share_of_it() -> None:
    rows = [*collective("all_reduce", 1e9, 92e9, num_nodes=2), matrix("nodes", 2, 46e9)]
    assert BusbwBySize().answer(measured(rows)).endswith("at 2B, 2 times 46.0 GB/s (median link, measured, 2 nodes).")


def test_between_nodes_what_was_measured_there_is_a_level_and_no_data_sheet() -> None:
    rows = [*collective("all_reduce", 1e9, 40e9, num_nodes=2), *collective("send_recv", 1e9, 48e9, num_nodes=2)]
    sweep = measured([*rows, matrix("nodes", 2, 46e9)], "NVIDIA H100 80GB HBM3")
    assert sweep.limits == {
        "all_reduce": {"send_recv at its best, 2 nodes": 48e9, "median link, measured, 2 nodes": 46e9},
        "send_recv": {"median link, measured, 2 nodes": 46e9},
    }


def test_a_matrix_over_ranks_of_several_nodes_has_two_kinds_of_links_and_is_no_level() -> None:
    sweep = measured([*collective("all_reduce", 1e9, 40e9, num_nodes=2), matrix("ranks", 2, 46e9)])
    assert sweep.limits == {"all_reduce": {}}


def test_what_nobody_says_is_no_level() -> None:
    sweep = measured(collective("all_reduce", 1e9, 40e9), "a GPU that nobody has recorded")
    assert sweep.limits == {"all_reduce": {}}
    (panel,) = BusbwBySize().draw(sweep)
    assert [text.get_text() for text in panel.figure.axes[0].texts if "link" in text.get_text()] == []


def test_of_several_runs_nothing_is_held_against_another() -> None:
    rows = [
        *collective("all_reduce", 1e9, 40e9),
        *(row._replace(run="b") for row in collective("send_recv", 1e9, 48e9)),
    ]
    sweep = measured(rows, "NVIDIA H100 80GB HBM3")
    assert sweep.limits == {"all_reduce": {}, "send_recv": {}}
