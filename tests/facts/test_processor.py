from __future__ import annotations

import pytest

from clusterbench.facts import Files
from clusterbench.facts.processor import FOLDER, IdleState, Processor, cpus
from tests.facts.healthy import processor
from tests.facts.machine import Machine


def read(folder, **files):
    machine = Machine()
    processor.plant(machine)
    machine.files |= files
    machine.write(folder)
    return Processor.read(Files(folder))


def test_clocks_idle_states_and_usable_cpus(tmp_path):
    facts = read(tmp_path)
    assert (facts.usable, facts.online, facts.threads_per_core) == ("0-223", "0-223", 2)
    assert (facts.governors, facts.clock_driver) == ({"performance": 4}, "intel_cpufreq")
    assert facts.idle_states[2] == IdleState("C1E", 2, False)
    assert facts.may_boost is None


def test_a_policy_counts_for_all_cpus_whose_clock_it_sets(tmp_path):
    policy = f"{FOLDER}/cpufreq/policy0"
    facts = read(tmp_path, **{f"{policy}/affected_cpus": "0 1 2 3", f"{policy}/scaling_governor": "powersave"})
    assert facts.governors == {"powersave": 4, "performance": 3}


@pytest.mark.parametrize(("file", "value", "may"), [("intel_pstate/no_turbo", 1, False), ("cpufreq/boost", 1, True)])
def test_boost_is_said_by_either_driver(tmp_path, file, value, may):
    assert read(tmp_path, **{f"{FOLDER}/{file}": str(value)}).may_boost is may


def test_what_is_no_list_of_cpus_has_none():
    assert cpus("0-1,4") == {0, 1, 4}
    assert cpus(None) == cpus("nonsense") == cpus("1-") == frozenset()
