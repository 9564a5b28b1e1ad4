from __future__ import annotations

import pytest

from clusterbench.checks.limited_pcie import LimitedPcie
from tests.facts.healthy.kernel_log import logging

LINE = (
    "mlx5_core 0000:{card}:00.0: {left} Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x16 link "
    "at 0000:01:00.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
)


def test_a_card_whose_ports_carry_more_than_pcie_gives_is_found(tmp_path):
    (fault,) = LimitedPcie().judge(logging(LINE.format(card="18", left="252.048")).host(tmp_path)).faults
    assert (fault.where, fault.severity) == ("mlx5_core 0000:18:00.0", None)
    assert fault.what == (
        "has 252 of 504 Gb/s of PCIe, limited by 16.0 GT/s PCIe x16 link at 0000:01:00.0, once, "
        "2026-03-02 14:01:39 UTC; its ports carry 400 Gb/s"
    )


@pytest.mark.parametrize(("card", "left"), [("18", "400.000"), ("77", "252.048")])
def test_a_card_that_has_enough_or_of_unknown_ports_is_a_note(tmp_path, card, left):
    (fault,) = LimitedPcie().judge(logging(LINE.format(card=card, left=left)).host(tmp_path)).faults
    assert fault.severity == "note"
