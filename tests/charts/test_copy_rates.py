from clusterbench.charts.copy_rates import CopyRates
from clusterbench.rows import Row
from tests.report.synthetic import of_rows

MIB = 2**20


def copied(benchmark: str, value: float | None, world_size: int = 8, status: str = "ok", **point: object) -> Row:
    about = ("r", "x", benchmark, 1, status, point, 1, world_size, "a", "cuda")
    return Row(*about, "" if value is None else "bandwidth_per_rank", "B/s", value)  # type: ignore[arg-type]


def from_host(value: float | None, size_bytes: int, ranks: str = "all", status: str = "ok") -> Row:
    number = 1 if ranks == "one" else 8
    options = {"size_bytes": size_bytes, "direction": "host_to_device", "memory": "pinned", "ranks": ranks}
    return copied("host_copy", value, number, status, **options)


def test_one_alone_and_all_at_once_stand_in_panels_of_their_own() -> None:
    rows = [from_host(rate, size, who) for who, rate in (("one", 55e9), ("all", 25e9)) for size in (MIB, 64 * MIB)]
    data = CopyRates().select(of_rows(rows))
    assert data is not None
    assert list(data) == ["To and from the host, one rank alone", "To and from the host, 8 ranks at once"]
    assert len(CopyRates().draw(data)) == 2
    assert CopyRates().answer(data) == (
        "The most that one rank reaches: to and from the host, one rank alone 55.0 GB/s (host to device, pinned); "
        "to and from the host, 8 ranks at once 25.0 GB/s (host to device, pinned)."
    )


def test_copy_and_fill_are_curves_of_one_panel() -> None:
    rows = [
        copied("device_copy", rate, size_bytes=size, operation=operation)
        for operation, rate in (("copy", 2.9e12), ("fill", 3.1e12))
        for size in (MIB, 64 * MIB)
    ]
    data = CopyRates().select(of_rows(rows))
    assert data is not None
    assert [series.name for series in data["Within a GPU"]] == ["copy, 8 ranks", "fill, 8 ranks"]


def test_a_case_that_ended_badly_is_a_gap() -> None:
    data = CopyRates().select(of_rows([from_host(1e9, MIB), from_host(None, 64 * MIB, status="out_of_memory")]))
    assert data is not None
    (series,) = data["To and from the host, 8 ranks at once"]
    assert [(mark.x, mark.status) for mark in series.marks] == [(MIB, "ok"), (64 * MIB, "out_of_memory")]
    assert len(CopyRates().draw(data)) == 1


def test_one_size_alone_shows_nothing() -> None:
    assert CopyRates().select(of_rows([from_host(1e9, MIB)])) is None


def test_a_machine_without_gpus_shows_nothing() -> None:
    assert CopyRates().select(of_rows([from_host(None, size, status="skipped") for size in (MIB, 64 * MIB)])) is None
