from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.gpu_count import GpuCount
from clusterbench.facts.cgroup import Cgroup
from clusterbench.facts.gpus import BUS, NVML, BusGpu, Gpu
from tests.checks.gpus import PLACE, virtualization
from tests.facts.healthy.gpus import facts
from tests.facts.machine import training

ADDRESS = "0000:4b:01.0"


def judged(*, path="/user.slice/session-2.scope", container="none", **changed):
    blank = dict.fromkeys(("cpu_quota", "cpus", "memory_limit_bytes", "memory_used_bytes", "processes_limit"))
    cgroup = Cgroup(version=2, path=path, **blank, num_throttled=None, oom_kills=None)
    host = training(facts(**changed), cgroup, virtualization(container=container))
    (said,) = GpuCount().judge_all([host]).values()
    return said


def bus(**changed):
    return tuple(replace(card, **changed) if card.address == ADDRESS else card for card in facts().on_bus)


def seven():
    """What NVML says when one GPU is not there for it: the others move up."""
    return tuple(replace(gpu, index=number) for number, gpu in enumerate(facts().gpus[:3] + facts().gpus[4:]))


@pytest.mark.parametrize(
    ("changed", "what", "evidence"),
    [
        (
            {"answers": False},
            "has fallen off the bus: it reads as all ones",
            f"{BUS}/{ADDRESS}/config: ff ff ff ff",
        ),
        ({"driver": None}, "has no driver", f"{BUS}/{ADDRESS}/driver: is not there"),
        ({"driver": "nouveau"}, "is held by the driver nouveau", f"{BUS}/{ADDRESS}/driver: nouveau"),
        ({}, "is on the PCIe bus, and the driver does not show it", f"NVML shows 7 GPUs, {BUS} 8"),
    ],
)
def test_a_gpu_that_the_driver_does_not_show_is_named_by_its_slot(changed, what, evidence):
    said = judged(gpus=seven(), on_bus=bus(**changed))
    (fault,) = said.faults
    assert (fault.where, fault.what, fault.evidence) == (f"GPU at {ADDRESS}", what, evidence)


def test_where_no_gpu_has_a_driver_that_is_the_finding():
    on_bus = tuple(BusGpu(card.address, None, True) for card in facts().on_bus)
    said = judged(gpus=(), on_bus=on_bus, unread={NVML: "gave nothing: Driver Not Loaded"})
    assert [fault.what for fault in said.faults] == ["has no driver"] * 8


@pytest.mark.parametrize(
    "changed", [{"path": "/system.slice/slurmstepd.scope/job_7/step_0"}, {"path": "/", "container": "docker"}]
)
def test_in_a_job_or_container_a_missing_gpu_is_not_judged(changed):
    said = judged(gpus=seven(), **changed)
    assert said.faults == ()
    assert said.unknown[0].why == f"the driver does not show GPU {ADDRESS} to this job"


def test_one_given_to_a_virtual_machine_is_not_missed():
    said = judged(gpus=facts().gpus[:4], on_bus=(*bus()[:4], *(replace(each, driver="vfio-pci") for each in bus()[4:])))
    assert (said.faults, said.healthy) == ((), "4 NVIDIA GPUs of 4 on the PCIe bus")


def test_a_lost_gpu_is_named_once_with_or_without_its_address():
    error = "GPU is lost"
    known = Gpu(3, error=error, address=ADDRESS, serial="1650000000003")
    for lost, where in ((known, PLACE), (Gpu(3, error=error), f"GPU at {ADDRESS}")):
        gpus = (*facts().gpus[:3], lost, *facts().gpus[4:])
        said = judged(gpus=gpus)
        assert [(fault.where, fault.what) for fault in said.faults] == [(where, "does not answer: GPU is lost")]
        assert said.healthy == "7 NVIDIA GPUs of 8 on the PCIe bus"


def test_seven_on_a_board_of_eight_are_a_warning_and_four_are_not():
    on_bus = tuple(card for card in facts().on_bus if card.address != ADDRESS)
    (fault,) = judged(gpus=seven(), on_bus=on_bus).faults
    assert fault.what == "has 7 GPUs of the kind NVIDIA H100 80GB HBM3, whose boards hold 4, 8 or 16"
    assert fault.severity == "warning"
    assert judged(gpus=facts().gpus[:4], on_bus=on_bus[:3] + bus()[3:4]).faults == ()
    pcie = tuple(replace(gpu, name="NVIDIA L40S") for gpu in seven())
    assert judged(gpus=pcie, on_bus=on_bus).faults == ()


def test_all_that_the_bus_shows_are_in_order():
    assert judged().healthy == "8 NVIDIA GPUs of 8 on the PCIe bus"


def test_without_gpus_there_is_nothing_and_without_a_bus_it_is_not_judged():
    assert judged(gpus=(), on_bus=()).not_applicable == "no NVIDIA GPUs here"
    said = judged(on_bus=None)
    assert (said.faults, said.healthy, said.unknown[0].why) == ((), "", f"{BUS} is not there")
    why = "gave nothing: Driver Not Loaded"
    assert judged(gpus=(), unread={NVML: why}).unknown[0].why == f"NVML {why}"


def test_gpus_that_the_bus_does_not_show_are_not_judged():
    said = judged(on_bus=())
    assert not said.faults
    assert not said.healthy
    assert said.unknown[0].why == f"{BUS} shows none of 8 GPUs"
