from __future__ import annotations

import pytest

from clusterbench.checks.nvidia_smi import NvidiaSmiCheck
from clusterbench.facts import Files
from clusterbench.facts.nvidia_smi import COMMAND, NvidiaSmi
from tests.facts.machine import Machine, failed, hung, laptop, training


def read(folder, said):
    return NvidiaSmi.read(Files(folder, Machine(programs={COMMAND: said} if said else {}).run))


def test_one_that_hangs_is_found(tmp_path):
    (fault,) = NvidiaSmiCheck().judge(training(read(tmp_path, hung(COMMAND)))).faults
    assert (fault.what, fault.severity) == ("nvidia-smi -L had not ended after 2 s", None)


def test_what_it_says_when_it_fails_is_an_error(tmp_path):
    """All of it: the first line says why, and the last one only of which version the library is."""
    printed = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54\n"
    (fault,) = NvidiaSmiCheck().judge(training(read(tmp_path, failed(COMMAND, printed, 18)))).faults
    said = "Failed to initialize NVML: Driver/library version mismatch; NVML library version: 550.54"
    assert (fault.what, fault.severity) == (f"nvidia-smi -L fails: {said}", "error")
    assert fault.evidence == f"nvidia-smi -L ended with exit code 18: {said}"


def test_one_that_fails_without_a_word_is_found(tmp_path):
    (fault,) = NvidiaSmiCheck().judge(training(read(tmp_path, failed(COMMAND, "", 9)))).faults
    assert (fault.what, fault.evidence) == ("nvidia-smi -L fails", "nvidia-smi -L ended with exit code 9")


def test_one_that_answers_is_in_order(tmp_path):
    facts = read(tmp_path, "GPU 0: NVIDIA H100 (UUID: GPU-0)\nGPU 1: NVIDIA H100 (UUID: GPU-1)\n")
    assert NvidiaSmiCheck().judge(training(facts)).healthy == "nvidia-smi -L lists 2 GPUs in 0.0 s"


def test_without_the_program_it_is_not_judged(tmp_path):
    (said,) = NvidiaSmiCheck().judge_all([training(read(tmp_path, None))]).values()
    assert said.unknown[0].takes == "the program nvidia-smi"


@pytest.mark.parametrize("cards", [[], [{"kind": "display", "id": "1002:74a1", "address": "0000:05:00.0"}]])
def test_other_hosts_are_not_asked(tmp_path, cards):
    assert NvidiaSmiCheck().judge(laptop(read(tmp_path, None), pcie=cards)).not_applicable == "no NVIDIA GPU here"
