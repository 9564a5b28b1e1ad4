from __future__ import annotations

from clusterbench.checks.application_clocks import ApplicationClocks
from tests.checks.gpus import host, only

IN_ORDER = "8 NVIDIA GPUs with application clocks have them at their default or at the most"


def test_a_clock_set_below_the_most_is_found():
    fault = only(ApplicationClocks(), application_clock_hz=1.2e9)
    assert fault.what == "its SM clock was limited to 1200 MHz, and could be 1980 MHz"
    assert fault.evidence == "NVML application clock: 1200 MHz; highest 1980 MHz"


def test_a_default_below_the_most_is_no_limit():
    """An A100's is 1095 MHz, and it runs at 1410."""
    a100 = {"application_clock_hz": 1.095e9, "default_application_clock_hz": 1.095e9, "max_clock_hz": 1.41e9}
    assert ApplicationClocks().judge(host(**a100)).healthy == IN_ORDER


def test_the_most_is_in_order_whatever_the_default():
    assert ApplicationClocks().judge(host(default_application_clock_hz=1.5e9)).healthy == IN_ORDER
