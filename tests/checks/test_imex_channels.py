from __future__ import annotations

from dataclasses import replace

from clusterbench.checks.imex_channels import ImexChannels
from clusterbench.facts.devices import Devices
from tests.facts.machine import healthy, others

CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"


def judged(machine, folder):
    (said,) = ImexChannels().judge_all([machine.host(folder)]).values()
    return said


def test_a_host_of_gb200_without_a_channel_is_found(tmp_path):
    (fault,) = judged(others()["gb200"].without(CHANNEL), tmp_path).faults
    assert fault.what == "has no IMEX channel: NVLink ends at this host"
    assert fault.evidence == "/dev/nvidia-caps-imex-channels: is not there"


def test_a_channel_that_this_user_may_not_open_is_found(tmp_path):
    machine = others()["gb200"]
    devices = machine.host(tmp_path, "n0").of(Devices)
    machine.give(replace(devices, files={**devices.files, CHANNEL: False}))
    assert judged(machine, tmp_path).faults[0].what == f"{CHANNEL} may not be opened by this user"


def test_with_a_channel_it_is_in_order(tmp_path):
    assert judged(others()["gb200"], tmp_path).healthy == f"{CHANNEL} can be opened"


def test_nvlink_that_ends_at_its_host_needs_none(tmp_path):
    assert judged(healthy(), tmp_path).not_applicable == "no GPU here whose NVLink reaches over hosts"


def test_where_gpus_were_not_recorded_it_is_not_judged(tmp_path):
    machine = healthy()
    del machine.environment["gpus"]
    assert judged(machine, tmp_path).unknown[0].why == "nothing was recorded of GPUs"
