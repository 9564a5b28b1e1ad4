from clusterbench.charts.imported_sizes import ImportedSizes
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row


def call(test: str, size_bytes: int, metric: str, value: float | None, ranks: int = 2, **detail: str) -> Row:
    point = {"test": test, "size_bytes": size_bytes}
    planned = case(f"{test}-{size_bytes}-{ranks}", ranks, point=point, benchmark="imported")
    return row(planned, metric, value, unit="B/s" if metric == "bandwidth" else "s", detail=detail)


def test_each_test_is_a_curve_and_the_answer_says_the_ends_of_the_first() -> None:
    rows = [call("MPI Bandwidth", size, "bandwidth", rate) for size, rate in ((2**22, 12.4e9), (1, 1e6))]
    rows += [call("MPI Latency", size, "latency", time_s) for size, time_s in ((1, 2e-6), (1024, 3e-6))]
    rows.append(call("MPI Latency", 1, "latency", 9e-6, statistic="p99"))  # in the table alone
    found = ImportedSizes().select(of_rows(rows))
    assert found is not None
    assert [[(mark.x, mark.value) for mark in curve.marks] for curve in (*found.bandwidth, *found.latency)] == [
        [(1, 1e6), (2**22, 12.4e9)],
        [(1, 2e-6), (1024, 3e-6)],
    ]
    answer = "MPI Bandwidth reaches 12.4 GB/s at 4MiB; MPI Latency takes 2.00 us at 1B."
    assert ImportedSizes().answer(found) == answer
    assert len(ImportedSizes().draw(found)) == 2


def test_numbers_of_ranks_are_curves_of_their_own() -> None:
    rows = [call("MPI Allreduce Latency", size, "latency", 1e-5, ranks) for size in (8, 64) for ranks in (4, 8)]
    found = ImportedSizes().select(of_rows(rows))
    assert found is not None
    assert [curve.name for curve in found.latency] == [
        "MPI Allreduce Latency, 4 ranks",
        "MPI Allreduce Latency, 8 ranks",
    ]
    assert len(ImportedSizes().draw(found)) == 1


def test_one_size_or_none_shows_nothing() -> None:
    assert ImportedSizes().select(of_rows([call("MPI Barrier Latency", 0, "latency", 1e-5)])) is None
    assert ImportedSizes().select(of_rows([call("MPI Latency", 8, "latency", 1e-5)])) is None
