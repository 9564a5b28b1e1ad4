from __future__ import annotations

from clusterbench.checks.acs import Acs
from tests.checks.pcie import BRIDGE, BUS, judged, no_devices
from tests.facts.healthy.pcie import config

CONFIG = f"{BRIDGE}/config"
ON = {CONFIG: config(acs=0b0011101)}


def test_a_bridge_that_redirects_is_named_with_what_hangs_on_it(tmp_path):
    said = judged(Acs(), tmp_path, ON)
    (fault,) = said.faults
    assert fault.where == "PCIe bridge 0000:43:01.0 above GPU 0000:4b:01.0"
    assert fault.what == "sends traffic between devices up to the CPU: access control services (ACS) are on"
    bits = "SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+"
    assert fault.evidence == f"{BUS}/0000:43:01.0/config: ACSCtl {bits}"
    assert fault.severity is None
    assert said.healthy == "7 PCIe bridges above GPUs and network cards redirect nothing (ACS off)"


def test_source_validation_alone_is_found_and_blocking_alone_is_not(tmp_path):
    assert judged(Acs(), tmp_path / "a", {CONFIG: config(acs=0b1)}).faults
    assert not judged(Acs(), tmp_path / "b", {CONFIG: config(acs=0b10)}).faults


def test_in_a_virtual_machine_it_is_a_note(tmp_path):
    cpu = {"/proc/cpuinfo": "flags\t\t: fpu hypervisor\n"}
    (fault,) = judged(Acs(), tmp_path, ON | cpu, ["systemd-detect-virt"]).faults
    assert fault.severity == "note"
    assert fault.what == "has access control services (ACS) on, as a virtual machine needs"


def test_without_root_it_is_not_judged(tmp_path):
    said = judged(Acs(), tmp_path, {CONFIG: config(whole=False)})
    assert said.unknown[0].why == f"{BUS}/*/config may be read by root only"
    assert said.unknown[0].takes == "root"
    assert said.faults == ()


def test_without_gpus_and_cards_there_are_no_bridges_to_judge(tmp_path):
    said = judged(Acs(), tmp_path, without=no_devices())
    assert said.not_applicable == "no PCIe bridges above GPUs and network cards here"
