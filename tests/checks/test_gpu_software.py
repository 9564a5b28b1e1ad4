from __future__ import annotations

from dataclasses import replace

from clusterbench.checks.gpu_software import GpuSoftware
from clusterbench.facts import Host
from clusterbench.facts.gpus import NVML
from tests.facts.healthy.gpus import facts
from tests.facts.machine import training


def judged(*described):
    hosts = [Host(f"n{number}", training(each).environment) for number, each in enumerate(described)]
    return GpuSoftware().judge_all(hosts)


def test_an_older_driver_and_vbios_are_found_on_their_host_alone():
    gpus = tuple(replace(gpu, vbios="96.00.30.00.01") for gpu in facts().gpus)
    said = judged(facts(), facts(), facts(gpus=gpus, driver_version="535.54.03"))
    assert [fault.what for fault in said["n2"].faults] == [
        "the NVIDIA driver is 535.54.03, and 550.90.07 on most hosts",
        "the VBIOS of NVIDIA H100 80GB HBM3 is 96.00.30.00.01, and 96.00.74.00.01 on most hosts",
    ]
    assert said["n0"].healthy == "2 traits as on most hosts"


def test_the_vbios_of_one_kind_is_none_of_another():
    def mixed(vbios):
        first, *rest = facts().gpus
        return facts(gpus=(replace(first, name="Tesla T4", vbios=vbios), *rest))

    said = judged(mixed("90.04.84.00.01"), mixed("90.04.84.00.01"), mixed("90.04.38.00.03"))
    assert [fault.what for fault in said["n2"].faults] == [
        "the VBIOS of Tesla T4 is 90.04.38.00.03, and 90.04.84.00.01 on most hosts"
    ]


def test_a_host_without_gpus_has_none_and_one_without_a_driver_is_not_judged():
    said = judged(facts(), facts(gpus=(), on_bus=()), facts(gpus=(), unread={NVML: "gave nothing: no driver"}))
    assert said["n1"].not_applicable == "nothing of the kind here"
    assert said["n2"].unknown[0].why == "NVML gave nothing: no driver"
