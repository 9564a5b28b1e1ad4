from clusterbench.charts.busbw_by_size import BusbwBySize
from clusterbench.rows import Row
from tests.report.synthetic import case, row


def call(size_bytes: int, busbw: float | None) -> list[Row]:
    one = case(str(size_bytes), 8, point={"size_bytes": size_bytes, "dtype": "float32"})
    if busbw is None:
        return [row(one, "", None, status="timeout")]
    return [row(one, "busbw", busbw, unit="B/s"), row(one, "latency", 1e-5, unit="s")]


def test_the_answer_is_the_highest_bandwidth_and_its_size() -> None:
    sweep = BusbwBySize().select([*call(1024, 1e9), *call(2**30, 359.5e9)])
    assert sweep is not None
    assert BusbwBySize().answer(sweep) == "planted reaches 359.5 GB/s bus bandwidth at 1GiB."


def test_a_size_that_timed_out_is_a_gap_in_both_panels() -> None:
    sweep = BusbwBySize().select([*call(8, 1e6), *call(64, None), *call(512, 1e8)])
    assert sweep is not None
    for series in (*sweep.bandwidth, *sweep.latency):
        assert [(mark.x, mark.status) for mark in series.marks] == [(8, "ok"), (64, "timeout"), (512, "ok")]
    assert len(BusbwBySize().draw(sweep)) == 2


def test_one_size_alone_shows_nothing() -> None:
    assert BusbwBySize().select(call(1024, 1e9)) is None


def test_sweeps_that_differ_in_an_option_are_curves_of_their_own() -> None:
    rows = []
    for op in ("sum", "max"):
        for size_bytes in (8, 64):
            point = {"size_bytes": size_bytes, "dtype": "float32", "op": op}
            one = case(f"{size_bytes}-{op}", 8, point=point)
            rows += [row(one, "busbw", 1e9, unit="B/s"), row(one, "latency", 1e-5, unit="s")]
    sweep = BusbwBySize().select(rows)
    assert sweep is not None
    names = ["planted, sum", "planted, max"]
    assert [series.name for series in sweep.bandwidth] == [series.name for series in sweep.latency] == names


def test_an_axis_is_named_with_its_layout() -> None:
    rows = []
    for size_bytes in (8, 64):
        point = {"size_bytes": size_bytes, "group_size": 4, "layout": "dp2-tp4", "axis": "tp"}
        rows.append(row(case(f"{size_bytes}", 8, point=point), "busbw", 1e9, unit="B/s"))
    sweep = BusbwBySize().select(rows)
    assert sweep is not None
    assert [series.name for series in sweep.bandwidth] == ["planted, 4 of 8 ranks along tp of dp2-tp4"]


def test_many_curves_are_spread_over_panels() -> None:
    rows = []
    for root in range(20):
        for size_bytes in (8, 64):
            one = case(f"{size_bytes}-{root}", 8, point={"size_bytes": size_bytes, "root": root})
            rows.append(row(one, "busbw", 1e9, unit="B/s"))
    sweep = BusbwBySize().select(rows)
    assert sweep is not None
    assert len(BusbwBySize().draw(sweep)) == 3
    assert BusbwBySize().left_out(sweep) == "Drawn are the first 18 of 20 curves; all are in the table."
