from __future__ import annotations

from dataclasses import replace

from clusterbench.checks.ecc_mode import EccMode
from clusterbench.facts.gpus import ECC
from tests.checks.gpus import host, only
from tests.facts.healthy.gpus import facts
from tests.facts.machine import training


def test_one_gpu_without_is_named():
    fault = only(EccMode(), ecc=False)
    assert (fault.what, fault.severity) == ("its ECC is off: errors of its memory go unseen", None)
    assert fault.evidence == "NVML ECC mode: off"


def test_all_without_are_found_on_a_host_alone():
    every = facts(gpus=tuple(replace(gpu, ecc=False) for gpu in facts().gpus))
    assert len(EccMode().judge(training(every)).faults) == 8


def test_on_a_workstations_board_it_is_a_choice():
    (fault,) = EccMode().judge(host(ecc=False, name="NVIDIA RTX 6000 Ada Generation")).faults
    assert fault.severity == "note"


def test_a_mode_that_nvml_does_not_say_is_not_judged():
    said = EccMode().judge(host(ecc=None, unread={ECC: "no permission"}))
    assert (said.unknown[0].why, said.faults) == (f"{ECC} no permission", ())


def test_boards_without_it_are_left_out():
    gpus = tuple(replace(gpu, ecc=None, lacks=(ECC,)) for gpu in facts().gpus)
    assert EccMode().judge(training(facts(gpus=gpus))).not_applicable == "no NVIDIA GPUs that have ECC here"


def test_healthy_gpus_are_in_order():
    assert EccMode().judge(training(facts())).healthy == "8 NVIDIA GPUs that have ECC with it on"
