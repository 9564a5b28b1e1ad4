from __future__ import annotations

from clusterbench.checks.numa_balancing import NumaBalancing
from clusterbench.facts import Files
from clusterbench.facts.memory_settings import BALANCING, MemorySettings
from tests.facts.machine import Machine, laptop, training


def settings(folder, **files):
    Machine(files=files).write(folder)
    return MemorySettings.read(Files(folder))


def test_balancing_that_is_on_is_found(tmp_path):
    (fault,) = NumaBalancing().judge(training(settings(tmp_path, **{BALANCING: "1\n"}))).faults
    assert fault.what == "automatic NUMA balancing is on, which moves pages of ranks that are bound to their node"
    assert fault.evidence == "/proc/sys/kernel/numa_balancing: 1"


def test_off_is_in_order(tmp_path):
    said = NumaBalancing().judge(training(settings(tmp_path, **{BALANCING: "0\n"})))
    assert said.healthy == "NUMA balancing is off"


def test_tiering_between_kinds_of_memory_is_balancing_too(tmp_path):
    assert NumaBalancing().judge(training(settings(tmp_path, **{BALANCING: "2\n"}))).faults


def test_a_kernel_without_the_setting_is_not_judged(tmp_path):
    (said,) = NumaBalancing().judge_all([training(settings(tmp_path))]).values()
    assert said.unknown[0].why == "/proc/sys/kernel/numa_balancing is not there"


def test_a_host_that_does_not_train_is_not_asked(tmp_path):
    assert NumaBalancing().judge(laptop(settings(tmp_path, **{BALANCING: "1\n"}))).not_applicable
