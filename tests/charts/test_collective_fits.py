import pytest

from clusterbench.charts.collective_fits import CollectiveFits
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, plain_row, row


def sweep(number_of_sizes: int = 8, fitted: bool = True) -> list[Row]:
    """20 us and 2 GB/s, and a ring that takes twice as long."""
    rows = []
    for number in range(number_of_sizes):
        size_bytes = 8 * 8**number
        time_s = 20e-6 + size_bytes / 2e9
        point = {"size_bytes": size_bytes, "dtype": "float32", "group_size": 8}
        planned = case(str(size_bytes), 8, point=point)
        rows += [
            row(planned, "latency", time_s, unit="s"),
            row(planned, "model_latency", 2 * time_s, unit="s")._replace(detail={"part": "ring"}),
        ]
        if fitted and number == 0:
            rows.append(row(planned, "fit_error", 0.01, unit="fraction"))
    return rows


def test_the_fit_and_the_models_stand_beside_what_was_measured() -> None:
    (fitted,) = CollectiveFits().select(of_rows(sweep())) or []
    assert [series.name for series in fitted.series] == ["measured", "fit", "ring"]
    measured, fit, ring = (series.marks for series in fitted.series)
    assert [mark.x for mark in measured] == [mark.x for mark in fit] == [mark.x for mark in ring]
    for mark, line, model in zip(measured, fit, ring, strict=True):
        assert mark.value is not None
        assert line.value is not None
        assert abs(line.value / mark.value - 1) < 1e-6
        assert model.value == 2 * mark.value
    assert len(CollectiveFits().draw([fitted])) == 1


def test_the_answer_is_latency_and_bandwidth() -> None:
    fits = CollectiveFits().select(of_rows(sweep()))
    assert fits is not None
    expected = (
        "planted: a call without bytes takes 20.00 us, and large ones pass at 2.0 GB/s. No change of algorithm is seen."
    )
    assert CollectiveFits().answer(fits) == expected


def of_benchmark(name: str, rows: list[Row]) -> list[Row]:
    return [each._replace(benchmark=name, case=f"{name}/{each.case}", point=dict(each.point)) for each in rows]


def test_the_answer_says_whose_calls_cost_most_and_where_an_algorithm_changes() -> None:
    """The suite asks where; the chart said what one sweep of 36 costs."""

    def slower(at: int, row: Row) -> Row:
        return row._replace(value=row.value * (3 if at >= 5 else 1)) if row.metric == "latency" and row.value else row

    times = [each for each in sweep(10) if each.metric == "latency"]
    changed = [slower(at, each) for at, each in enumerate(times)]
    marked = [each for each in sweep(10) if each.metric == "fit_error"]
    late = [each._replace(value=each.value + 30e-6) for each in times if each.value]
    rows = [
        *of_benchmark("all_reduce", [*changed, *marked]),
        *of_benchmark("gather", [*late, *marked]),
        *of_benchmark("send_recv", [*times, *marked]),
    ]
    fits = CollectiveFits().select(of_rows(rows))
    assert fits is not None
    assert CollectiveFits().answer(fits) == (
        "send_recv: a call without bytes takes 20.00 us, and large ones pass at 2.0 GB/s. "
        "Of 3 the most is 50.00 us, of gather. "
        "The algorithm seems to change: all_reduce at 256KiB; in 2 others it does not."
    )


def test_one_sweep_of_each_operation_stands_before_a_second_of_any() -> None:
    rows = []
    for root in (0, 1):
        rows += [each._replace(point={**each.point, "root": root}) for each in of_benchmark("broadcast", sweep())]
    rows += of_benchmark("gather", sweep())
    fits = CollectiveFits().select(of_rows(rows))
    assert fits is not None
    assert [fitted.name for fitted in fits] == ["broadcast, root=0", "gather", "broadcast, root=1"]


def with_times(times: dict[int, float], cv: float = 0.01) -> list[Row]:
    """The sweep, with some of its times replaced, by their place; and how far iterations of each size differ."""
    rows, place = [], -1
    for one in sweep():
        if one.metric == "latency":
            place += 1
            rows.append(one._replace(metric="time_cv", unit="fraction", value=cv, iterations=10))
            rows.append(one._replace(value=times.get(place, one.value)))
        else:
            rows.append(one)
    return rows


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            with_times({}, cv=0.44),
            "iterations of one size differ by 44 % (coefficient of variation, median over sizes)",
        ),
        (with_times({0: 2e-6}), "1 of 8 sizes are off the line by more than half"),
    ],
)
def test_a_line_that_its_points_contradict_is_not_drawn_and_it_says_why(rows: list[Row], why: str) -> None:
    """Page review A12: "a call without bytes takes 3.735 ms" where that of 32 B took 0.39 ms."""
    chart = CollectiveFits()
    fits = chart.select(of_rows(rows))
    assert fits is not None
    assert "fit" not in [series.name for series in fits[0].series]
    assert chart.answer(fits) == f"No line is fitted to the times of a call: {why}."
    assert chart.left_out(fits) == f"No line is drawn for planted: {why}."


def test_models_stand_on_a_sound_fit_of_send_recv_or_are_not_drawn() -> None:
    """Page review A12: ring and tree 40 times above a measured time, from a latency that was none."""
    hops = [one._replace(benchmark="send_recv", case=f"hop {one.case}") for one in with_times({0: 2e-6})]
    hops = [one for one in hops if one.metric != "model_latency"]
    fits = CollectiveFits().select(of_rows([*with_times({}), *hops]))
    assert fits is not None
    assert {fitted.name: [series.name for series in fitted.series] for fitted in fits} == {
        "planted": ["measured", "fit"],
        "send_recv": ["measured"],
    }


def test_without_a_fit_there_is_nothing_to_draw() -> None:
    assert CollectiveFits().select(of_rows(sweep(fitted=False))) is None


def test_the_time_of_the_bytes_alone_stands_beside_the_fit_where_a_link_is_known() -> None:
    rows = sweep()
    rows += [latency._replace(metric="busbw", unit="B/s", value=1e9) for latency in rows if latency.metric == "latency"]
    known = plain_row(
        "link_matrix",
        "median_bandwidth",
        4e9,
        {"between": "ranks", "size_bytes": 2**22},
        num_nodes=1,
        device="cpu",
        run="run",
    )
    neighbours = plain_row("send_recv", "busbw", 9e9, {"size_bytes": 8}, num_nodes=1, device="cpu", run="run")
    (fitted,) = CollectiveFits().select(of_rows([*rows, known, neighbours])) or []
    *_, link = fitted.series
    assert [series.name for series in fitted.series] == ["measured", "fit", "ring", "median link, measured"]
    for at_once, mark in zip(link.marks, fitted.series[0].marks, strict=True):
        assert at_once.value == pytest.approx((mark.value or 0.0) / 4)


def test_without_a_known_link_there_is_no_such_line() -> None:
    (fitted,) = CollectiveFits().select(of_rows(sweep())) or []
    assert "link" not in " ".join(series.name for series in fitted.series)
