from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from clusterbench.diagnoses.unlike_hosts import UnlikeHosts, differences
from tests.report.synthetic import case, reading

PORT = {"device": "mlx5_0", "port": 1, "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}
HOST: dict[str, Any] = {
    "cpu_model": "AMD EPYC 9654",
    "num_logical_cpus": 192,
    "num_usable_cpus": 192,
    "memory_bytes": 1000 * 2**30,
    "kernel": "6.8.0-45-generic",
    "python": "3.11.7",
    "packages": {"clusterbench": "0.1.0", "torch": "2.13.0", "nvidia-nccl-cu12": None, "nvidia-nccl-cu13": "2.28.9"},
    "gpus": [{"name": "NVIDIA H100 80GB HBM3", "driver_version": "580.65"}] * 8,
    "network": [
        {"name": "eth0", "is_up": True, "physical": True, "mtu_bytes": 9000},
        {"name": "docker0", "is_up": True, "physical": False, "mtu_bytes": 1500},
    ],
    "infiniband": [PORT] * 8,
    "variables": {"NCCL_IB_HCA": "mlx5"},
    "interface": "eth0",
}


def hosts(**changed: dict[str, Any]) -> dict[str, Any]:
    """Four hosts, with what differs on each that is named."""
    return {"hosts": {name: {**copy.deepcopy(HOST), **changed.get(name, {})} for name in ("cb1", "cb2", "cb3", "cb4")}}


def network(**eth0: Any) -> list[dict[str, Any]]:
    return [{**HOST["network"][0], **eth0}, HOST["network"][1]]


def said(environment: dict[str, Any]) -> list[str]:
    return [difference.sentence for difference in differences(environment)]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"packages": {**HOST["packages"], "nvidia-nccl-cu13": "2.27.3"}},
            "NCCL is 2.27.3 on cb3 and 2.28.9 on the other 3 hosts",
        ),
        (
            {"gpus": [{**HOST["gpus"][0], "driver_version": "570.12"}] * 8},
            "the GPU driver is 570.12 on cb3 and 580.65 on the other 3 hosts",
        ),
        (
            {"gpus": HOST["gpus"][:7]},
            "the set of GPUs is 7 x NVIDIA H100 80GB HBM3 on cb3 and 8 x NVIDIA H100 80GB HBM3 on the other 3 hosts",
        ),
        (
            {"packages": {**HOST["packages"], "torch": "2.11.0"}},
            "torch is 2.11.0 on cb3 and 2.13.0 on the other 3 hosts",
        ),
        (
            {"packages": {**HOST["packages"], "clusterbench": None}},
            "clusterbench is not installed on cb3 and 0.1.0 on the other 3 hosts",
        ),
        (
            {"infiniband": [*[PORT] * 7, {**PORT, "state": "1: DOWN"}]},
            "InfiniBand is 7 ports of 400 Gb/sec (4X NDR), ACTIVE and 1 port of 400 Gb/sec (4X NDR), DOWN on cb3 and "
            "8 ports of 400 Gb/sec (4X NDR), ACTIVE on the other 3 hosts",
        ),
        (
            {"infiniband": []},
            "InfiniBand is absent on cb3 and 8 ports of 400 Gb/sec (4X NDR), ACTIVE on the other 3 hosts",
        ),
        (
            {"network": network(is_up=False)},
            "the number of network cards that are up is 0 on cb3 and 1 on the other 3 hosts",
        ),
        (
            {"network": network(mtu_bytes=1500)},
            "the MTU of the interface that carries the run is 1500 B on cb3 and 9000 B on the other 3 hosts",
        ),
        ({"cpu_model": "Xeon"}, "the CPU is Xeon on cb3 and AMD EPYC 9654 on the other 3 hosts"),
        ({"num_logical_cpus": 96}, "the number of CPUs is 96 on cb3 and 192 on the other 3 hosts"),
        ({"num_usable_cpus": 4}, "the number of CPUs that may be used is 4 on cb3 and 192 on the other 3 hosts"),
        ({"variables": {}}, "NCCL_IB_HCA is not set on cb3 and mlx5 on the other 3 hosts"),
        ({"python": "3.12.1"}, "Python is 3.12.1 on cb3 and 3.11.7 on the other 3 hosts"),
        ({"kernel": "5.15.0"}, "the kernel is 5.15.0 on cb3 and 6.8.0-45-generic on the other 3 hosts"),
        ({"memory_bytes": 900 * 2**30}, "the memory is 900 GiB on cb3, and 1000 GiB on most hosts"),
        (
            {"clock_offset_s": -7.25},
            "the clock of cb3 is 7.2 s behind that of cb1; compare times in logs with care",
        ),
    ],
)
def test_what_differs_is_said_with_the_odd_host_and_the_others(changed: dict[str, Any], sentence: str) -> None:
    assert said(hosts(cb3=changed)) == [sentence]


