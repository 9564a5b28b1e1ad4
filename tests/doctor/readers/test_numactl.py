from __future__ import annotations

import pytest

HARDWARE = """\
available: 3 nodes (0-2)
node 0 cpus: 0 1 2 3
node 0 size: 128000 MB
node 0 free: 1000 MB
node 1 cpus: 4 5 6 7
node 1 size: {memory} MB
node 1 free: 0 MB
node 2 cpus:
node 2 size: 96000 MB
node 2 free: 96000 MB
node distances:
node   0   1   2
  0:  10  32  80
  1:  32  10  80
  2:  80  80  10
"""


@pytest.mark.parametrize(
    ("memory", "what"),
    [
        (0, "4 CPUs have no memory of their own"),
        (112000, "has 109 GiB of memory, and another node 125 GiB"),
        (120000, ""),
        (128100, ""),
    ],
)
def test_a_node_without_memory_or_with_less_than_its_sibling_is_found(examined, memory, what):
    examination, kind = examined(HARDWARE.format(memory=memory))
    assert kind == "numactl --hardware"
    if not what:
        assert examination.word == "HEALTHY"
        return
    (found,) = examination.found
    assert (found.where, found.what, found.severity) == ("NUMA node 1", what, "warning")
    assert found.evidence == f"said.txt:6: node 1 size: {memory} MB"


def test_a_small_host_keeps_a_larger_share_for_its_kernel(examined):
    text = HARDWARE.replace("128000", "16000").format(memory=14000)
    assert examined(text)[0].word == "HEALTHY"


def test_nodes_of_a_text_that_is_cut_are_not_judged(examined):
    examination, _ = examined(HARDWARE.format(memory=0)[:150])
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.not_judged[0].why == "the text holds 2 NUMA nodes of 3"


def test_a_single_node_has_nothing_to_be_held_against(examined):
    text = "available: 1 nodes (0)\nnode 0 cpus: 0 1\nnode 0 size: 8000 MB\nnode 0 free: 10 MB\n"
    assert examined(text)[0].word == "NOT JUDGED"


def test_a_node_without_memory_is_found_in_a_real_text(examined, sample):
    examination, _ = examined(sample("numactl_hardware.txt").replace("193477 MB", "0 MB"))
    assert [found.evidence for found in examination.found] == ["said.txt:6: node 1 size: 0 MB"]
