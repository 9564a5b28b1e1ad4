from __future__ import annotations

from clusterbench.checks.pcie_payload import PciePayload
from tests.checks.pcie import BRIDGE, BUS, CARD, GPU, judged, no_devices
from tests.facts.healthy.pcie import config


def test_packets_that_a_bridge_above_does_not_take_are_found(tmp_path):
    said = judged(PciePayload(), tmp_path, {f"{GPU}/config": config(payload=2, most_payload=2)})
    (fault,) = said.faults
    assert fault.where == "GPU 0000:4b:01.0"
    assert fault.what == "sends packets with 512 bytes of data, and PCIe bridge 0000:43:01.0 above takes 256"
    assert fault.evidence == (
        f"{BUS}/0000:4b:01.0/config: DevCtl MaxPayload 512 bytes; {BUS}/0000:43:01.0/config: 256 bytes"
    )
    assert fault.severity != "note"


def test_packets_that_could_carry_more_are_noted(tmp_path):
    said = judged(PciePayload(), tmp_path, {f"{GPU}/config": config(payload=0)})
    (fault,) = said.faults
    assert fault.what == "sends packets with 128 bytes of data, where it and the bridges above can 256"
    assert fault.severity == "note"


def test_a_bridge_that_can_no_more_leaves_it_at_that(tmp_path):
    small = config(payload=0, most_payload=0)
    said = judged(PciePayload(), tmp_path, {f"{GPU}/config": config(payload=0), f"{BRIDGE}/config": small})
    assert said.faults == ()
    assert said.healthy == "16 GPUs and network cards send packets of the size that all bridges above take"


def test_a_card_that_could_send_more_and_shows_no_bridge_above_is_not_judged(tmp_path):
    said = judged(PciePayload(), tmp_path, {f"{CARD}/config": config(payload=0)})
    assert [unknown.why for unknown in said.unknown] == ["the PCIe tree shows no bridge above it"]
    assert said.faults == ()


def test_without_root_it_is_not_judged(tmp_path):
    said = judged(PciePayload(), tmp_path, {f"{GPU}/config": config(whole=False)})
    assert ("root", f"{BUS}/*/config may be read by root only") in {(each.takes, each.why) for each in said.unknown}
    assert said.faults == ()


def test_a_virtual_function_does_not_show_it(tmp_path):
    link = {f"{GPU}/current_link_speed": "Unknown\n", f"{GPU}/current_link_width": "0\n"}
    said = judged(PciePayload(), tmp_path, link | {f"{GPU}/config": config(payload=0)})
    assert "a virtual function does not show how large its packets are" in {unknown.why for unknown in said.unknown}
    assert said.faults == ()


def test_a_host_without_them_has_nothing_to_judge(tmp_path):
    assert judged(PciePayload(), tmp_path, without=no_devices()).not_applicable == "no GPUs and network cards here"
