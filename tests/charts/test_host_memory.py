from clusterbench.charts.host_memory import HostMemory
from clusterbench.rows import Row
from tests.report.synthetic import of_rows


def streamed(kernel: str, world_size: int, value: float, size_bytes: int = 2**28) -> Row:
    point = {"kernel": kernel, "size_bytes": size_bytes}
    about = ("r", "x", "cpu_memory", 1, "ok", point, 1, world_size, "a", "cpu")
    return Row(*about, "bandwidth", "B/s", value)


def test_each_loop_is_a_curve_over_ranks() -> None:
    rows = [streamed(kernel, ranks, 1e10 * ranks) for kernel in ("copy", "triad") for ranks in (4, 1, 2)]
    data = HostMemory().select(of_rows(rows))
    assert data is not None
    assert [(series.name, [mark.x for mark in series.marks]) for series in data] == [
        ("copy", [1, 2, 4]),
        ("triad", [1, 2, 4]),
    ]
    assert len(HostMemory().draw(data)) == 1


def test_the_answer_is_the_most_the_memory_carries() -> None:
    data = HostMemory().select(
        of_rows([streamed("triad", 1, 1e10), streamed("triad", 4, 3e10), streamed("triad", 8, 2.9e10)])
    )
    assert data is not None
    assert HostMemory().answer(data) == "The host's memory carries most at 4 ranks: 30.0 GB/s (triad)."
    alone = HostMemory().select(of_rows([streamed("triad", 1, 3e10), streamed("triad", 2, 1e10)]))
    assert "at 1 rank:" in HostMemory().answer(alone or [])


def test_of_several_sizes_the_first_is_drawn() -> None:
    rows = [streamed("copy", 1, 1e10), streamed("copy", 2, 2e10), streamed("copy", 2, 9e10, 2**20)]
    data = HostMemory().select(of_rows(rows))
    assert data is not None
    assert [mark.value for mark in data[0].marks] == [1e10, 2e10]


def test_one_number_of_ranks_shows_nothing() -> None:
    assert HostMemory().select(of_rows([streamed("copy", 4, 1e10)])) is None
