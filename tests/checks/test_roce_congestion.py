from __future__ import annotations

import pytest

from clusterbench.checks.roce_congestion import RoceCongestion
from tests.facts.healthy.ethernet import statistics
from tests.facts.machine import healthy, hung, others, planted

PORT = "/sys/class/infiniband/mlx5_3/ports/1"
RECEIVED, SENT = 10_000_000, 20_000_000


def judged(folder, marked=0, **counters):
    machine = others()["roce"]
    machine.programs["ethtool -S eth3"] = statistics(**counters)
    machine.files |= planted(f"{PORT}/counters", {"port_rcv_packets": RECEIVED, "port_xmit_packets": SENT})
    machine.files |= planted(f"{PORT}/hw_counters", {"np_ecn_marked_roce_packets": marked})
    return RoceCongestion().judge(machine.host(folder))


def test_a_storm_of_pauses_is_found(tmp_path):
    said = judged(tmp_path, tx_pause_storm_error_events=2)
    (fault,) = said.faults
    assert fault.where == "mlx5_3 port 1"
    assert fault.what == "was paused too long 2 times, until eth3 stopped pausing: packets were lost"
    assert fault.evidence == "ethtool -S eth3: tx_pause_storm_error_events: 2"
    assert said.healthy == "7 active RoCE ports without storms, losses, many pauses or marks"


@pytest.mark.parametrize(("discards", "found"), [(820, True), (819, False)])  # 1 % of ten million, at 122 each
def test_packets_that_found_no_buffer_are_found_where_they_cost_a_hundredth(tmp_path, discards, found):
    faults = judged(tmp_path, rx_discards_phy=discards).faults
    words = "has dropped 820 packets for lack of buffers: some 1% of its bandwidth"
    assert [fault.what for fault in faults] == ([words] if found else [])


@pytest.mark.parametrize(("marked", "found"), [(100_001, True), (100_000, False)])
def test_many_marks_of_congestion_are_a_note(tmp_path, marked, found):
    faults = judged(tmp_path, marked=marked).faults
    assert [(fault.what, fault.severity) for fault in faults] == (
        [("has received 1.0% of its packets with a mark of congestion", "note")] if found else []
    )


ECN = "/sys/class/net/eth3/ecn"


@pytest.mark.parametrize(
    ("on", "what"),
    [
        ({"roce_np": "3", "roce_rp": "3"}, None),
        ({"roce_np": "3"}, "does not slow down when it is told of congestion"),
        ({}, "tells no sender of marks of congestion and does not slow down when it is told of congestion"),
    ],
)
def test_a_card_on_which_ecn_is_off_is_a_note(tmp_path, on, what):
    machine = others()["roce"]
    for role in ("roce_np", "roce_rp"):
        machine.files |= planted(
            f"{ECN}/{role}/enable", {str(each): int(on.get(role) == str(each)) for each in range(8)}
        )
    faults = RoceCongestion().judge(machine.host(tmp_path)).faults
    assert [(fault.where, fault.what, fault.severity) for fault in faults] == (
        [("mlx5_3 port 1", what, "note")] if what else []
    )
    assert all(f"{ECN}/roce_rp/enable: 0 for all priorities" in fault.evidence for fault in faults)


def test_ecn_settings_that_cannot_be_read_are_no_finding(tmp_path):
    machine = others()["roce"]
    machine.files |= planted(f"{ECN}/roce_np/enable", {"0": 0, "1": "?"})
    assert not RoceCongestion().judge(machine.host(tmp_path)).faults


def test_pauses_alone_are_how_a_lossless_network_works(tmp_path):
    assert not judged(tmp_path, rx_prio3_pause=12_453, tx_prio3_pause=8_921).faults


@pytest.mark.parametrize(
    ("counters", "what", "severity"),
    [
        ({"rx_prio3_pause": 199_999}, None, None),
        ({"rx_prio3_pause": 200_000}, "was told to pause 200,000 times, 1.0% of the packets that it sent", "note"),
        ({"rx_prio3_pause": 2_000_000}, "was told to pause 2,000,000 times, 10.0% of the packets", "warning"),
        ({"tx_prio5_pause": 1_000_000}, "told the other end to pause 1,000,000 times, 10.0% of the", "warning"),
    ],
)
def test_many_pauses_for_the_packets_that_they_stop_are_found(tmp_path, counters, what, severity):
    faults = judged(tmp_path, **counters).faults
    assert [fault.severity for fault in faults] == ([severity] if what else [])
    assert all(fault.what.startswith(what) for fault in faults)


def test_without_ethtool_or_with_one_that_hangs_it_is_not_judged(tmp_path):
    said = RoceCongestion().judge(others()["roce"].without("ethtool").host(tmp_path / "a"))
    assert [unknown.why for unknown in said.unknown] == ["ethtool --version: ethtool is not on PATH"]
    machine = others()["roce"]
    machine.programs["ethtool -S eth3"] = hung("ethtool -S eth3")
    said = RoceCongestion().judge(machine.host(tmp_path / "b"))
    assert [unknown.why for unknown in said.unknown] == ["ethtool -S eth3: had not ended after 2 s"]


def test_another_makers_card_is_not_judged(tmp_path):
    machine = others()["roce"]
    machine.programs["ethtool -S eth3"] = "NIC statistics:\n     rx_pfc_frames: 0\n"
    said = RoceCongestion().judge(machine.host(tmp_path))
    assert said.unknown[0].why == "ethtool -S eth3 has neither tx_pause_storm_error_events nor rx_discards_phy"


def test_infiniband_has_none_to_judge(tmp_path):
    assert RoceCongestion().judge(healthy().host(tmp_path)).not_applicable == "no active RoCE ports here"
