from __future__ import annotations

import pytest

from clusterbench.checks.swap import Swap
from clusterbench.facts import Files
from clusterbench.facts.memory_settings import SWAPS, MemorySettings
from clusterbench.facts.pressure import FOLDER, Pressure
from tests.facts.machine import Machine, laptop, training

HEADING = "Filename Type Size Used Priority\n"


def facts(folder, swaps="", full="0.00"):
    said = f"some avg10=9.00 avg60=9.00 avg300=0.00 total=1\nfull avg10=0.00 avg60={full} avg300=0.00 total=1\n"
    Machine(files={SWAPS: HEADING + swaps, f"{FOLDER}/memory": said}).write(folder)
    return MemorySettings.read(Files(folder)), Pressure.read(Files(folder))


def test_swap_that_is_used_is_a_warning(tmp_path):
    (fault,) = Swap().judge(training(*facts(tmp_path, "/swap.img file 8388604 2097152 -2"))).faults
    assert (fault.where, fault.what) == ("/swap.img", "is swap of 8.0 GiB, 2.0 GiB of it used")
    assert fault.severity is None
    assert fault.evidence == "/proc/swaps: /swap.img file 8388604 2097152"


def test_swap_that_is_not_used_is_a_note(tmp_path):
    (fault,) = Swap().judge(training(*facts(tmp_path, "/swap.img file 8388604 0 -2"))).faults
    assert (fault.what, fault.severity) == ("is swap of 8.0 GiB, none of it used", "note")


def test_tasks_that_wait_for_memory_are_found(tmp_path):
    (fault,) = Swap().judge(training(*facts(tmp_path, full="7.25"))).faults
    assert fault.what == "all tasks waited for memory during 7.2% of the last minute"
    assert fault.evidence == "/proc/pressure/memory: full avg60=7.25"


@pytest.mark.parametrize(("full", "faults"), [("1.00", 0), ("1.01", 1)])
def test_at_the_bound(tmp_path, full, faults):
    assert len(Swap().judge(training(*facts(tmp_path, full=full))).faults) == faults


def test_without_both_it_is_in_order(tmp_path):
    said = Swap().judge(training(*facts(tmp_path)))
    assert said.healthy == "no swap; no task waits for memory (0.0% of the last minute)"


def test_a_kernel_without_pressure_is_judged_by_its_swap_alone(tmp_path):
    settings, _ = facts(tmp_path)
    said = Swap().judge(training(settings, Pressure.read(Files(tmp_path / "absent"))))
    assert said.healthy == "no swap"
    assert said.unknown[0].why == "/proc/pressure/memory is not there"


def test_without_the_list_of_swap_it_is_not_judged(tmp_path):
    empty = Files(tmp_path)
    (said,) = Swap().judge_all([training(MemorySettings.read(empty), Pressure.read(empty))]).values()
    assert said.unknown[0].why == "/proc/swaps is not there"


def test_a_host_that_does_not_train_is_not_asked(tmp_path):
    assert Swap().judge(laptop(*facts(tmp_path, "/swap.img file 8388604 2097152 -2"))).not_applicable
