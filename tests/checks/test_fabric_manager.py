from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.fabric_manager import FabricManager
from clusterbench.facts.fabric import BUS, FABRIC_MANAGER, Fabric
from clusterbench.facts.gpus import FABRIC, FABRIC_OLD
from tests.checks.gpus import PLACE, host
from tests.facts.healthy.gpus import facts as gpus
from tests.facts.machine import training

RUNS = Fabric(num_switches=4, manager="active", imex=None)
IN_ORDER = "the fabric manager runs, with 4 NVSwitches"


def judged(fabric=RUNS, **changed):
    (said,) = FabricManager().judge_all([host(fabric, **changed)]).values()
    return said


def older(fabric):
    """A host of A100, whose GPUs do not know of a fabric."""
    found = tuple(replace(gpu, lacks=(FABRIC, FABRIC_OLD), fabric_state=None) for gpu in gpus().gpus)
    (said,) = FabricManager().judge_all([training(gpus(gpus=found), fabric)]).values()
    return said


@pytest.mark.parametrize(
    ("state", "status", "what"),
    [
        ("in progress", "success", "is not part of the NVLink fabric: in progress"),
        ("not started", "success", "is not part of the NVLink fabric: not started"),
        ("completed", "Unknown Error", "could not join the NVLink fabric: Unknown Error"),
    ],
)
def test_a_gpu_outside_of_the_fabric_is_named(state, status, what):
    said = judged(fabric_state=state, fabric_status=status)
    (fault,) = said.faults
    assert (fault.where, fault.what) == (PLACE, what)
    assert fault.evidence == f"NVML fabric state: {state}; status: {status}"
    assert said.healthy == f"the fabric took in 7 GPUs; {IN_ORDER}"


def test_a_service_that_does_not_run_is_an_error_unless_all_gpus_are_in():
    failed = replace(RUNS, manager="failed")
    (fault,) = older(failed).faults
    assert fault.what == "the fabric manager is failed, with 4 NVSwitches on the PCIe bus"
    assert (fault.evidence, fault.severity) == (f"{FABRIC_MANAGER}: failed", None)
    assert judged(failed).faults[0].severity == "warning"
    assert judged(failed, fabric_state="not started").faults[1].severity is None


def test_gpus_that_are_in_and_a_service_that_runs_are_in_order():
    assert judged().healthy == f"the fabric took in 8 GPUs; {IN_ORDER}"
    assert older(RUNS).healthy == IN_ORDER
    assert judged(replace(RUNS, num_switches=0, manager=None)).healthy == "the fabric took in 8 GPUs"


def test_what_neither_driver_nor_systemd_says_is_not_judged():
    silent = replace(RUNS, manager=None, unread={FABRIC_MANAGER: "systemctl is not on PATH"})
    assert older(silent).unknown[0].takes == "the program systemctl"
    said = judged(fabric_state=None)
    assert said.unknown[0].why == "the driver does not say whether the fabric took GPUs in"
    unseen = Fabric(num_switches=None, manager=None, imex=None, unread={BUS: "is not there"})
    assert judged(unseen).unknown[0].why == f"{BUS} is not there"


def test_gpus_without_a_fabric_have_nothing_to_judge():
    said = older(Fabric(num_switches=0, manager=None, imex=None))
    assert said.not_applicable == "no NVSwitch and no GPU of an NVLink fabric here"
