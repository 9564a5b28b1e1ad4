from __future__ import annotations

import pytest

ENGINES = ("sm", "dma")


def table(gpus, pair=280.0, host=26.2, **other):
    """Copies by both engines; ``other`` replaces figures by their name."""
    rates = {}
    for engine in ENGINES:
        for gpu in gpus:
            for node in (0, 1):
                rates[f"cpu_to_gpu{gpu}_by_{engine}_under_numa{node}"] = host - node * 10
            rates |= {f"gpu{gpu}_to_gpu{peer}_write_by_{engine}": pair for peer in gpus if peer != gpu}
    return "".join(f"{name} {rate}\n" for name, rate in (rates | other).items())


SLOW = table(range(4), gpu1_to_gpu2_write_by_dma=90.0)


def named(examination):
    return [(found.name, found.where) for found in examination.found]


def test_copies_that_are_alike_are_in_order_and_the_farther_node_is_no_fault(examined):
    examination, kind = examined(table(range(8)))
    assert (kind, examination.word) == ("gpu_copy of SuperBench", "HEALTHY")


def test_a_pair_that_is_far_slower_than_its_peers_is_found(examined):
    examination, _ = examined(SLOW)
    (found,) = examination.found
    assert (found.where, found.what) == ("GPU 1 -> GPU 2", "copies 90.0 GB/s, the median pair 280.0 GB/s")
    assert found.evidence.endswith(": gpu1_to_gpu2_write_by_dma 90.0")


def test_a_gpu_that_all_slow_pairs_have_in_common_is_found_once_an_engine(examined):
    slow = {f"gpu{a}_to_gpu{b}_write_by_sm": 20.0 for a in range(8) for b in range(8) if a != b and 5 in (a, b)}
    assert named(examined(table(range(8), **slow))[0]) == [("weak_pair", "GPU 5 and all others")]


@pytest.mark.parametrize("nodes", [(0, 1)])
def test_a_gpu_at_half_of_its_lanes_is_found(examined, nodes):
    slow = {f"cpu_to_gpu2_by_dma_under_numa{node}": 12.9 for node in nodes}
    assert named(examined(table(range(4), **slow))[0]) == [("weak_copy", "GPU 2")]


def test_a_gpu_that_is_missing_between_others_is_found(examined):
    assert named(examined(table([0, 1, 3]))[0]) == [("missing_copy", "GPU 2")]


def test_pairs_that_are_slower_alike_for_every_gpu_are_how_the_host_was_built(examined):
    slow = {f"gpu{a}_to_gpu{b}_write_by_{e}": 100.0 for a in range(4) for b in range(4) for e in ENGINES if a + b == 3}
    assert examined(table(range(4), **slow))[0].word == "HEALTHY"


def test_a_gpu_of_another_socket_is_not_judged(examined):
    slow = {f"gpu{a}_to_gpu{b}_write_by_{e}": 8.0 for a in range(4) for b in range(4) for e in ENGINES if 3 in (a, b)}
    examination, _ = examined(table(range(4), pair=26.0, **{k: v for k, v in slow.items() if "gpu3_to_gpu3" not in k}))
    assert (examination.found, examination.word) == ((), "NOT JUDGED")


def test_a_real_text_is_in_order_and_planted_faults_in_it_are_found(examined, sample):
    text = sample("gpu_copy_bw_superbench.txt")
    assert examined(text)[0].word == "HEALTHY"
    planted = text.replace("gpu1_to_gpu0_read_by_dma 275.825", "gpu1_to_gpu0_read_by_dma 25.825")
    assert named(examined(planted)[0]) == [("weak_pair", "GPU 1 -> GPU 0")]
    assert named(examined(text.replace("gpu1", "gpu2"))[0]) == [("missing_copy", "GPU 1")]


@pytest.mark.parametrize("text", [SLOW + table(range(4)), table(range(4)) + SLOW])
def test_of_two_runs_the_slowest_counts(examined, text):
    assert named(examined(text)[0]) == [("weak_pair", "GPU 1 -> GPU 2")]
