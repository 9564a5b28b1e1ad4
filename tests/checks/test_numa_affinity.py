from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.numa_affinity import NumaAffinity
from clusterbench.facts import Files
from clusterbench.facts.processor import Processor
from tests.facts.machine import laptop, training

LOW = [{"address": f"0000:{bus}:00.0", "kind": "display", "id": "10de:2330", "numa_node": 0} for bus in ("18", "2a")]


@pytest.fixture
def processor(tmp_path):
    return replace(Processor.read(Files(tmp_path)), usable="0-223")


def test_cpus_of_the_other_socket_are_found(processor):
    bound = replace(processor, usable="56-111")
    (fault,) = NumaAffinity().judge(training(bound, pcie=LOW)).faults
    assert fault.what == "NUMA node 0 has 2 GPUs and no CPU that may be used (56-111)"
    assert fault.severity is None
    assert fault.evidence == "/proc/self/status: Cpus_allowed_list 56-111; GPUs 0000:18:00.0, 0000:2a:00.0"


def test_cpus_of_one_socket_for_gpus_of_both_are_a_note(processor):
    (fault,) = NumaAffinity().judge(training(replace(processor, usable="0-13"))).faults
    what = "NUMA node 1 has 4 GPUs and no CPU that may be used (0-13): right for ranks of the other 4 GPUs only"
    assert (fault.what, fault.severity) == (what, "note")


def test_all_cpus_are_in_order(processor):
    assert NumaAffinity().judge(training(processor)).healthy == "CPUs near 8 GPUs may be used"


def test_a_gpu_without_a_node_is_not_judged_and_the_others_are(processor):
    said = NumaAffinity().judge(training(processor, pcie=[LOW[0], LOW[1] | {"numa_node": -1}]))
    assert said.healthy == "CPUs near 1 GPU may be used"
    assert said.unknown[0].why == "no NUMA node is said of 1 GPU: 0000:2a:00.0"


def test_gpus_that_pcie_does_not_show_are_not_judged(processor):
    (said,) = NumaAffinity().judge_all([training(processor, pcie=[])]).values()
    assert said.unknown[0].why == "PCIe shows none of the GPUs"


def test_one_node_and_no_gpu_are_not_asked(processor):
    one = [{"node": 0, "cpus": "0-223", "memory_bytes": 1}]
    assert NumaAffinity().judge(training(processor, numa_nodes=one)).not_applicable.startswith("one NUMA node")
    assert NumaAffinity().judge(laptop(processor)).not_applicable == "no GPU here"
