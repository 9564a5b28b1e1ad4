from __future__ import annotations

import pytest

from clusterbench.checks.gpu_reset_due import GpuResetDue
from clusterbench.facts.gpus import RECOVERY
from tests.checks.gpus import host, only
from tests.facts.healthy.gpus import facts
from tests.facts.machine import training


@pytest.mark.parametrize("action", ["GPU Reset", "Node Reboot", "Drain and Reset", "number 7"])
def test_what_the_driver_asks_for_is_named(action):
    fault = only(GpuResetDue(), recovery_action=action)
    assert fault.what == f"the driver asks for recovery: {action}"
    assert fault.evidence == f"NVML GPU recovery action: {action}"


def test_a_driver_that_does_not_know_of_it_has_nothing_to_judge():
    said = GpuResetDue().judge(host(recovery_action=None, lacks=(RECOVERY,)))
    assert (said.faults, said.unknown) == ((), ())


def test_healthy_gpus_are_in_order():
    assert GpuResetDue().judge(training(facts())).healthy == "8 NVIDIA GPUs that tell of it ask for no reset"
