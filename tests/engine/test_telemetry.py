import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterbench.engine import telemetry
from clusterbench.engine.telemetry import MOST_POINTS, GpuSample, list_gpus, reason_names, summarise

HERE = Path(__file__).parent
UUIDS = [f"GPU-{0xA0 + index:08x}-0000-0000-0000-000000000000" for index in range(8)]

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, to build the NVML stand-in")


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """Folders with a stand-in for NVML, by age of the driver."""

    def build(age, *options):
        folder = tmp_path_factory.mktemp(f"nvml-{age}")
        library, source = folder / "libnvidia-ml.so.1", HERE / "fake_nvml.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *options, "-o", library, source], check=True)
        return folder

    return {"new": build("new"), "old": build("old", "-DOLD_DRIVER")}


def environment(folder, **variables):
    clean = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")}
    return {**clean, **variables, "LD_LIBRARY_PATH": str(folder)}


def python(code, folder, **variables):
    """The JSON a fresh process prints; warnings are errors in it."""
    command = [sys.executable, "-W", "error", "-c", "import json\nfrom clusterbench.engine import telemetry\n" + code]
    done = subprocess.run(command, env=environment(folder, **variables), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def gpus(folder, **variables):
    listed = python(
        "g = telemetry.list_gpus(); print(json.dumps([[vars(i) for i in g], g.reason]))", folder, **variables
    )
    return listed[0], listed[1]


def sampled(folder, count, **variables):
    """So many samples of the sampler, which must then end by itself when its stdin closes."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "clusterbench.engine.telemetry", "--interval", "0.02"],
        env=environment(folder, **variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = [json.loads(process.stdout.readline()) for _ in range(count)]
    _, errors = process.communicate(timeout=200)
    assert (process.returncode, errors) == (0, "")
    return lines


def test_importing_telemetry_imports_no_torch():
    assert python("import sys; print(json.dumps('torch' in sys.modules))", "/nowhere") is False


def test_without_a_driver_there_are_no_gpus_and_a_reason():
    assert gpus("/nowhere") == ([], "no NVIDIA driver on this host: NVML Shared Library Not Found")


def test_without_a_driver_the_sampler_says_so_once_and_ends():
    (line,) = sampled("/nowhere", 1)
    assert line["gpus"] == []
    assert line["reason"] == "no NVIDIA driver on this host: NVML Shared Library Not Found"


@needs_compiler
def test_a_driver_that_is_not_loaded_is_a_reason(driver):
    assert gpus(driver["new"], FAKE_NVML_INIT="9") == ([], "NVML failed: Driver Not Loaded")


@needs_compiler
def test_a_host_without_gpus_is_a_reason(driver):
    assert gpus(driver["new"], FAKE_NVML_GPUS="0") == ([], "the NVIDIA driver finds no GPU")


@needs_compiler
def test_eight_gpus_are_listed_with_what_the_driver_knows(driver):
    listed, reason = gpus(driver["new"], FAKE_NVML_GPUS="8")
    assert reason is None
    assert [gpu["uuid"] for gpu in listed] == UUIDS
    assert listed[7] == {
        "index": 7,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": UUIDS[7],
        "memory_bytes": 80 * 2**30,
        "driver_version": "535.104.05",
        "cuda_driver_version": "12.2",
        "max_sm_clock_hz": 1.98e9,
        "power_limit_w": 700.0,
        "error": None,
    }


@needs_compiler
@pytest.mark.parametrize(
    ("visible", "expected"),
    [("5,2", [5, 2]), (f"{UUIDS[3]},1", [3, 1]), ("GPU-000000a6", [6]), ("1,-1,2", [1]), ("", []), ("0,9", [0])],
)
def test_visible_devices_choose_and_order_as_in_cuda(driver, visible, expected):
    listed, _ = gpus(driver["new"], FAKE_NVML_GPUS="8", CUDA_VISIBLE_DEVICES=visible)
    assert [gpu["uuid"] for gpu in listed] == [UUIDS[index] for index in expected]
    assert [gpu["index"] for gpu in listed] == list(range(len(expected)))


@needs_compiler
@pytest.mark.parametrize(
    ("visible", "reason"),
    [
        ("0,9", "CUDA_VISIBLE_DEVICES='0,9' ends before '9': the driver has 8 GPUs and none of that name"),
        ("", "CUDA_VISIBLE_DEVICES is empty, which hides 8 GPUs"),
        ("0,0", "CUDA_VISIBLE_DEVICES='0,0' ends before '0': named twice"),
        ("MIG-1-2", "CUDA_VISIBLE_DEVICES='MIG-1-2' ends before 'MIG-1-2': MIG instances are not supported"),
    ],
)
def test_a_list_of_devices_that_ends_early_says_where(driver, visible, reason):
    assert gpus(driver["new"], FAKE_NVML_GPUS="8", CUDA_VISIBLE_DEVICES=visible)[1] == reason


@needs_compiler
def test_a_gpu_that_is_cut_into_instances_is_no_gpu_of_that_name(driver):
    # torch sees an instance of 10 GB and a seventh of the multiprocessors, and would be held against all of an H100
    listed, reason = gpus(driver["new"], FAKE_NVML_GPUS="3", FAKE_NVML_SICK="2")
    assert [gpu["uuid"] for gpu in listed] == UUIDS[:2]
    assert reason == "1 of 3 GPUs is cut into MIG instances, which are not supported"
    why = "1 of 1 GPU is cut into MIG instances, which are not supported"
    assert gpus(driver["new"], FAKE_NVML_SICK="0") == ([], why)
    visible = {"FAKE_NVML_GPUS": "3", "FAKE_NVML_SICK": "2", "CUDA_VISIBLE_DEVICES": "1,2"}
    listed, reason = gpus(driver["new"], **visible)
    assert [gpu["uuid"] for gpu in listed] == UUIDS[1:2]
    assert reason == (
        "CUDA_VISIBLE_DEVICES='1,2' ends before '2': it is cut into MIG instances, which are not supported"
    )


@needs_compiler
def test_a_sample_is_in_base_units(driver):
    first, second = sampled(driver["new"], 2, FAKE_NVML_GPUS="8")
    assert first["gpus"][2] == {
        "index": 2,
        "uuid": UUIDS[2],
        "name": "NVIDIA H100 80GB HBM3",
        "sm_clock_hz": 1978e6,
        "memory_clock_hz": 2619e6,
        "power_w": 650.5,
        "temperature_c": 63.0,
        "memory_used_bytes": 2**30,
        "utilization": 0.97,
        "throttle_reasons": ["gpu_idle"],
        "energy_j": 1000.0,
        "counters": {"ecc_uncorrected": 0, "ecc_corrected": 0, "pcie_replays": 0},
        "pcie_generation": 1,
        "most_pcie_generation": 5,
        "pcie_width": 16,
        "most_pcie_width": 16,
        "error": None,
    }
    assert len(second["gpus"]) == 8
    assert 0 < second["time_s"] - first["time_s"] < 60


@needs_compiler
def test_a_throttling_gpu_names_its_reasons_and_its_neighbour_none(driver):
    lines = sampled(driver["new"], 3, FAKE_NVML_GPUS="2", FAKE_NVML_REASONS="0xcd")
    summary = summarise(lines)
    assert summary[UUIDS[0]]["throttle_reasons"] == {
        "hw_power_brake": 1.0,
        "hw_slowdown": 1.0,
        "hw_thermal": 1.0,
        "sw_power_cap": 1.0,
    }
    assert summary[UUIDS[1]]["throttle_reasons"] == {}
    assert summary[UUIDS[1]]["course"]["sm_clock_hz"] == [1979e6] * 3


@needs_compiler
def test_counters_of_errors_that_grow_are_summed_up_and_no_others(driver):
    summary = summarise(sampled(driver["new"], 3, FAKE_NVML_GPUS="2"))
    assert [summary[uuid]["grown"] for uuid in UUIDS[:2]] == [{}, {"ecc_uncorrected": 2}]


@needs_compiler
def test_an_old_driver_gives_reasons_by_their_old_name_and_no_energy(driver):
    (line,) = sampled(driver["old"], 1, FAKE_NVML_REASONS="0x8")
    assert line["gpus"][0]["throttle_reasons"] == ["hw_slowdown"]
    assert line["gpus"][0]["energy_j"] is None
    assert line["gpus"][0]["error"] is None


@needs_compiler
def test_a_field_the_board_does_not_support_is_null_and_no_error(driver):
    (line,) = sampled(driver["new"], 1, FAKE_NVML_POWER="3")
    assert line["gpus"][0]["power_w"] is None
    assert line["gpus"][0]["error"] is None
    assert line["gpus"][0]["sm_clock_hz"] == 1980e6


@needs_compiler
def test_a_field_that_fails_is_null_with_its_error(driver):
    (line,) = sampled(driver["new"], 1, FAKE_NVML_POWER="4")
    assert line["gpus"][0]["power_w"] is None
    assert line["gpus"][0]["error"] == "Insufficient Permissions"
    assert line["gpus"][0]["sm_clock_hz"] == 1980e6


@needs_compiler
def test_a_gpu_lost_while_sampling_keeps_its_line_and_the_others_their_values(driver):
    lines = sampled(driver["new"], 4, FAKE_NVML_GPUS="3", FAKE_NVML_LOST="1", FAKE_NVML_LOST_AFTER="2")
    # Lost in the middle of the second sample: what that one had read already is no sample of a working GPU.
    assert [line["gpus"][1]["error"] for line in lines] == [None, *["GPU is lost"] * 3]
    lost = lines[1]["gpus"][1]
    assert lost == {**dict.fromkeys(lost), "index": 1, "uuid": UUIDS[1], "name": lost["name"], "error": "GPU is lost"}
    assert [line["gpus"][2]["sm_clock_hz"] for line in lines] == [1978e6] * 4
    assert summarise(lines)[UUIDS[1]]["errors"] == ["GPU is lost"]
    assert summarise(lines)[UUIDS[1]]["min_sm_clock_hz"] == 1979e6


@needs_compiler
def test_a_gpu_lost_before_the_run_is_listed_with_its_error(driver):
    listed, _ = gpus(driver["new"], FAKE_NVML_GPUS="2", FAKE_NVML_LOST="0")
    assert (listed[0]["error"], listed[0]["memory_bytes"]) == ("GPU is lost", None)
    assert (listed[1]["error"], listed[1]["memory_bytes"]) == (None, 80 * 2**30)


@needs_compiler
def test_the_sampler_ends_quietly_when_nobody_reads_it(driver):
    command = [sys.executable, "-W", "error", "-m", "clusterbench.engine.telemetry", "--interval", "0.01"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=environment(driver["new"]), **pipes) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=200) == 0
        assert process.stderr.read() == b""


def at(time_s, **values):
    return {"time_s": time_s, "gpus": [vars(GpuSample(0, "GPU-a", "H100", **values))]}


def test_a_summary_covers_its_window_only():
    lines = [
        at(1.0, sm_clock_hz=100.0, power_w=1.0),
        at(2.0, sm_clock_hz=300.0, power_w=200.0, temperature_c=70.0, throttle_reasons=["sw_thermal"], energy_j=5.0),
        at(3.0, sm_clock_hz=500.0, power_w=400.0, temperature_c=60.0, throttle_reasons=[], energy_j=9.0),
        at(4.0, sm_clock_hz=900.0, throttle_reasons=["hw_thermal"]),
    ]
    summary = summarise(lines, 1.5, 3.5)["GPU-a"]
    assert (summary["num_samples"], summary["min_sm_clock_hz"], summary["mean_sm_clock_hz"]) == (2, 300.0, 400.0)
    assert (summary["mean_power_w"], summary["max_power_w"], summary["max_temperature_c"]) == (300.0, 400.0, 70.0)
    assert (summary["throttle_reasons"], summary["energy_j"]) == ({"sw_thermal": 0.5}, 4.0)
    assert summary["energy_over_s"] == 1.0  # the last sample has no counter
    assert summarise(lines)["GPU-a"]["energy_over_s"] == 1.0


def test_figures_over_time_count_from_the_first_sample_and_keep_gaps():
    lines = [
        at(5.0, sm_clock_hz=1.9801e9, power_w=650.04, temperature_c=63.0),
        at(5.5, sm_clock_hz=None, power_w=700.0),
        at(6.25, sm_clock_hz=1.2e9, temperature_c=70.0),
    ]
    assert summarise(lines)["GPU-a"]["course"] == {
        "elapsed_s": [0.0, 0.5, 1.25],
        "sm_clock_hz": [1.98e9, None, 1.2e9],
        "power_w": [650.0, 700.0, None],
        "temperature_c": [63.0, None, 70.0],
    }


def test_of_a_long_case_each_point_is_the_mean_of_neighbours():
    lines = [at(0.5 * number, sm_clock_hz=(1 + number % 4) * 1e9) for number in range(240)]
    course = summarise(lines)["GPU-a"]["course"]
    assert course["sm_clock_hz"] == [2.5e9] * MOST_POINTS
    assert course["elapsed_s"][:2] == [0.75, 2.75]
    assert max(map(len, course.values())) == MOST_POINTS


def test_a_gpu_that_is_lost_in_between_keeps_its_place_in_time():
    there, lost = at(0.0, power_w=100.0), {"time_s": 1.0, "gpus": []}
    assert summarise([lost, {**there, "time_s": 4.0}])["GPU-a"]["course"]["elapsed_s"] == [3.0]


def test_the_clock_of_a_busy_gpu_leaves_out_when_it_was_idle():
    lines = [
        at(1.0, sm_clock_hz=300e6, throttle_reasons=["gpu_idle"]),
        at(2.0, sm_clock_hz=1.9e9, throttle_reasons=[]),
        at(3.0, sm_clock_hz=1.5e9, throttle_reasons=["sw_power_cap"]),
        at(4.0, sm_clock_hz=200e6),
    ]
    summary = summarise(lines)["GPU-a"]
    assert (summary["min_busy_sm_clock_hz"], summary["mean_busy_sm_clock_hz"]) == (1.5e9, 1.7e9)
    assert summary["busy_share"] == pytest.approx(2 / 3)
    assert summary["min_sm_clock_hz"] == 200e6


def test_the_pcie_link_of_a_busy_gpu_leaves_out_when_it_was_idle():
    most = {"most_pcie_generation": 5, "most_pcie_width": 16}
    lines = [
        at(1.0, pcie_generation=5, pcie_width=16, throttle_reasons=["gpu_idle"], **most),
        at(2.0, pcie_generation=3, pcie_width=8, throttle_reasons=[], **most),
        at(3.0, pcie_generation=4, pcie_width=8, throttle_reasons=[], **most),
    ]
    summary = summarise(lines)["GPU-a"]
    assert (summary["num_busy_samples"], summary["max_busy_pcie_generation"], summary["most_pcie_generation"]) == (
        2,
        4,
        5,
    )
    assert (summary["max_busy_pcie_width"], summary["most_pcie_width"]) == (8, 16)


def test_without_a_value_the_summary_says_nothing():
    summary = summarise([at(1.0)])["GPU-a"]
    assert summary["max_power_w"] is None
    assert summary["throttle_reasons"] is None
    assert summary["busy_share"] is None
    assert summary["grown"] is None
    assert summary["mean_busy_sm_clock_hz"] is None
    assert summary["course"]["power_w"] == [None]
    assert summarise([]) == {}


def test_a_reason_newer_than_this_table_keeps_its_number():
    assert reason_names(0x8008) == ["hw_slowdown", "reason_0x8000"]


def test_this_very_host_is_listed_without_an_exception():
    listed = list_gpus()
    assert listed or listed.reason
    assert set(telemetry.REASONS.values()) >= {"hw_slowdown", "sw_thermal", "hw_thermal", "sw_power_cap"}
