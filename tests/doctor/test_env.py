from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

from clusterbench.doctor.env import env_text, picture
from clusterbench.facts.nvlinks import GpuLinks
from tests.facts.healthy import nvlinks


def device(address, kind, path, numa=0, ident="10de:2330", names=()):
    link = {"most_speed": "32.0 GT/s PCIe", "most_width": 16, "speed": "2.5 GT/s PCIe", "width": 16}
    return {"address": address, "kind": kind, "id": ident, "names": [*names], "numa_node": numa, "path": path, **link}


HOST = {
    "hostname": "cb1",
    "os": "Ubuntu 24.04",
    "kernel": "6.8.0",
    "python": "3.12.3",
    "packages": {"torch": "2.13.0", "triton": None},
    "cpu_model": "Xeon",
    "num_cores": 112,
    "num_usable_cpus": 224,
    "memory_bytes": 2**41,
    "gpus": [{"name": "NVIDIA H100 80GB HBM3", "driver_version": "580.65"}] * 2,
    "network": [{"name": "eth0", "physical": True, "is_up": True, "mtu_bytes": 1500, "speed_bits_per_s": 25e9}],
    "infiniband": [
        {"device": name, "port": 1, "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand", "state": "4: ACTIVE"}
        for name in ("mlx5_0", "mlx5_1")
    ],
    "numa_nodes": [{"node": 0, "cpus": "0-55"}, {"node": 1, "cpus": "56-111"}],
    "pcie": [
        device("0000:18:00.0", "display", ["0000:15:01.0", "0000:16:00.0", "0000:17:00.0"]),
        device("0000:1a:00.0", "network", ["0000:15:01.0", "0000:16:00.0", "0000:17:01.0"], 0, "15b3:1021", ["mlx5_0"]),
        device("0000:03:00.0", "display", ["0000:00:01.0"], 0, "1a03:2000"),
        device("0000:98:00.0", "display", ["0000:95:01.0"], 1),
        device("0000:9a:00.0", "network", ["0000:99:01.0"], 1, "15b3:1021", ["mlx5_1"]),
    ],
    "variables": {"NCCL_DEBUG": "INFO", "NCCL_NET_AUTH": "[removed]"},
}


def test_the_picture_shows_what_shares_a_bridge():
    assert picture(HOST) == [
        "NUMA node 0, CPUs 0-55",
        "└─ bridge 0000:15:01.0 > 0000:16:00.0",
        "   ├─ bridge 0000:17:00.0",
        "   │  └─ GPU 0  0000:18:00.0, at most x16 at 32.0 GT/s PCIe",
        "   └─ bridge 0000:17:01.0",
        "      └─ network mlx5_0  0000:1a:00.0, at most x16 at 32.0 GT/s PCIe, 400 Gb/sec (4X NDR)",
        "NUMA node 1, CPUs 56-111",
        "├─ bridge 0000:95:01.0",
        "│  └─ GPU 1  0000:98:00.0, at most x16 at 32.0 GT/s PCIe",
        "└─ bridge 0000:99:01.0",
        "   └─ network mlx5_1  0000:9a:00.0, at most x16 at 32.0 GT/s PCIe, 400 Gb/sec (4X NDR)",
        "nearest RDMA card of each GPU",
        "  GPU 0: mlx5_0",
    ]


def with_nvlinks(*gpus):
    said = asdict(nvlinks.facts(gpus=gpus))
    return picture({**HOST, "facts": {"nvlinks": json.loads(json.dumps(said))}})


def test_nvlinks_are_shown_with_those_that_are_down():
    lines = with_nvlinks(nvlinks.links(0), nvlinks.links(1), nvlinks.links(2, down=(17,)))
    place = lines.index("NVLinks, GPUs as NVML counts them")
    assert lines[place + 1 : place + 3] == [
        "  GPU 0, 1: 18 up, NVLink 4.0",
        "  GPU 2: 17 up, link 17 down, NVLink 4.0",
    ]


def test_a_host_without_nvlinks_shows_none():
    without = GpuLinks(0, up=(), down=(), version=None, error=None)
    assert with_nvlinks(without) == picture(HOST)


def test_a_host_that_shows_nothing_says_so():
    assert picture({}) == ["the kernel shows neither NUMA nodes nor PCIe devices here"]


def test_what_a_report_of_a_bug_needs_is_there_and_no_secret():
    said = env_text(HOST)
    for words in ("cb1", "Ubuntu 24.04, kernel 6.8.0", "torch 2.13.0", "2 x NVIDIA H100 80GB HBM3", "580.65"):
        assert words in said
    assert "NCCL_NET_AUTH=[removed]" in said
    assert "triton" not in said


def test_the_verb_prints_this_host():
    done = subprocess.run([sys.executable, "-m", "clusterbench", "env"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("host      ")
    said = subprocess.run(
        [sys.executable, "-m", "clusterbench", "env", "--json"], capture_output=True, text=True, check=True
    )
    assert "facts" in json.loads(said.stdout)
