"""Every probe: an iteration takes as long as its slowest rank, and the slow end of a time is the low end of a rate."""

import pytest

from clusterbench.benchmarks.device_copy import DeviceCopy
from clusterbench.types import Case, Observation, Timing, WarmUp
from tests.benchmarks.alone import CPU, derived

SECONDS = [[1.0, 2.0, 3.0], [1.0, 1.5, 4.0]]
"""Of two ranks: iterations of 1, 2 and 4 s, so that the median is 2 s, the low end 1 s and the high end 4 s."""

COPY = {"size_bytes": 10**9, "operation": "copy"}
HOST = {"size_bytes": 10**9, "memory": "pinned", "direction": "both", "ranks": "all"}
COLLECTIVE = {"size_bytes": 10**9, "group_size": 2}
MPI = {"size_bytes": 10**6, "dtype": "float32", "memory": "host", "sender": 0, "receiver": 1}
LINKS = {"between": "nodes", "num_units": 2, "ranks_in_node": 1}


@pytest.mark.parametrize(
    ("benchmark", "point", "metric", "amount"),
    [
        ("device_copy", COPY, "bandwidth_per_rank", 2e9),  # read and written
        ("device_copy", COPY, "bandwidth", 4e9),
        ("host_copy", HOST, "bandwidth_per_rank", 2e9),  # there and back
        ("cpu_memory", {"size_bytes": 8 * 10**8, "kernel": "triad"}, "bandwidth", 4.8e9),  # three arrays of two ranks
        ("file_io", {"size_bytes": 10**9, "operation": "write"}, "bandwidth", 2e9),
        ("checkpoint", {"size_bytes": 10**9, "operation": "save"}, "bandwidth", 2e9),
        ("matmul", {"size": 1000, "dtype": "float32"}, "flops_per_s_per_rank", 2e9),
        ("small_files", {"files": 10}, "file_rate", 20),
        ("all_reduce", COLLECTIVE, "algbw", 1e9),
        ("all_gather", COLLECTIVE, "busbw", 0.5e9),
        ("hierarchical_all_reduce", COLLECTIVE, "busbw", 1e9),
        ("mpi", {**MPI, "op": "bandwidth"}, "bandwidth", 64e6),  # a window of OSU's
        ("mpi", {**MPI, "op": "bandwidth"}, "message_rate", 64),
        ("mpi", {**MPI, "op": "bi_bandwidth"}, "bandwidth", 128e6),
        ("mpi", {**MPI, "op": "bi_bandwidth"}, "message_rate", 128),
        ("mpi", {**MPI, "op": "all_reduce"}, "algbw", 1e6),
        ("mpi", {**MPI, "op": "all_gather"}, "busbw", 0.5e6),
    ],
)
def test_a_rate_is_the_amount_over_the_time_of_the_slowest_rank(benchmark, point, metric, amount):
    rate = derived(benchmark, point, SECONDS)[metric]
    assert (rate.low, rate.value, rate.high) == pytest.approx((amount / 4, amount / 2, amount))
    assert rate.iterations == 3


@pytest.mark.parametrize(("operation", "amount"), [("copy", 2e9), ("fill", 1e9)])
def test_the_burst_of_a_copy_counts_as_the_copy_does(operation, amount):
    case = Case("x", "device_copy", 1, {**COPY, "operation": operation}, "cuda", 1, 2, 3, 0, 60.0)
    timing = [Timing(0.0, 8.0, WarmUp(True, 0.002, 1.6, 1, burst_s)) for burst_s in SECONDS]
    observation = Observation("x", "", 0, 1, ("a",), [[8.0] * 3] * 2, timing=timing)
    metrics = {metric.name: metric for metric in DeviceCopy.derive(case, observation, CPU)}
    burst = metrics["burst_bandwidth_per_rank"]
    assert (burst.low, burst.value, burst.high) == (amount / 4, amount / 2, amount)
    assert metrics["bandwidth_per_rank"].value == amount / 8


@pytest.mark.parametrize(
    ("benchmark", "point", "metric", "share"),
    [
        ("device_copy", COPY, "transfer_time", 1),
        ("checkpoint", {"size_bytes": 10**9, "operation": "save"}, "transfer_time", 1),
        ("matmul", {"size": 1000, "dtype": "float32"}, "step_time", 1),
        ("small_files", {"files": 10}, "time_per_file", 10),
        ("kernel_launch", {"mode": "launch", "launches": 10}, "launch_time", 10),
        ("kernel_launch", {"mode": "round_trip", "launches": 10}, "round_trip_time", 10),
        ("kernel_launch", {"mode": "graph", "launches": 10}, "graph_node_time", 10),
        ("all_reduce", COLLECTIVE, "latency", 1),
        ("mpi", {**MPI, "op": "latency"}, "latency", 2),  # half a round trip
        ("mpi", {**MPI, "op": "barrier"}, "latency", 1),
        ("congestion", {}, "together_time", 1),
        ("link_matrix", LINKS, "traversal_time", 1),
        ("peer_copy", {}, "traversal_time", 1),
    ],
)
def test_a_time_is_that_of_the_slowest_rank(benchmark, point, metric, share):
    time = derived(benchmark, point, SECONDS)[metric]
    assert (time.low, time.value, time.high) == pytest.approx((1 / share, 2 / share, 4 / share))
