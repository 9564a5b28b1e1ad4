from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.cpu_governor import CpuGovernor
from clusterbench.facts import Files
from clusterbench.facts.processor import IdleState, Processor
from clusterbench.facts.virtualization import Virtualization
from tests.facts.healthy import processor
from tests.facts.machine import Machine, laptop, training


def facts(folder, **changed):
    machine = Machine()
    processor.plant(machine)
    machine.write(folder)
    return replace(Processor.read(Files(folder)), **changed)


def test_a_governor_that_saves_power_is_found(tmp_path):
    changed = facts(tmp_path, governors={"performance": 220, "powersave": 4}, preferences={"balance_power": 224})
    (fault,) = CpuGovernor().judge(training(changed)).faults
    assert fault.what == "the governor powersave sets the clock of 4 of 224 CPUs"
    assert fault.evidence == (
        "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor: powersave; energy_performance_preference:"
        " balance_power; scaling_driver: intel_cpufreq"
    )


def test_powersave_that_prefers_performance_is_in_order(tmp_path):
    said = CpuGovernor().judge(
        training(facts(tmp_path, governors={"powersave": 224}, preferences={"performance": 224}))
    )
    assert said.healthy == "governor: powersave; no deep idle state"


@pytest.mark.parametrize(
    ("state", "faults"),
    [
        (IdleState("C6", 133, False), 1),
        (IdleState("C6", 133, True), 0),
        (IdleState("C2", 50, False), 0),
        (IdleState("C6", None, False), 0),
    ],
)
def test_deep_idle_states_are_noted_unless_disabled(tmp_path, state, faults):
    said = CpuGovernor().judge(training(facts(tmp_path, idle_states=(state,))))
    assert [fault.severity for fault in said.faults] == ["note"] * faults
    if faults:
        assert said.faults[0].what == "idle CPUs may go into states that take more than 50 us to leave: C6 (133 us)"


def test_clocks_of_a_virtual_machine_are_its_hosts(tmp_path):
    guest = Virtualization.read(Files(tmp_path / "none"))
    without = facts(tmp_path, governors={})
    said = CpuGovernor().judge(training(without, replace(guest, machine="kvm")))
    assert said.not_applicable == "a virtual machine, whose clock its host sets"
    (said,) = CpuGovernor().judge_all([training(without, replace(guest, machine="none"))]).values()
    assert said.unknown[0].why.endswith("cpufreq has no policy: firmware sets the clocks")


def test_a_host_that_does_not_train_is_not_asked(tmp_path):
    assert CpuGovernor().judge(laptop(facts(tmp_path, governors={"powersave": 8}))).not_applicable
