"""Pairs of GPUs against their peers: what the host's plan explains is no fault."""

from __future__ import annotations

import pytest

from clusterbench.doctor.peers import weak_gpus, weak_pairs

DGX1 = {(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3), (2, 6), (3, 7), (4, 5), (4, 6), (4, 7), (5, 6)}
DGX1 |= {(5, 7), (6, 7)}
"""Pairs that NVLink joins on a DGX-1 with V100, from its topology."""


def mesh():
    return {(a, b): 24e9 if {(a, b), (b, a)} & DGX1 else 9.5e9 for a in range(8) for b in range(8) if a != b}


def all_to_all(number, rate=250e9):
    return {(a, b): rate for a in range(number) for b in range(number) if a != b}


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
    assert weak_gpus({0: 26e9, 1: 13e9}).gpus == [1]
    assert weak_gpus({0: 26e9, 1: 20e9}).gpus == []


def test_gpus_that_differ_too_little_for_a_fault_are_not_called_alike():
    of_eight = dict.fromkeys(range(8), 55.2e9)
    assert weak_gpus(of_eight | {3: 41e9}).unclear.startswith("GPU 3 reaches 74 % of the median GPU")
    assert not weak_gpus(of_eight | {3: 53e9}).unclear


def slowed(rates, gpu, rate):
    return rates | {pair: rate for pair in rates if gpu in pair}


def two_sockets():
    """Eight GPUs on PCIe: two on each switch, two switches on each socket."""
    rates = {0: 26e9, 1: 26e9, 2: 21e9, 3: 21e9}
    return {(a, b): rates.get(a ^ b, 18e9) for a in range(8) for b in range(8) if a != b}


@pytest.mark.parametrize(
    ("rates", "rate", "usual"), [(all_to_all(8, 390e9), 200e9, 390e9), (two_sockets(), 12e9, 18e9)]
)
def test_a_gpu_all_of_whose_pairs_are_clearly_slower_is_named(rates, rate, usual):
    """Half of its NVLinks, or of its lanes: 51 % of the median pair, and 67 %."""
    said = weak_pairs(slowed(rates, 3, rate))
    assert (said.gpu, said.usual, len(said.pairs) >= 14, said.unclear) == (3, usual, True, "")


def test_a_gpu_of_few_on_pcie_may_have_a_slower_slot():
    said = weak_pairs(slowed(all_to_all(4, 26e9), 3, 16e9))
    assert said.pairs == ()
    assert said.unclear.startswith("pairs reach ")


def test_one_pair_of_a_fabric_of_nvlinks_is_named_at_half_and_not_judged_at_four_fifths():
    assert list(weak_pairs(all_to_all(8, 390e9) | {(2, 5): 199e9}).pairs) == [(2, 5)]
    said = weak_pairs(all_to_all(8, 390e9) | {(2, 5): 310e9})
    assert said.pairs == ()
    assert said.unclear.startswith("pairs reach 79 % to 100 % of the median pair, not alike for every GPU")


def test_groups_that_are_alike_for_every_gpu_are_in_order_and_a_bridge_that_is_missing_is_not_judged():
    bridges = {(a, b): 250e9 if a ^ b == 1 else 20e9 for a in range(8) for b in range(8) if a != b}
    assert weak_pairs(two_sockets()).unclear == weak_pairs(bridges).unclear == ""
    assert weak_pairs(bridges | {(4, 5): 20e9, (5, 4): 20e9}).unclear
