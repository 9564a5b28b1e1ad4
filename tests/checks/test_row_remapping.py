from __future__ import annotations

import pytest

from clusterbench.checks.row_remapping import RowRemapping
from tests.checks.gpus import host, only


@pytest.mark.parametrize(
    ("changed", "what", "evidence"),
    [
        (
            {"remap_pending": True, "remapped_uncorrectable": 1},
            "a row of its memory waits to be replaced: the GPU needs a reset",
            "NVML remapped rows: pending yes, failed no, uncorrectable 1",
        ),
        (
            {"remap_failed": True, "remap_pending": True},
            "a row of its memory could not be replaced",
            "NVML remapped rows: pending yes, failed yes, uncorrectable 0",
        ),
        (
            {"remapped_uncorrectable": 513},
            "513 rows of its memory were replaced, more than 512",
            "NVML remapped rows: pending no, failed no, uncorrectable 513",
        ),
    ],
)
def test_rows_that_wait_that_failed_and_too_many_are_found(changed, what, evidence):
    fault = only(RowRemapping(), **changed)
    assert (fault.what, fault.evidence) == (what, evidence)


def test_rows_that_were_replaced_are_in_order_up_to_the_limit():
    said = RowRemapping().judge(host(remapped_uncorrectable=512, remapped_correctable=9))
    assert said.faults == ()
    assert said.healthy == "8 NVIDIA GPUs with row remapping have no row pending and none failed"
