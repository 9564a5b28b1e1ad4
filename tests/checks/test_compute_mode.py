from __future__ import annotations

from clusterbench.checks.compute_mode import ComputeMode
from tests.checks.gpus import host, only


def test_exclusive_is_a_warning_and_prohibited_an_error():
    fault = only(ComputeMode(), compute_mode="exclusive process")
    assert fault.what == "takes one process at a time: its compute mode is exclusive process"
    assert (fault.severity, ComputeMode.severity) == (None, "warning")
    fault = only(ComputeMode(), compute_mode="prohibited")
    assert fault.what == "takes no process: its compute mode is prohibited"
    assert fault.severity == "error"


def test_the_default_is_in_order():
    assert ComputeMode().judge(host()).healthy == "8 NVIDIA GPUs are in compute mode default"
