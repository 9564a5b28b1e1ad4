from __future__ import annotations

from dataclasses import replace

from clusterbench.checks.vbios import Vbios
from tests.checks.gpus import host, only
from tests.facts.healthy.gpus import facts
from tests.facts.machine import training


def test_one_older_than_seven_is_found():
    fault = only(Vbios(), vbios="96.00.30.00.01")
    assert fault.what == "its VBIOS is 96.00.30.00.01, and that of others of its kind 96.00.74.00.01 on 7"
    assert fault.evidence == "NVML VBIOS: 96.00.30.00.01"


def test_where_neither_half_is_the_larger_all_are_named():
    gpus = [replace(gpu, vbios=f"96.00.{gpu.index % 2}") for gpu in facts().gpus]
    said = Vbios().judge(training(facts(gpus=tuple(gpus))))
    assert len(said.faults) == 8
    assert said.faults[0].what == "its VBIOS is 96.00.0, and that of others of its kind 96.00.1 on 4"


def test_gpus_of_two_kinds_are_not_compared():
    said = Vbios().judge(host(name="NVIDIA T4", vbios="90.04"))
    assert said.healthy == "7 NVIDIA GPUs with neighbours of their kind have the VBIOS of most"
    assert said.faults == ()
