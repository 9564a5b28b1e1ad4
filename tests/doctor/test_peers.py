"""Pairs of GPUs against their peers: what the host's plan explains is no fault."""

from __future__ import annotations

from clusterbench.doctor.peers import weak_gpus, weak_pairs

DGX1 = {(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3), (2, 6), (3, 7), (4, 5), (4, 6), (4, 7), (5, 6)}
DGX1 |= {(5, 7), (6, 7)}
"""Pairs that NVLink joins on a DGX-1 with V100, from its topology."""


def mesh():
    return {(a, b): 24e9 if {(a, b), (b, a)} & DGX1 else 9.5e9 for a in range(8) for b in range(8) if a != b}


def all_to_all(number, rate=250e9):
    return {(a, b): rate for a in range(number) for b in range(number)}


def test_the_corners_of_a_mesh_that_only_pcie_joins_are_no_fault():
    assert weak_pairs(mesh()).pairs == ()
    assert not weak_pairs(mesh()).unclear


def test_a_link_of_a_mesh_that_is_lost_is_not_told_from_its_plan():
    said = weak_pairs(mesh() | {(0, 1): 9.5e9, (1, 0): 9.5e9})
    assert said.pairs == ()
    assert said.unclear.startswith("26 of 56 pairs copy less than half of what the median pair does")


def test_of_two_gpus_one_direction_is_held_against_the_other():
    assert list(weak_pairs(all_to_all(2) | {(1, 0): 20e9}).pairs) == [(1, 0)]


def test_a_gpu_that_every_slow_pair_has_in_common_is_named():
    slow = {pair: 20e9 for pair in all_to_all(8) if 3 in pair}
    assert weak_pairs(all_to_all(8) | slow).gpu == 3


def test_half_of_the_lanes_is_found_and_a_farther_socket_is_not():
    assert weak_gpus({0: 26e9, 1: 13e9})[1] == [1]
    assert weak_gpus({0: 26e9, 1: 20e9})[1] == []
