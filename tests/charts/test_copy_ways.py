from __future__ import annotations

from clusterbench.charts.copy_ways import CopyWays
from clusterbench.rows import Row
from tests.report.synthetic import of_rows, plain_row

MIB = 2**20


def copied(benchmark: str, metric: str, value: float, expected: float | None = None, **options: object) -> Row:
    return plain_row(benchmark, metric, value, options, num_nodes=1, world_size=8, expected=expected)


def host_copy(value: float, ranks: str, size: int = 256 * MIB) -> Row:
    about = {"size_bytes": size, "direction": "host_to_device", "memory": "pinned", "ranks": ranks}
    return copied("host_copy", "bandwidth_per_rank", value, **about)


ROWS = [
    copied("device_copy", "bandwidth_per_rank", 3e12, 3.35e12, size_bytes=2**30, operation="copy"),
    copied("device_copy", "bandwidth", 24e12, size_bytes=2**30, operation="copy"),  # of all ranks
    host_copy(54e9, "one"),
    host_copy(27e9, "all"),
    copied("gdrcopy", "write_bandwidth", 9e9, size_bytes=4096, test="copybw", runner=0),
    copied("gdrcopy", "write_bandwidth", 12e9, size_bytes=MIB, test="copybw", runner=0),
    copied("gdrcopy", "read_bandwidth", 0.4e9, size_bytes=MIB, test="copybw", runner=0),
    copied("nvbandwidth", "bandwidth", 380e9, 450e9, test="device_to_device_memcpy_write_ce", runner=0),
    copied("nvbandwidth", "bandwidth", 55e9, test="host_to_device_memcpy_ce", runner=8),
    copied("nvbandwidth", "bandwidth", 52e9, test="host_to_device_memcpy_ce", runner=0),
]


def test_each_way_stands_at_its_best_where_it_copies() -> None:
    """Of one size there was no chart, and none of gdrcopy and nvbandwidth at all."""
    data = CopyWays().select(of_rows(ROWS))
    assert data is not None
    assert {where: {name: row.value for name, row in ways.items()} for where, ways in data.items()} == {
        "Within a GPU": {"copy, 8 ranks": 3e12},
        "Between a GPU and its host": {
            "nvbandwidth, host_to_device_memcpy_ce": 55e9,
            "host to device, pinned, one rank alone": 54e9,
            "host to device, pinned, 8 ranks at once": 27e9,
            "gdrcopy, host to device": 12e9,
            "gdrcopy, device to host": 0.4e9,
        },
        "Between GPUs of a host": {"nvbandwidth, device_to_device_memcpy_write_ce": 380e9},
    }
    assert [panel.title for panel in CopyWays().draw(data)] == [*data]
    assert CopyWays().answer(data) == (
        "Copies reach at most: within a GPU 3,000.0 GB/s (copy, 8 ranks); between a GPU and its host 55.0 GB/s "
        "(nvbandwidth, host_to_device_memcpy_ce); between GPUs of a host 380.0 GB/s "
        "(nvbandwidth, device_to_device_memcpy_write_ce)."
    )


def test_of_several_sizes_there_are_curves_and_of_several_runs_nothing() -> None:
    assert CopyWays().select(of_rows([host_copy(5e9, "one", MIB), host_copy(54e9, "one")])) is None
    assert CopyWays().select(of_rows([ROWS[0], ROWS[2]._replace(run="another")])) is None
    assert CopyWays().select(of_rows([])) is None
