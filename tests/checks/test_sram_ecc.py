from __future__ import annotations

import pytest

from clusterbench.checks.sram_ecc import SramEcc
from tests.checks.gpus import host, only


@pytest.mark.parametrize(
    ("errors", "exceeded", "what", "severity"),
    [
        (1, False, "one uncorrectable SRAM error", "warning"),
        (4, None, "4 uncorrectable errors in its SRAM, in its life", "warning"),
        (5, None, "5 uncorrectable errors in its SRAM, in its life: the board is to be returned", None),
        (2, True, "2 uncorrectable errors in its SRAM, in its life: the board is to be returned", None),
    ],
)
def test_errors_are_found_and_above_four_or_the_boards_threshold_they_are_severe(errors, exceeded, what, severity):
    fault = only(SramEcc(), sram_uncorrectable=errors, sram_threshold_exceeded=exceeded)
    assert (fault.what, fault.severity) == (what, severity)
    assert fault.evidence.startswith(f"NVML aggregate uncorrectable SRAM errors: {errors}")


def test_none_is_in_order_with_a_driver_that_knows_no_threshold():
    said = SramEcc().judge(host(sram_threshold_exceeded=None))
    assert said.healthy == "8 NVIDIA GPUs with ECC have no uncorrectable SRAM error"
