from __future__ import annotations

from clusterbench.facts import Files
from clusterbench.facts.device_files import DeviceFiles
from tests.facts.machine import healthy


def test_what_a_process_sees(tmp_path):
    healthy().write(tmp_path)
    facts = DeviceFiles.read(Files(tmp_path))
    assert facts.num_nvidia_on_pci == 8
    assert facts.nvidia[0] == "nvidia-uvm"
    assert (len(facts.nvidia), facts.shows_numa_nodes, facts.knows_numa, facts.has_kfd) == (10, True, True, False)


def test_an_empty_tree_shows_nothing(tmp_path):
    facts = DeviceFiles.read(Files(tmp_path))
    assert (facts.num_pci, facts.nvidia, facts.shows_numa_nodes, facts.knows_numa) == (0, (), False, False)
