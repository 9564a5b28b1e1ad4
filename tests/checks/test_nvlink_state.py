from __future__ import annotations

from dataclasses import replace

from clusterbench.checks.nvlink_state import NvlinkState
from clusterbench.facts.nvlinks import NVML
from tests.checks.gpus import PLACE
from tests.facts.healthy.gpus import facts as gpus
from tests.facts.healthy.nvlinks import facts, links
from tests.facts.machine import training

NAME = "NVIDIA H100 80GB HBM3"


def judged(own=None, name=None, described=None, of=None):
    """Of a host whose GPU 3 has these links, or all of whose GPUs have this name."""
    described = described or facts(gpus=tuple(own if own and each.gpu == 3 else each for each in facts().gpus))
    found = of or gpus(gpus=tuple(replace(gpu, name=name or gpu.name) for gpu in gpus().gpus))
    (said,) = NvlinkState().judge_all([training(found, described)]).values()
    return said


def test_links_that_are_down_are_named():
    said = judged(links(3, down=(4, 11)))
    (fault,) = said.faults
    assert (fault.where, fault.what) == (PLACE, "16 of its 18 NVLinks are up (links 4, 11)")
    assert fault.evidence == f"NVML NVLink states: 16 up, down 4, 11; {NAME} has 18"
    assert said.healthy == "7 NVIDIA GPUs with NVLink have all their NVLinks up"


def test_links_that_the_driver_does_not_even_list_are_missed():
    said = judged(replace(links(3), up=tuple(range(17))))
    assert said.faults[0].what == "17 of its 18 NVLinks are up"
    said = judged(replace(links(3), up=(), version=None))
    assert said.faults[0].what == "none of its 18 NVLinks is up"


def test_a_product_with_eight_of_eighteen_is_in_order_by_its_name():
    eight = facts(gpus=tuple(replace(each, up=tuple(range(8))) for each in facts().gpus))
    assert judged(name="NVIDIA H800", described=eight).healthy.startswith("8 NVIDIA GPUs")
    assert len(judged(described=eight).faults) == 8


def test_bridged_and_unknown_products_are_not_judged():
    said = judged(links(3, down=(0, 1, 2, 3, 4, 5)), name="NVIDIA H100 PCIe")
    assert said.unknown[0].why == "how many NVLinks NVIDIA H100 PCIe should have up is not on record"
    assert (said.faults, said.healthy) == ((), "")


def test_without_links_or_with_one_gpu_there_is_nothing_to_judge():
    none = facts(gpus=tuple(replace(each, up=()) for each in facts().gpus))
    assert judged(name="NVIDIA L40S", described=none).not_applicable == "no NVIDIA GPUs with NVLink here"
    assert judged(of=gpus(gpus=gpus().gpus[:1])).not_applicable == "no NVIDIA GPUs with NVLink here"


def test_a_lost_gpu_and_an_absent_driver_are_not_judged():
    said = judged(replace(links(3), up=(), error="GPU is lost"))
    assert said.unknown[0].why == f"{PLACE}: GPU is lost"
    assert said.faults == ()
    said = judged(described=facts(gpus=None, unread={NVML: "gave nothing: Driver Not Loaded"}))
    assert said.unknown[0].why == "NVML gave nothing: Driver Not Loaded"
