from __future__ import annotations

import pytest

from clusterbench.checks.rdma_retransmission import RdmaRetransmission
from tests.facts.machine import healthy, planted

PORT = "/sys/class/infiniband/mlx5_3/ports/1"
SENT = 10_000_000


def judged(folder, *without, **counters):
    machine = healthy()
    machine.files |= planted(f"{PORT}/hw_counters", counters) | planted(f"{PORT}/counters", {"port_xmit_packets": SENT})
    return RdmaRetransmission().judge(machine.without(*without).host(folder))


def test_a_port_that_loses_packets_is_found_with_what_it_costs(tmp_path):
    (fault,) = judged(tmp_path, packet_seq_err=9_000, implied_nak_seq_err=1_000).faults
    assert fault.where == "mlx5_3 port 1"
    assert fault.what == (
        "has lost some 12% of its bandwidth to packets that were sent again: 9,000 packet_seq_err, "
        "1,000 implied_nak_seq_err"
    )
    assert fault.severity == "error"


@pytest.mark.parametrize(
    ("lost", "severity"),
    [(8_192, "error"), (8_191, "warning"), (820, "warning"), (819, None)],  # 10 %: 8192, 1 %: 819.2 of ten million
)
def test_a_tenth_is_an_error_and_a_hundredth_a_warning(tmp_path, lost, severity):
    faults = judged(tmp_path, packet_seq_err=lost).faults
    assert [fault.severity for fault in faults] == ([severity] if severity else [])


def test_timeouts_are_a_note(tmp_path):
    (fault,) = judged(tmp_path, local_ack_timeout_err=3).faults
    assert fault.what == "has counted 3 local_ack_timeout_err: connections that stood still, or jobs that were killed"
    assert fault.severity == "note"


def test_what_adaptive_routing_reorders_is_silent(tmp_path):
    assert not judged(tmp_path, out_of_sequence=5_000_000).faults


@pytest.mark.parametrize("part", ["hw_counters", "counters/port_xmit_packets"])
def test_without_its_counters_it_is_not_judged(tmp_path, part):
    said = judged(tmp_path, f"{PORT}/{part}")
    assert said.unknown[0].why == f"{PORT}/{part} is not there"
    assert said.healthy == "7 active training ports that sent less than 1 % again"


def test_a_host_without_ports_has_none_to_judge(tmp_path):
    assert judged(tmp_path, "/sys/class/infiniband").not_applicable
