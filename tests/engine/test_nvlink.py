import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterbench.engine.nvlink import read_links
from clusterbench.tools.host_links import NvLink, grown

HERE = Path(__file__).parent
READ = (
    "import json\n"
    "from clusterbench.tools.host_links import grown\n"
    "from clusterbench.engine.nvlink import read_links\n"
    "first, second = read_links(), read_links()\n"
    "more = [[*link, counts] for link, counts in grown(first, second).items() if any(counts.values())]\n"
    "print(json.dumps([[vars(link) for link in first], first.reason, more]))"
)

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, to build the NVML stand-in")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Folders with a stand-in for NVML that has NVLinks, with counters and without."""

    def build(name, *options):
        folder = tmp_path_factory.mktemp(f"nvlink-{name}")
        library, source = folder / "libnvidia-ml.so.1", HERE / "fake_nvlink.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *options, "-o", library, source], check=True)
        return folder

    return {"new": build("new"), "without": build("without", "-DNO_COUNTERS")}


def links(folder, **variables):
    """What a fresh process reads: the links, why there are none, and what grew until it read again."""
    clean = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")}
    environment = {**clean, **variables, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READ], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_a_driver_there_are_no_links_and_a_reason():
    assert links("/nowhere") == [[], "no NVIDIA driver on this host: NVML Shared Library Not Found", []]


@needs_compiler
def test_gpus_without_links_say_so(driver):
    assert links(driver["new"], FAKE_NVML_GPUS="2") == [[], "these GPUs have no NVLink", []]


@needs_compiler
def test_every_link_of_every_gpu_is_read_in_base_units(driver):
    found_links, reason, _ = links(driver["new"], FAKE_NVML_GPUS="2", FAKE_NVLINKS="3")
    assert reason is None
    assert [(link["gpu"], link["link"]) for link in found_links] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert found_links[5] == {
        "gpu": 1,
        "link": 2,
        "is_active": True,
        "version": "4.0",
        "errors": {"replay": 0, "recovery": 0, "crc_data": 0},  # this driver has no crc_flit
        "sent_bytes": 2020 * 1024,
        "received_bytes": 2021 * 1024,
    }


@needs_compiler
def test_a_link_that_is_down_is_there_and_not_active(driver):
    found_links, _, _ = links(driver["new"], FAKE_NVML_GPUS="2", FAKE_NVLINKS="3", FAKE_NVLINK_DOWN="2")
    assert [link["is_active"] for link in found_links] == [True, True, False, True, True, True]


@needs_compiler
def test_a_counter_that_grows_is_found_with_its_link(driver):
    _, _, more = links(driver["new"], FAKE_NVML_GPUS="2", FAKE_NVLINKS="3", FAKE_NVLINK_ERRORS="7")
    assert more == [[0, 1, {"replay": 7, "recovery": 0, "crc_data": 0}]]


@needs_compiler
def test_counters_that_stand_still_have_not_grown(driver):
    assert links(driver["new"], FAKE_NVLINKS="3")[2] == []


@needs_compiler
def test_a_driver_without_counters_gives_the_state_alone(driver):
    found_links, reason, more = links(driver["without"], FAKE_NVLINKS="1")
    assert (reason, more) == (None, [])
    assert found_links == [
        {
            "gpu": 0,
            "link": 0,
            "is_active": True,
            "version": "4.0",
            "errors": {},
            "sent_bytes": None,
            "received_bytes": None,
        }
    ]


@needs_compiler
def test_of_a_lost_gpu_nothing_is_read_and_the_others_keep_their_links(driver):
    found_links, reason, _ = links(driver["new"], FAKE_NVML_GPUS="2", FAKE_NVLINKS="1", FAKE_NVML_LOST="0")
    assert [link["gpu"] for link in found_links] == [1]
    assert reason == "GPU is lost"


def test_a_link_that_only_one_reading_has_did_not_grow():
    assert grown([], [NvLink(0, 0, True, errors={"replay": 9})]) == {}
    assert grown([NvLink(0, 0, True, errors={"replay": 9})], []) == {}


def test_this_very_host_is_read_without_an_exception():
    found = read_links()
    assert found or found.reason
