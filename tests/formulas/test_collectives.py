"""Bus bandwidths against nccl-tests' table and NCCL Inspector's printed samples; algorithms against their papers."""

from __future__ import annotations

import pytest

from clusterbench.formulas.collectives import (
    ALGORITHMS,
    BUS_FACTOR,
    algorithm_bandwidth,
    algorithm_time,
    bus_bandwidth,
    traffic_bytes,
)


@pytest.mark.parametrize(
    ("op", "size_bytes", "world_size", "time_s", "algbw", "busbw"),
    [
        ("all_reduce", 2**30, 8, 5e-3, 214.7484, 375.8096),
        ("all_gather", 2**30, 8, 5e-3, 214.7484, 187.9048),
        ("reduce_scatter", 2**30, 8, 5e-3, 214.7484, 187.9048),
        ("all_to_all", 2**30, 8, 5e-3, 214.7484, 187.9048),
        # NCCL Inspector's published sample prints 277.210914 and 485.119099.
        ("all_reduce", 17_179_869_184, 8, 61_974e-6, 277.2109, 485.1191),
        # Its verbose sample prints 418.439467 and 366.134533 for 2 GiB per rank: the size is 8 times that.
        ("reduce_scatter", 8 * 2_147_483_648, 8, 41_057e-6, 418.4395, 366.1345),
        ("all_reduce", 2**33, 64, 50e-3, 171.7987, 338.2287),
        ("all_reduce", 2**30, 2, 10e-3, 107.3742, 107.3742),
        ("broadcast", 2**30, 8, 5e-3, 214.7484, 214.7484),
    ],
)
def test_bandwidths_are_those_nccl_tests_prints(op, size_bytes, world_size, time_s, algbw, busbw):
    assert algorithm_bandwidth(size_bytes, time_s) / 1e9 == pytest.approx(algbw, abs=5e-5)
    assert bus_bandwidth(op, size_bytes, time_s, world_size) / 1e9 == pytest.approx(busbw, abs=5e-5)


@pytest.mark.parametrize("op", BUS_FACTOR)
def test_busbw_of_one_rank_is_zero(op):
    assert bus_bandwidth(op, 2**30, 1.0, 1) == 0
    assert traffic_bytes(op, 2**30, 1) == 0


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    for n in range(1, 20):
        parts = traffic_bytes("reduce_scatter", 1e6, n) + traffic_bytes("all_gather", 1e6, n)
        assert traffic_bytes("all_reduce", 1e6, n) == pytest.approx(parts)


def test_an_unknown_collective_has_no_factor():
    with pytest.raises(KeyError, match="all_shuffle"):
        bus_bandwidth("all_shuffle", 1, 1.0, 2)


def test_a_call_without_time_has_no_bandwidth():
    with pytest.raises(ValueError, match=r"8 bytes took 0\.0 s"):
        algorithm_bandwidth(8, 0.0)


ALPHA_S, BYTES_PER_S = 2e-6, 25e9


@pytest.mark.parametrize(
    ("op", "algorithm", "size_bytes", "n", "expected_s"),
    [
        # By hand: 14 steps of 2 us, and 14/8 of 1 GB over 25 GB/s.
        ("all_reduce", "ring", 1e9, 8, 14 * 2e-6 + 14 / 8 * 1e9 / 25e9),
        ("all_gather", "ring", 1e9, 8, 7 * 2e-6 + 7 / 8 * 1e9 / 25e9),
        ("reduce_scatter", "ring", 1e9, 8, 7 * 2e-6 + 7 / 8 * 1e9 / 25e9),
        ("all_gather", "tree", 1e9, 8, 3 * 2e-6 + 7 / 8 * 1e9 / 25e9),
        # Bruck: three steps of half the array.
        ("all_to_all", "tree", 1e6, 8, 3 * (2e-6 + 0.5e6 / 25e9)),
        ("broadcast", "ring", 1e9, 8, (3 + 7) * 2e-6 + 2 * 7 / 8 * 1e9 / 25e9),
        # Two trees: sqrt(6 alpha) + sqrt(S / beta), squared.
        ("broadcast", "tree", 1e6, 8, ((6 * 2e-6) ** 0.5 + (1e6 / 25e9) ** 0.5) ** 2),
        ("scatter", "tree", 1e6, 5, 3 * 2e-6 + 4 / 5 * 1e6 / 25e9),
    ],
)
def test_algorithms_take_what_their_papers_say(op, algorithm, size_bytes, n, expected_s):
    assert algorithm_time(op, algorithm, size_bytes, n, ALPHA_S, BYTES_PER_S) == pytest.approx(expected_s)


@pytest.mark.parametrize("op", ALGORITHMS)
def test_trees_win_at_small_sizes_on_many_ranks(op):
    ring, tree = (algorithm_time(op, name, 8, 512, ALPHA_S, BYTES_PER_S) for name in ("ring", "tree"))
    assert tree < ring / 10


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_ring_comes_near_the_link_rate_as_its_bus_bandwidth(op):
    time_s = algorithm_time(op, "ring", 2**36, 8, ALPHA_S, BYTES_PER_S)
    assert bus_bandwidth(op, 2**36, time_s, 8) == pytest.approx(BYTES_PER_S, rel=1e-4)


@pytest.mark.parametrize("op", ALGORITHMS)
def test_one_rank_needs_no_time(op):
    assert [algorithm_time(op, name, 2**20, 1, ALPHA_S, BYTES_PER_S) for name in ALGORITHMS[op]] == [0.0, 0.0]
