import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterbench.facts import Files
from clusterbench.facts.gpus import (
    BUS,
    FABRIC,
    FABRIC_OLD,
    MEMORY,
    MIG,
    NVML,
    RECOVERY,
    REMAPPED,
    SRAM,
    VOLATILE,
    BusGpu,
    Gpus,
)
from clusterbench.run_folder.records import record_of
from tests.facts.machine import Machine, planted

SOURCE = Path(__file__).parent.parent / "engine" / "fake_nvml.c"
READ = (
    "import json\n"
    "from dataclasses import asdict\n"
    "from clusterbench.facts import Files\n"
    "from clusterbench.facts.gpus import Gpus\n"
    "print(json.dumps(asdict(Gpus.read(Files()))))"
)

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, to build the NVML stand-in")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    def build(age, *options):
        folder = tmp_path_factory.mktemp(f"facts-{age}")
        library = folder / "libnvidia-ml.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *options, "-o", library, SOURCE], check=True)
        return folder

    return {"new": build("new"), "old": build("old", "-DOLD_DRIVER")}


def read(folder, before="", **variables):
    """What a fresh process says of its GPUs, through JSON; warnings are errors in it."""
    clean = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", before + READ],
        env={**clean, **variables, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return record_of(Gpus, json.loads(done.stdout))


def test_without_a_driver_the_reason_is_noted():
    facts = read("/nowhere")
    assert facts.gpus == ()
    assert facts.unread[NVML] == "gave nothing: no NVIDIA driver on this host: NVML Shared Library Not Found"


@needs_compiler
def test_a_driver_that_is_not_loaded_is_a_reason(driver):
    assert read(driver["new"], FAKE_NVML_INIT="9").unread[NVML] == "gave nothing: NVML failed: Driver Not Loaded"


@needs_compiler
def test_a_healthy_gpu_says_everything_in_base_units(driver):
    facts = read(driver["new"], FAKE_NVML_GPUS="8", CUDA_VISIBLE_DEVICES="0")
    assert len(facts.gpus) == 8
    gpu = facts.gpus[7]
    assert gpu.place == "GPU 7 (0000:91:00.0, serial 1650000000007)"
    assert (gpu.vbios, facts.driver_version, gpu.compute_mode) == ("96.00.74.00.01", "535.104.05", "default")
    assert (gpu.pcie_generation, gpu.most_pcie_generation, gpu.gpu_pcie_generation) == (1, 5, 5)
    assert (gpu.pcie_width, gpu.most_pcie_width, gpu.pcie_replays) == (16, 16, 0)
    assert (gpu.persistence, gpu.mig, gpu.ecc, gpu.processes) == (True, False, True, ())
    assert (gpu.power_limit_w, gpu.default_power_limit_w) == (700.0, 700.0)
    assert (gpu.application_clock_hz, gpu.default_application_clock_hz, gpu.max_clock_hz) == (1.98e9,) * 3
    assert (gpu.sram_uncorrectable, gpu.sram_threshold_exceeded) == (0, False)
    assert (gpu.remapped_uncorrectable, gpu.remap_pending, gpu.remap_failed) == (0, False, False)
    assert (gpu.fabric_state, gpu.fabric_status, gpu.lacks, gpu.error) == ("completed", "success", (), None)
    assert (gpu.slowdowns, gpu.recovery_action, gpu.volatile_uncorrectable) == ((), "None", 0)
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (80 * 2**30, 2**20)


@needs_compiler
def test_a_sick_gpu_says_so_and_its_process_has_no_arguments(driver):
    gpu = read(driver["new"], FAKE_NVML_GPUS="3", FAKE_NVML_SICK="2").gpus[2]
    assert (gpu.most_pcie_generation, gpu.pcie_width, gpu.pcie_replays) == (4, 8, 900)
    assert (gpu.sram_uncorrectable, gpu.sram_threshold_exceeded) == (5, True)
    assert (gpu.remapped_uncorrectable, gpu.remap_pending) == (1, True)
    assert (gpu.persistence, gpu.mig, gpu.power_limit_w, gpu.compute_mode) == (False, True, 500.0, "exclusive process")
    assert (gpu.fabric_state, gpu.fabric_status) == ("in progress", "Unknown Error")
    assert [(each.pid, each.name, each.memory_bytes) for each in gpu.processes] == [(4711, "train", 2**30)]
    assert (gpu.recovery_action, gpu.volatile_uncorrectable, gpu.memory_used_bytes) == ("GPU Reset", 3, 4 * 2**30)


@needs_compiler
def test_what_lowers_the_clocks_now_is_named_as_nvidia_smi_does(driver):
    def slowdowns(reasons):
        return read(driver["new"], FAKE_NVML_REASONS=reasons).gpus[0].slowdowns

    assert slowdowns("0x88") == ("HW Slowdown", "HW Power Brake Slowdown")
    assert slowdowns("0x60") == ("HW Thermal Slowdown", "SW Thermal Slowdown")
    assert slowdowns("0x07") == ()


@needs_compiler
def test_what_a_board_does_not_have_is_told_from_what_a_driver_does_not_say(driver):
    plain = read(driver["new"], FAKE_NVML_PLAIN="1")
    assert {REMAPPED, SRAM, MIG, FABRIC, RECOVERY, VOLATILE} <= {*plain.gpus[0].lacks}
    assert REMAPPED not in plain.unread
    old = read(driver["old"], FAKE_NVML_SICK="0")
    assert (old.gpus[0].sram_uncorrectable, old.gpus[0].sram_threshold_exceeded) == (5, None)
    assert old.gpus[0].fabric_state is None
    assert old.unread[FABRIC] == old.unread[FABRIC_OLD] == old.unread[MEMORY] == "is not in this driver"
    assert old.gpus[0].lacks == ()


WITH_LONG_UUIDS = """
import ctypes, pynvml
class Longer(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint), ("clusterUuid", ctypes.c_uint8 * 80), ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32), ("state", ctypes.c_uint), ("healthMask", ctypes.c_uint32),
    ]
pynvml.c_nvmlGpuFabricInfo_v2_t = Longer
"""


@needs_compiler
def test_a_structure_that_is_not_the_drivers_is_not_read(driver):
    """As nvidia-ml-py has it up to 13.595: the state of a GPU that waits for its fabric was read as "not supported"."""
    facts = read(driver["new"], WITH_LONG_UUIDS, FAKE_NVML_SICK="0")
    assert (facts.gpus[0].fabric_state, facts.gpus[0].lacks) == (None, ())
    assert facts.unread[FABRIC] == "is not in this nvidia-ml-py"


@needs_compiler
def test_a_lost_gpu_has_its_error_and_no_values(driver):
    lost, well = read(driver["new"], FAKE_NVML_GPUS="2", FAKE_NVML_LOST="0").gpus
    assert (lost.error, lost.pcie_width, lost.name) == ("GPU is lost", None, "NVIDIA H100 80GB HBM3")
    assert (well.error, well.pcie_width) == (None, 16)


def test_the_bus_shows_gpus_their_drivers_and_whether_they_answer(tmp_path):
    card = {"class": "0x030200", "vendor": "0x10de"}
    machine = Machine()
    for address, start in (("0000:1a:00.0", b"\xde\x10\x30\x23"), ("0000:2b:00.0", b"\xff\xff\xff\xff")):
        machine.files |= {**planted(f"{BUS}/{address}", card), f"{BUS}/{address}/config": start}
    machine.files |= planted(f"{BUS}/0000:3c:00.0", card)
    machine.files |= planted(f"{BUS}/0000:4d:00.0", {"class": "0x068000", "vendor": "0x10de"})
    machine.files |= planted(f"{BUS}/0000:5e:00.0", {"class": "0x030000", "vendor": "0x1a03"})
    machine.links[f"{BUS}/0000:1a:00.0/driver"] = "../../../bus/pci/drivers/nvidia"
    machine.write(tmp_path)
    facts = Gpus.read(Files(tmp_path))
    assert facts.on_bus == (
        BusGpu("0000:1a:00.0", "nvidia", True),
        BusGpu("0000:2b:00.0", None, False),
        BusGpu("0000:3c:00.0", None, None),
    )
    assert facts.unread[NVML].startswith("knows nothing of the files below")


def test_without_a_bus_nothing_is_said_of_it(tmp_path):
    facts = Gpus.read(Files(tmp_path))
    assert facts.on_bus is None
    assert facts.unread[BUS] == "is not there"
