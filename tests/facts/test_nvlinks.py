import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterbench.facts.nvlinks import NVML, GpuLinks, Nvlinks, Pair
from clusterbench.run_folder.records import record_of

SOURCE = Path(__file__).parent.parent / "engine" / "fake_nvlink.c"
READ = (
    "import json\n"
    "from dataclasses import asdict\n"
    "from clusterbench.facts import Files\n"
    "from clusterbench.facts.nvlinks import Nvlinks\n"
    "print(json.dumps(asdict(Nvlinks.read(Files()))))"
)

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, to build the NVML stand-in")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvlinks")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE], check=True)
    return folder


def read(folder, **variables):
    """What a fresh process says of its NVLinks, through JSON; warnings are errors in it."""
    clean = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READ],
        env={**clean, **variables, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return record_of(Nvlinks, json.loads(done.stdout))


def test_links_that_are_up_and_down_are_told_by_number(driver):
    facts = read(driver, FAKE_NVML_GPUS="3", FAKE_NVLINKS="4", FAKE_NVLINK_DOWN="2")
    assert facts.gpus[0] == GpuLinks(0, up=(0, 1, 3), down=(2,), version="4.0", error=None)
    assert facts.gpus[2] == GpuLinks(2, up=(0, 1, 2, 3), down=(), version="4.0", error=None)
    assert (facts.num_pairs, facts.refused) == (3, ())


def test_a_pair_that_may_not_read_each_other_is_kept(driver):
    facts = read(driver, FAKE_NVML_GPUS="3", FAKE_NVLINKS="4", FAKE_NVML_NO_PEER="2")
    assert facts.refused == (Pair(0, 2, "disabled by the driver's settings", True),)


def test_a_lost_gpu_has_its_error_and_its_pairs_are_left_out(driver):
    facts = read(driver, FAKE_NVML_GPUS="3", FAKE_NVLINKS="4", FAKE_NVML_LOST="1")
    assert facts.gpus[1] == GpuLinks(1, up=(), down=(), version=None, error="GPU is lost")
    assert facts.num_pairs == 1


def test_one_gpu_without_links_has_neither_links_nor_pairs(driver):
    facts = read(driver)
    assert facts.gpus == (GpuLinks(0, up=(), down=(), version=None, error=None),)
    assert facts.num_pairs == 0


def test_without_a_driver_the_reason_is_noted():
    facts = read("/nowhere")
    assert facts.gpus is None
    assert facts.unread[NVML] == "gave nothing: no NVIDIA driver on this host: NVML Shared Library Not Found"
