from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.hidden_devices import HiddenDevices
from clusterbench.facts.device_files import DeviceFiles
from clusterbench.facts.virtualization import Virtualization
from tests.facts.machine import laptop, training

BARE = Virtualization(machine="none", container="none", maker=None, product=None)
SHOWN = DeviceFiles(
    num_pci=60,
    num_nvidia_on_pci=8,
    nvidia=("nvidia-uvm", *(f"nvidia{number}" for number in range(8)), "nvidiactl"),
    shows_numa_nodes=True,
    has_kfd=False,
)


def judged(machine=BARE, **changed):
    return HiddenDevices().judge(training(machine, replace(SHOWN, **changed)))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"num_pci": 0, "num_nvidia_on_pci": 0}, "PCIe is hidden: 8 GPUs here, whose place NCCL cannot read"),
        ({"shows_numa_nodes": False}, "NUMA nodes are hidden, and threads cannot be put near GPUs"),
        ({"nvidia": ()}, "PCIe shows 8 GPUs of NVIDIA, and /dev has no file for any"),
    ],
)
def test_what_is_hidden_is_found(changed, what):
    (fault,) = judged(**changed).faults
    assert fault.what == what


def test_a_kernel_that_tells_no_numa_nodes_apart_hides_none():
    said = judged(shows_numa_nodes=False, knows_numa=False)
    assert (said.faults, said.healthy) == ((), "shown: 60 PCIe functions, a kernel without NUMA nodes")


def test_memory_shared_with_gpus_needs_its_file_in_a_container_only():
    without = {"nvidia": ("nvidia0", "nvidiactl")}
    (fault,) = judged(replace(BARE, container="docker"), **without).faults
    assert fault.what == "/dev/nvidia-uvm is not in the container, and CUDA cannot start without it"
    assert not judged(**without).faults


def test_a_container_that_shows_all_is_in_order():
    said = judged(replace(BARE, container="docker"))
    assert said.healthy == "shown: 60 PCIe functions, NUMA nodes"


def test_a_container_with_some_of_the_gpus_is_in_order():
    assert not judged(nvidia=("nvidia3", "nvidia-uvm", "nvidiactl")).faults


def test_what_was_not_recorded_is_not_judged_and_a_laptop_not_asked():
    (said,) = HiddenDevices().judge_all([training(BARE)]).values()
    assert said.unknown[0].why == "nothing was recorded of device files"
    assert HiddenDevices().judge(laptop(BARE, replace(SHOWN, num_pci=0))).not_applicable
