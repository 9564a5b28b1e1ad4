from __future__ import annotations

import pytest

from clusterbench.checks.link_flaps import LinkFlaps
from tests.facts.healthy.kernel_log import logging

DOWN, UP = ("mlx5_core 0000:18:00.0 ibs0: Link down", "mlx5_core 0000:18:00.0 ibs0: Link up")


def test_a_link_that_went_down_twice_is_found(tmp_path):
    (fault,) = LinkFlaps().judge(logging(DOWN, UP, DOWN, UP).host(tmp_path)).faults
    assert (fault.where, fault.what) == ("ibs0", "lost its link, 2 times, last 2026-03-02 14:01:39 UTC")


@pytest.mark.parametrize("texts", [(DOWN, UP), (), ("mlx5_core 0000:29:00.0 ibs1: Link down",) * 3])
def test_one_that_went_down_once_or_was_never_up_is_none(tmp_path, texts):
    assert LinkFlaps().judge(logging(*texts).host(tmp_path)).healthy.startswith("no link that went down repeatedly")
