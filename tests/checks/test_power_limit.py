from __future__ import annotations

from clusterbench.checks.power_limit import PowerLimit
from tests.checks.gpus import host, only


def test_a_limit_below_the_default_is_found_with_both():
    fault = only(PowerLimit(), power_limit_w=500.0)
    assert fault.what == "its power limit is 500 W, and by default 700 W"
    assert fault.evidence == "NVML power limit: 500 W; default 700 W"


def test_the_default_rounded_and_more_are_in_order():
    for watts in (699.9, 700.0, 750.0):
        assert PowerLimit().judge(host(power_limit_w=watts)).healthy == "8 NVIDIA GPUs may draw their default power"
    assert PowerLimit().judge(host(power_limit_w=699.0)).faults
