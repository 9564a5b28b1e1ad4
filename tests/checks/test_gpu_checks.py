"""What holds for every check of NVIDIA GPUs."""

from __future__ import annotations

import pytest

from clusterbench.checks import checks
from clusterbench.checks._gpus import GpuCheck
from clusterbench.facts.gpus import NVML, SRAM, SRAM_OLD, Gpu
from tests.checks.gpus import PLACE, host
from tests.facts.healthy.gpus import facts
from tests.facts.machine import training

NAMES = sorted(name for name, kind in checks().items() if issubclass(kind, GpuCheck))


def judged(name, of):
    (said,) = checks()[name]().judge_all([of]).values()
    return said


@pytest.mark.parametrize("name", NAMES)
def test_a_host_without_nvidia_gpus_has_nothing_to_judge(name):
    said = judged(name, training(facts(gpus=(), on_bus=())))
    assert said.not_applicable.startswith("no NVIDIA GPUs")


@pytest.mark.parametrize("name", NAMES)
def test_where_the_driver_is_not_loaded_nothing_is_judged(name):
    why = "gave nothing: NVML failed: Driver Not Loaded"
    said = judged(name, training(facts(gpus=(), unread={NVML: why})))
    assert said.unknown[0].why == f"NVML {why}"
    assert (said.healthy, said.faults, said.not_applicable) == ("", (), "")


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_gpu_is_not_judged_and_the_others_are(name):
    lost = Gpu(3, "GPU is lost", name="NVIDIA H100 80GB HBM3", serial="1650000000003", address="0000:4b:01.0")
    blank = {field: value for field, value in vars(lost).items() if field != "index"}
    said = judged(name, host(**blank))
    assert said.unknown[0].why == f"{PLACE}: GPU is lost"
    assert said.healthy.startswith("7 NVIDIA GPUs")


@pytest.mark.parametrize("name", NAMES)
def test_boards_that_do_not_support_it_are_left_out(name):
    lacks = (checks()[name].asks, SRAM, SRAM_OLD)
    assert judged(name, host(lacks=lacks)).healthy.startswith("7 NVIDIA GPUs")


@pytest.mark.parametrize("name", NAMES)
def test_what_the_driver_does_not_say_is_not_judged(name):
    """Blank, and with the reason that the collector noted."""
    asks = checks()[name].asks
    kept = ("index", "error", "lacks", "name", "uuid", "serial", "address")
    blank = {field: None for field in vars(facts().gpus[3]) if field not in kept}
    said = judged(name, host(unread={asks: "is not in this driver"}, **blank))
    assert said.unknown
    assert said.unknown[0].why.endswith(("is not in this driver", "says nothing"))
    assert said.healthy.startswith("7 NVIDIA GPUs")
