from __future__ import annotations

from clusterbench.checks.uncorrectable_ecc import UncorrectableEcc
from clusterbench.facts.gpus import VOLATILE
from tests.checks.gpus import host, only
from tests.facts.healthy.gpus import facts
from tests.facts.machine import training


def test_errors_since_the_driver_was_loaded_are_found():
    fault = only(UncorrectableEcc(), volatile_uncorrectable=3)
    assert fault.what == "3 errors of its memory or caches could not be corrected since the driver was loaded"
    assert fault.evidence == "NVML volatile uncorrectable ECC errors: 3"
    assert only(UncorrectableEcc(), volatile_uncorrectable=1).what.startswith("1 error of its memory or caches could")


def test_a_count_that_is_kept_back_is_not_judged():
    said = UncorrectableEcc().judge(host(volatile_uncorrectable=None, unread={VOLATILE: "said: No Permission"}))
    assert said.unknown[0].why == f"{VOLATILE} said: No Permission"


def test_healthy_gpus_are_in_order():
    said = UncorrectableEcc().judge(training(facts())).healthy
    assert said == "8 NVIDIA GPUs with ECC have had no error that could not be corrected"
