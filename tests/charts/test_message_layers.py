from __future__ import annotations

from clusterbench.charts.message_layers import Layers, MessageLayers
from clusterbench.rows import Row
from tests.report.synthetic import of_rows, plain_row

MIB = 2**20


def message(benchmark: str, metric: str, value: float, num_nodes: int = 2, **options: object) -> Row:
    unit = "s" if metric == "latency" else "B/s"
    return plain_row(benchmark, metric, value, options, num_nodes=num_nodes, unit=unit)


def perftest(metric: str, value: float, size: int = 8 * MIB, memory: str = "host", client: int = 8) -> Row:
    test = "ib_write_lat" if metric == "latency" else "ib_write_bw"
    return message("perftest", metric, value, size_bytes=size, test=test, memory=memory, server=0, client=client)


ROWS = [
    perftest("bandwidth", 2e9, 64 * 1024),
    perftest("bandwidth", 48e9),
    perftest("bandwidth", 47e9, client=16),
    perftest("bandwidth", 12e9, memory="cuda"),
    perftest("latency", 3e-6, 4096),
    perftest("latency", 1.5e-6, 8),
    message("iperf3", "bandwidth", 6e9, streams=8, server=0, client=8),
    message("send_recv", "busbw", 45.6e9, size_bytes=2**30, pattern="ring"),
    message("send_recv", "latency", 20e-6, size_bytes=8, pattern="ring"),
    message("mpi", "bandwidth", 24e9, op="bandwidth", size_bytes=MIB, sender=0, receiver=8),
    message("mpi", "bandwidth", 90e9, op="bi_bandwidth", size_bytes=MIB, sender=0, receiver=8),
    message("mpi", "busbw", 99e9, op="all_reduce", size_bytes=MIB),
]


def selected(rows: list[Row]) -> list[Layers]:
    return MessageLayers().select(of_rows(rows)) or []


def test_the_answer_says_what_each_layer_makes_of_the_wire() -> None:
    """The suite rdma asks it, and its page said that no chart draws a conclusion."""
    assert MessageLayers().answer(selected(ROWS)) == (
        "Between two hosts perftest, memory=host, test=ib_write_bw carries most, 48.0 GB/s at 8MiB; of that send_recv "
        "95 %, mpi 50 %, perftest, memory=cuda, test=ib_write_bw 25 % and 1 more. The quickest message takes "
        "1.50 us (perftest, memory=host, test=ib_write_lat), the slowest 20.00 us (send_recv)."
    )


def test_bars_are_the_best_size_and_pair_of_each_way_in_one_direction() -> None:
    bandwidth, latency = MessageLayers().draw(selected(ROWS))
    assert (bandwidth.title, latency.title) == ("Bandwidth between two hosts", "Latency between two hosts")
    assert [entry.cells[1] for entry in bandwidth.entries] == [48e9, 45.6e9, 24e9, 12e9, 6e9]
    assert [entry.cells[1] for entry in latency.entries] == [1.5e-6, 20e-6]


def test_small_messages_are_not_held_against_large_ones() -> None:
    small = message("ucx_perftest", "bandwidth", 1e9, size_bytes=8192, test="tag_bw", memory="host")
    layers = selected([perftest("bandwidth", 48e9), small])
    assert MessageLayers().answer(layers) == "Between two hosts perftest carries most, 48.0 GB/s at 8MiB."
    (panel,) = MessageLayers().draw(layers)
    assert [entry.cells[0] for entry in panel.entries] == ["perftest", "ucx_perftest, 8KiB"]


def test_ranks_of_one_host_are_apart() -> None:
    within = [each._replace(num_nodes=1, value=(each.value or 0.0) / 2) for each in ROWS]
    assert [layers.where for layers in selected([*within, *ROWS])] == ["between two hosts", "within a host"]


def test_without_a_program_or_with_one_way_alone_there_is_nothing_to_compare() -> None:
    assert selected([row for row in ROWS if row.benchmark in ("send_recv", "mpi")]) == []
    assert selected(ROWS[1:3]) == []
    assert selected([*ROWS, ROWS[1]._replace(run="another")]) == []
