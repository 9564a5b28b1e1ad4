from __future__ import annotations

from clusterbench.checks.slot_power import SlotPower
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W)."


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = SlotPower().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "mlx5_core 0000:5c:00.0"
    assert fault.what == "finds too little power on its PCIe slot (27 W), once, 2026-03-02 14:01:39 UTC"
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = SlotPower().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = SlotPower().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")