def test_a_memory_module_that_is_missing_of_32_is_found() -> None:
    assert said(hosts(cb3={"memory_bytes": 969 * 2**30})) == [
        "the memory is 969 GiB on cb3, and 1000 GiB on most hosts"
    ]


@pytest.mark.parametrize(
    ("gib", "sentence"),
    [
        ((1000, 2000), "the memory is 1000 GiB on n0 and 2000 GiB on n1"),
        ((2000, 1000, 1500, 2001, 1000), "the memory is 1000 GiB on n1, n4 and 1500 GiB on n2 and 2000 GiB on n0, n3"),
    ],
)
def test_where_no_size_of_memory_is_that_of_most_hosts_all_are_named(gib: tuple[int, ...], sentence: str) -> None:
    sizes = {f"n{number}": {"memory_bytes": size * 2**30} for number, size in enumerate(gib)}
    (difference,) = differences({"hosts": sizes})
    assert (difference.sentence, {*difference.hosts}) == (sentence, {*sizes})


def _with_memory(*sizes_gib: float) -> list[dict[str, Any]]:
    return [
        {**HOST["gpus"][0], "index": index, "memory_bytes": int(gib * 2**30)} for index, gib in enumerate(sizes_gib)
    ]


def test_a_gpu_with_less_memory_than_others_of_its_model_is_named_also_on_a_host_alone() -> None:
    """One of 32 GPUs with half of the memory was '4 hosts are alike in what they say of themselves'."""
    odd, usual = {"gpus": _with_memory(80, 80, 40, 79.9)}, {"gpus": _with_memory(80, 80, 80, 80)}
    sentence = "the memory of NVIDIA H100 80GB HBM3 is 40 GiB on GPU 2 of cb3, and 80 GiB on most of them"
    environment = hosts(**{**dict.fromkeys(("cb1", "cb2", "cb4"), usual), "cb3": odd})
    assert said(environment) == [sentence]
    assert [difference.hosts for difference in differences(environment)] == [("cb3",)]
    assert said({"hosts": {"cb3": environment["hosts"]["cb3"]}}) == [sentence]
    assert said(hosts(**dict.fromkeys(("cb1", "cb2", "cb3", "cb4"), usual))) == []


def test_what_workers_loaded_counts_more_than_what_is_installed() -> None:
    environment = hosts()
    environment["loaded"] = {name: {"nccl": "2.28.9"} for name in environment["hosts"]}
    environment["loaded"]["cb2"]["nccl"] = "2.27.3"
    assert said(environment) == ["NCCL is 2.27.3 on cb2 and 2.28.9 on the other 3 hosts"]


def test_of_two_hosts_both_are_named() -> None:
    environment = hosts(cb2={"python": "3.12.1"})
    environment["hosts"] = {name: environment["hosts"][name] for name in ("cb1", "cb2")}
    assert said(environment) == ["Python is 3.12.1 on cb2 and 3.11.7 on cb1"]


def test_hosts_that_are_alike_are_silent_and_so_is_one_host() -> None:
    alike = hosts(cb3={"memory_bytes": 990 * 2**30, "clock_offset_s": 0.9})
    assert said(alike) == []
    assert said({"hosts": {"cb1": HOST}}) == []
    assert said({}) == []


def test_what_a_host_did_not_say_is_not_compared() -> None:
    environment = hosts()
    environment["hosts"]["cb4"] = {"hostname": "cb4", "gpus": None, "network": [], "clock_offset_s": None}
    assert said(environment) == []


def test_the_finding_stands_at_the_odd_host() -> None:
    run = replace(reading(cases=[case("a")]), environment=hosts(cb3={"kernel": "5.15.0", "cpu_model": "Xeon"}))
    assert [(found.where, found.severity) for found in UnlikeHosts().findings(run)] == [
        ("host cb3", "warning"),
        ("host cb3", "note"),
    ]
