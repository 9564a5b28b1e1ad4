from __future__ import annotations

from clusterbench.checks.persistence_mode import PersistenceMode
from tests.checks.gpus import host, only


def test_off_is_a_note():
    fault = only(PersistenceMode(), persistence=False)
    assert (fault.what, fault.evidence) == ("persistence mode is off", "NVML persistence mode: disabled")
    assert PersistenceMode.severity == "note"


def test_on_is_in_order():
    assert PersistenceMode().judge(host()).healthy == "8 NVIDIA GPUs have persistence mode on"
