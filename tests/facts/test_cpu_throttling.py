from __future__ import annotations

from clusterbench.facts.cpu_throttling import CpuThrottling, Socket
from tests.facts.healthy.cpu_throttling import throttled
from tests.facts.machine import Machine, healthy


def test_a_socket_is_as_hot_as_its_hottest_core(tmp_path):
    machine = healthy()
    machine.files |= throttled(2, 40, 1_500) | throttled(3, 4123, 900_000)
    facts = machine.host(tmp_path).of(CpuThrottling)
    assert facts.sockets == (Socket(0, 0, 0.0), Socket(1, 4123, 900.0))
    assert facts.uptime_s == 86_400.25


def test_older_kernels_do_not_say_for_how_long(tmp_path):
    machine = healthy()
    for path in [path for path in machine.files if path.endswith("_total_time_ms")]:
        del machine.files[path]
    assert machine.host(tmp_path).of(CpuThrottling).sockets[0] == Socket(0, 0, None)


def test_a_host_without_counts_has_no_sockets(tmp_path):
    assert Machine().host(tmp_path).of(CpuThrottling).sockets == ()
