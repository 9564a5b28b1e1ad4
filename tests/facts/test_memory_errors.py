from __future__ import annotations

from clusterbench.facts.memory_errors import FOLDER, Counted, MemoryErrors
from tests.facts.healthy.memory_errors import module
from tests.facts.machine import Machine, healthy, planted


def test_counts_of_a_module_have_its_name_and_how_long_they_were_counted(tmp_path):
    machine = healthy()
    machine.files |= planted(module(1, 0), {"dimm_ce_count": 7}) | planted(f"{FOLDER}/mc1", {"ce_count": 7})
    facts = machine.host(tmp_path).of(MemoryErrors)
    name = "CPU_SrcID#0_MC#1_Chan#0_DIMM#0"
    assert facts.counted == (Counted(module(1, 0), "mc1", name, corrected=7, uncorrected=0, over_s=86_400),)
    assert facts.num_controllers == 4


def test_what_is_of_no_known_module_is_the_controllers(tmp_path):
    machine = healthy()
    machine.files |= planted(module(1, 0), {"dimm_ce_count": 7}) | planted(f"{FOLDER}/mc1", {"ce_count": 9})
    of_module, rest = machine.host(tmp_path).of(MemoryErrors).counted
    assert (of_module.corrected, rest.corrected, rest.module) == (7, 2, "")


def test_a_host_without_a_driver_of_them_has_none(tmp_path):
    assert Machine().host(tmp_path).of(MemoryErrors).num_controllers == 0
