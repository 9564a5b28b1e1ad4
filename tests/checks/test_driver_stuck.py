from __future__ import annotations

from clusterbench.checks.driver_stuck import DriverStuck
from tests.facts.healthy.kernel_log import logging
from tests.facts.machine import healthy

# kernel_nvlink.c of NVIDIA's open kernel modules prints the two for each pair of GPUs.
UPDATE = "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!"
DISCOVER = "NVRM: knvlinkDiscoverPostRxDetLinks_GB100: Getting peer3's postRxDetLinkMask failed!"


def test_what_is_asked_again_and_again_is_one_fault(tmp_path):
    (fault,) = DriverStuck().judge(logging(*(UPDATE, DISCOVER) * 3).host(tmp_path)).faults
    assert fault.where == ""
    assert fault.what == (
        "NVIDIA's driver got no answer when it asked which NVLinks are up, 6 times, last 2026-03-02 14:01:39 UTC"
    )
    assert fault.evidence == f"/dev/kmsg: {UPDATE}"


def test_a_log_without_it_is_in_order(tmp_path):
    assert DriverStuck().judge(healthy().host(tmp_path)).healthy
