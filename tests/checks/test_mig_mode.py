from __future__ import annotations

from clusterbench.checks.mig_mode import MigMode
from tests.checks.gpus import host, only


def test_a_gpu_that_is_cut_into_instances_is_found():
    fault = only(MigMode(), mig=True)
    assert (fault.what, fault.evidence) == ("is cut into instances (MIG)", "NVML MIG mode: enabled")


def test_whole_gpus_are_in_order():
    assert MigMode().judge(host()).healthy == "8 NVIDIA GPUs with MIG have MIG off"
