from __future__ import annotations

import pytest

from clusterbench.checks.gpu_slowdown import GpuSlowdown
from clusterbench.facts.gpus import REASONS
from tests.checks.gpus import host, only
from tests.facts.healthy.gpus import facts
from tests.facts.machine import training


@pytest.mark.parametrize(
    "slowdowns", [("HW Slowdown", "HW Power Brake Slowdown"), ("SW Thermal Slowdown",), ("HW Thermal Slowdown",)]
)
def test_a_gpu_that_is_held_down_at_rest_is_named_with_why(slowdowns):
    fault = only(GpuSlowdown(), slowdowns=slowdowns)
    assert fault.what == f"its clocks are lowered: {', '.join(slowdowns)}"
    assert fault.evidence == f"NVML clock event reasons: {', '.join(slowdowns)}"


def test_reasons_that_nvml_does_not_say_are_not_judged():
    said = GpuSlowdown().judge(host(slowdowns=None, unread={REASONS: "is not in this driver"}))
    assert (said.unknown[0].why, said.faults) == (f"{REASONS} is not in this driver", ())


def test_healthy_gpus_are_in_order():
    assert GpuSlowdown().judge(training(facts())).healthy == "8 NVIDIA GPUs have clocks that nothing holds down"
