from __future__ import annotations

import json

import pytest

# ROCm/amdsmi, CHANGELOG.md: amd-smi metric --ecc --ecc-blocks, --pcie and --throttle. The block that counts is that of
# ROCm/device-metrics-exporter, pull request 368, with an uncorrectable error.
METRIC = """\
GPU: 0
    PCIE:
        WIDTH: {width}
        SPEED: 32 GT/s
        REPLAY_COUNT: 0
        MAX_WIDTH: 16
    ECC:
        TOTAL_CORRECTABLE_COUNT: 2
        TOTAL_UNCORRECTABLE_COUNT: {errors}
        TOTAL_DEFERRED_COUNT: 0
        CACHE_CORRECTABLE_COUNT: 0
        CACHE_UNCORRECTABLE_COUNT: 0
    ECC_BLOCKS:
        UMC:
            CORRECTABLE_COUNT: 2
            UNCORRECTABLE_COUNT: {errors}
            DEFERRED_COUNT: 0
        SDMA:
            CORRECTABLE_COUNT: 0
            UNCORRECTABLE_COUNT: 0
            DEFERRED_COUNT: 0
    THROTTLE:
        PROCHOT_VIOLATION_STATUS: NOT ACTIVE
        PPT_VIOLATION_STATUS: ACTIVE
        SOCKET_THERMAL_VIOLATION_STATUS: {hot}
        HBM_THERMAL_VIOLATION_ACTIVITY: 0 %

"""
WELL = METRIC.format(width=16, errors=0, hot="NOT ACTIVE")
ILL = WELL + METRIC.format(width=8, errors=3, hot="ACTIVE").replace("GPU: 0", "GPU: 1")


def test_errors_links_and_heat_of_a_gpu_are_found(examined):
    examination, kind = examined(ILL)
    assert kind == "amd-smi"
    assert {(found.name, found.severity, found.where, found.what) for found in examination.found} == {
        ("pcie_width", "error", "GPU 1", "its PCIe link is x8, and could be x16"),
        ("uncorrectable_ecc", "warning", "GPU 1", "3 errors of UMC could not be corrected"),
        ("gpu_slowdown", "warning", "GPU 1", "is slowed down: socket thermal"),
    }
    assert [found.evidence for found in examination.found if found.name == "pcie_width"] == ["said.txt:30: WIDTH: 8"]


def test_a_gpu_without_them_is_in_order_and_its_power_limit_is_no_fault(examined):
    examination, _ = examined(WELL)
    assert (examination.found, examination.word) == ((), "HEALTHY")
    assert {healthy.name for healthy in examination.healthy} == {"uncorrectable_ecc", "pcie_width", "gpu_slowdown"}


def test_what_a_command_does_not_say_is_not_judged(examined):
    # ROCm/amdsmi, amd-smi static --partition.
    text = "GPU: 0\n    PARTITION:\n        COMPUTE_PARTITION: CPX\n        MEMORY_PARTITION: NPS4\n"
    examination, _ = examined(text)
    assert (examination.found, examination.healthy, examination.word) == ((), (), "NOT JUDGED")


@pytest.mark.parametrize("wrap", [lambda gpus: gpus, lambda gpus: {"gpu_data": gpus}])
def test_json_says_the_same(examined, wrap):
    ecc = {"total_uncorrectable_count": 2, "total_deferred_count": 1}
    pcie = {"width": 16, "speed": {"value": 32, "unit": "GT/s"}, "max_width": 16}
    examination, _ = examined(json.dumps(wrap([{"gpu": 0, "pcie": pcie, "ecc": ecc}]), indent=4) + "\n")
    assert [found.what for found in examination.found] == [
        "2 errors could not be corrected",
        "1 error marked as poison, to fail where it is read",
    ]
    assert [healthy.what for healthy in examination.healthy] == ["1 GPU at full width"]


def test_json_that_is_cut_is_not_judged(examined):
    examination, _ = examined('[{"gpu": 0, "ecc": {"total_unc')
    assert examination.not_judged[0].why.startswith("amd-smi printed JSON that cannot be read: ")
