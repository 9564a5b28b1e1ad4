from __future__ import annotations

import pytest

from clusterbench.checks.nic_failed import NicFailed
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "mlx5_core 0000:18:00.0: poll_health:739:(pid 0): device's health compromised - reached miss count"


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = NicFailed().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "mlx5_core 0000:18:00.0"
    assert fault.what == "stopped or does not answer its driver, once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = NicFailed().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = NicFailed().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")


def test_a_card_that_its_driver_could_not_start_is_one_finding_however_many_lines_say_so(tmp_path):
    said = (
        "mlx5_core 0000:03:00.0: wait_fw_init:199:(pid 7): Waiting for FW initialization, timeout abort in 100s",
        "mlx5_core 0000:03:00.0: mlx5_function_setup:1120: Firmware over 120000 MS in pre-initializing state, aborting",
        "mlx5_core 0000:03:00.0: probe_one:1507:(pid 1): mlx5_init_one failed with error code -16",
        "mlx5_core: probe of 0000:03:00.0 failed with error -16",
    )
    (fault,) = NicFailed().judge(logging(*said).host(tmp_path)).faults
    assert (fault.where, fault.severity, fault.what[:45]) == (
        "mlx5_core 0000:03:00.0",
        None,
        "stopped or does not answer its driver, 3 time",
    )


@pytest.mark.parametrize(
    "said",
    [
        "NETDEV WATCHDOG: ens1f0np0 (mlx5_core): transmit queue 5 timed out",
        "mlx5_core 0000:1a:00.0 ens1f0np0: NETDEV WATCHDOG: CPU: 3: transmit queue 5 timed out 15000 ms",
        "mlx5_core 0000:1a:00.0 ens1f0np0: TX timeout detected",
    ],
)
def test_a_queue_that_stood_still_is_a_warning_the_driver_starts_it_again(tmp_path, said):
    (fault,) = NicFailed().judge(logging(said).host(tmp_path)).faults
    assert (fault.where, fault.severity) == ("ens1f0np0", "warning")
    assert fault.what.startswith("a queue of it sent nothing for seconds and was started again, once")
