from __future__ import annotations

from clusterbench.checks.relaxed_ordering import RelaxedOrdering
from tests.checks.pcie import BUS, CARD, GPU, judged, no_devices
from tests.facts.healthy.pcie import config


def test_a_card_and_a_gpu_without_it_are_found(tmp_path):
    off = config(relaxed_ordering=False)
    said = judged(RelaxedOrdering(), tmp_path, {f"{CARD}/config": off, f"{GPU}/config": off})
    assert [fault.where for fault in said.faults] == ["network card 0000:4b:00.0", "GPU 0000:4b:01.0"]
    assert {fault.what for fault in said.faults} == {"may not use PCIe relaxed ordering"}
    assert said.faults[0].evidence == f"{BUS}/0000:4b:00.0/config: DevCtl RlxdOrd-"
    assert said.healthy == "14 GPUs and network cards may use relaxed ordering"


def test_without_root_it_is_not_judged(tmp_path):
    said = judged(RelaxedOrdering(), tmp_path, {f"{CARD}/config": config(whole=False)})
    assert (said.unknown[0].why, said.unknown[0].takes) == (f"{BUS}/*/config may be read by root only", "root")
    assert said.faults == ()


def test_a_virtual_function_does_not_show_it(tmp_path):
    link = {f"{CARD}/current_link_speed": "Unknown\n", f"{CARD}/current_link_width": "0\n"}
    said = judged(RelaxedOrdering(), tmp_path, link | {f"{CARD}/config": config(relaxed_ordering=False)})
    (unknown,) = said.unknown
    assert unknown.why == "a virtual function does not show whether its card may use relaxed ordering"
    assert said.faults == ()


def test_a_host_without_them_has_nothing_to_judge(tmp_path):
    assert judged(RelaxedOrdering(), tmp_path, without=no_devices()).not_applicable == "no GPUs and network cards here"
