from __future__ import annotations

from clusterbench.checks.oom_killer import OomKiller
from clusterbench.doctor import examine
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "Out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB"


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = OomKiller().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == ""
    assert fault.what == "python3 was killed because the host was out of memory, once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = OomKiller().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = OomKiller().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")


def test_a_process_at_the_limit_of_its_container_is_told_apart(tmp_path):
    machine = logging("Memory cgroup out of memory: Killed process 47 (python3) total-vm:9kB, anon-rss:8kB")
    (fault,) = OomKiller().judge(machine.host(tmp_path)).faults
    assert fault.what.startswith("python3 was killed at the memory limit of its container or job")


def test_a_host_is_not_ill_because_memory_ran_out_once(tmp_path):
    host = logging(LINE).host(tmp_path)
    examination = examine([host.name], {"oom_killer": OomKiller().judge_all([host])})
    assert [found.severity for found in examination.found] == ["note"]
    assert examination.exit_code == 0
