from __future__ import annotations

from clusterbench.checks.peer_access import PeerAccess
from clusterbench.facts.nvlinks import P2P, Pair
from tests.facts.healthy.gpus import facts as gpus
from tests.facts.healthy.nvlinks import facts
from tests.facts.machine import training


def judged(of=None, **changed):
    (said,) = PeerAccess().judge_all([training(of or gpus(), facts(**changed))]).values()
    return said


def test_a_refused_pair_that_nvlink_joins_is_an_error():
    said = judged(refused=(Pair(2, 3, "disabled by the driver's settings", True),))
    (fault,) = said.faults
    places = "GPU 2 (0000:3a:01.0, serial 1650000000002) and GPU 3 (0000:4b:01.0, serial 1650000000003)"
    assert fault.where == places
    reason = "disabled by the driver's settings"
    assert fault.what == f"may not read each other's memory, though NVLink joins them: {reason}"
    assert fault.evidence == f"NVML P2P read status: {reason}; NVLink status: ok"
    assert fault.severity is None
    assert said.healthy == "27 pairs of GPUs may read each other"


def test_pairs_on_pcie_are_one_note():
    refused = tuple(Pair(0, other, "chipset not supported", False) for other in range(1, 8))
    (fault,) = judged(refused=refused).faults
    assert fault.severity == "note"
    assert fault.what == "7 pairs of GPUs may not read each other: 0 and 1, 0 and 2, 0 and 3, 0 and 4 and 3 more"
    assert fault.evidence == "NVML P2P read status: chipset not supported"


def test_all_pairs_are_in_order():
    assert judged().healthy == "28 pairs of GPUs may read each other"


def test_what_the_driver_does_not_say_is_not_judged():
    said = judged(num_pairs=None, unread={P2P: "said: Not Supported"})
    assert said.unknown[0].why == f"{P2P} said: Not Supported"
    assert (said.faults, said.healthy) == ((), "")


def test_one_gpu_has_no_peer():
    assert judged(gpus(gpus=gpus().gpus[:1])).not_applicable == "fewer than two NVIDIA GPUs here"
