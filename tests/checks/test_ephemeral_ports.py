from __future__ import annotations

import pytest

from clusterbench.checks.ephemeral_ports import EphemeralPorts
from clusterbench.facts.network_ports import NetworkPorts
from tests.facts.machine import laptop, training


def ports(first, last, in_use=0, waiting=0, **unread):
    return NetworkPorts(first=first, last=last, reserved=None, tcp_in_use=in_use, tcp_waiting=waiting, **unread)


def test_a_narrow_range_is_found():
    (fault,) = EphemeralPorts().judge(training(ports(60000, 60999))).faults
    assert fault.what == "there are 1,000 ports for connections, and large jobs need more"
    assert fault.evidence == "/proc/sys/net/ipv4/ip_local_port_range: 60000 60999"


def test_ports_that_are_taken_are_found():
    (fault,) = EphemeralPorts().judge(training(ports(32768, 60999, 4000, 20000))).faults
    assert fault.what == "TCP sockets hold 24,000 of 28,232 ports"


@pytest.mark.parametrize(
    ("facts", "faults"),
    [
        (ports(1, 16_384), 0),
        (ports(1, 16_383), 1),
        (ports(1, 20_000, 4000, 6000), 0),
        (ports(1, 20_000, 4000, 6001), 1),
    ],
)
def test_at_the_bounds(facts, faults):
    assert len(EphemeralPorts().judge(training(facts)).faults) == faults


def test_the_kernels_default_is_in_order():
    said = EphemeralPorts().judge(training(ports(32768, 60999, 40, 12)))
    assert said.healthy == "28,232 ports for connections, 52 TCP sockets"


def test_without_the_file_it_is_not_judged():
    unread = {"/proc/sys/net/ipv4/ip_local_port_range": "is not there"}
    (said,) = EphemeralPorts().judge_all([training(ports(None, None, unread=unread))]).values()
    assert said.unknown[0].why == "/proc/sys/net/ipv4/ip_local_port_range is not there"


def test_a_host_that_does_not_train_is_not_asked():
    assert EphemeralPorts().judge(laptop(ports(1, 2))).not_applicable
