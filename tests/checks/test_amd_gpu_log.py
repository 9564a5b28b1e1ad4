from __future__ import annotations

import pytest

from clusterbench.checks.amd_gpu_log import AmdGpuLog
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "amdgpu 0000:c1:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block"


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = AmdGpuLog().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "GPU 0000:c1:00"
    assert fault.what == (
        "failed: an error that was not corrected, or it could not be started or reset, once, 2026-03-02 14:01:39 UTC"
    )
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=48225, emitted seq=48227",
    ],
)
def test_a_reset_is_a_warning(tmp_path, line):
    (fault,) = AmdGpuLog().judge(logging(line).host(tmp_path)).faults
    assert fault.severity == "warning"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = AmdGpuLog().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = AmdGpuLog().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")
