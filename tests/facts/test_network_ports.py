from __future__ import annotations

from clusterbench.facts import Files
from clusterbench.facts.network_ports import NetworkPorts
from tests.facts.healthy import network_ports
from tests.facts.machine import Machine


def test_range_and_sockets(tmp_path):
    machine = Machine()
    network_ports.plant(machine)
    machine.write(tmp_path)
    facts = NetworkPorts.read(Files(tmp_path))
    assert (facts.first, facts.last, facts.tcp_in_use, facts.tcp_waiting) == (32768, 60999, 40, 12)
    assert facts.reserved is None


def test_without_the_files(tmp_path):
    facts = NetworkPorts.read(Files(tmp_path))
    assert (facts.first, facts.tcp_in_use) == (None, None)
    assert set(facts.unread) == {"/proc/sys/net/ipv4/ip_local_port_range", "/proc/net/sockstat"}
