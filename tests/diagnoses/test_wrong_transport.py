from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterbench.cases import Reading
from clusterbench.cluster import Cluster
from clusterbench.diagnoses import Finding
from clusterbench.diagnoses.wrong_transport import WrongTransport
from clusterbench.run_folder.passes import as_json
from clusterbench.tools.host_links import TOPOLOGY
from clusterbench.tools.nccl_log import parse
from clusterbench.tools.nccl_record import LOG, rank_log
from clusterbench.tools.nvidia_topo import Topology
from clusterbench.types import Observation
from tests.report.synthetic import case, outcome, reading

HOSTS = ("node-a", "node-a", "node-b", "node-b")
H100 = "NVIDIA H100 80GB HBM3"
CARDS = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:192.0.2.1<0>"
MULTICAST = "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"
HEALTH = [
    [
        CARDS,
        MULTICAST,
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
    ],
    [CARDS, MULTICAST, "Channel 00/0 : 1[1] -> 3[1] [send] via NET/IB/1/GDRDMA"],
    [CARDS, MULTICAST, "Channel 00/0 : 2[0] -> 0[0] [send] via NET/IB/0/GDRDMA"],
    [
        CARDS,
        MULTICAST,
        "Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM",
        "Channel 00/0 : 1[1] -> 3[1] [receive] via NET/IB/1/GDRDMA",
    ],
]


def joined_by(path: str) -> dict[str, Any]:
    """The topology of a host with two GPUs."""
    paths = {"GPU0": {"GPU0": "X", "GPU1": path}, "GPU1": {"GPU0": path, "GPU1": "X"}}
    return {"matrix": as_json(Topology(("GPU0", "GPU1"), paths, cpus={}, numa_nodes={}, nic_names={}, legend={}))}


NVLINK = joined_by("NV18")
PORTS = {"hosts": {"node-a": {"infiniband": [{"device": "mlx5_0", "port": 1, "state": "4: ACTIVE"}]}}}


def run(
    messages: list[list[str]],
    gpu: str | None = H100,
    environment: dict[str, Any] | None = None,
    topology: dict[str, Any] | None = None,
    **variables: str,
) -> Reading:
    """A run of four ranks on two hosts, of which NCCL said this."""
    logs = [
        as_json(rank_log(parse("".join(f"{host}:70{rank}:71 [0] NCCL INFO {message}\n" for message in own))))
        for rank, (host, own) in enumerate(zip(HOSTS, messages, strict=True))
    ]
    planned = case("ring", benchmark="nccl_transport", device="cuda", num_nodes=2, environment=variables)
    passes = {LOG.name: logs, TOPOLOGY.name: [topology or {}] * 4}
    seen = Observation(planned.id, planned.hash, 1, 1, HOSTS, [[0.1]] * 4, passes=passes)
    found = reading((outcome(planned), seen), cases=[planned])
    cluster = Cluster(2, 2, "cuda", gpu)
    return replace(found, plan=replace(found.plan, cluster=cluster), environment=environment or {})


def findings(messages: list[list[str]], **about: Any) -> list[Finding]:
    return WrongTransport().findings(run(messages, **about))


def changed(old: str, new: str) -> list[list[str]]:
    return [[message.replace(old, new) for message in own] for own in HEALTH]


SOCKETS = [
    [message.replace("NET/IB/0/GDRDMA", "NET/Socket/0").replace("NET/IB/1/GDRDMA", "NET/Socket/0") for message in own]
    for own in HEALTH
]


def test_a_healthy_fabric_is_silent() -> None:
    assert findings(HEALTH, environment=PORTS, topology=NVLINK) == []


def test_sockets_beside_rdma_are_named() -> None:
    (finding,) = findings(SOCKETS)
    assert finding == Finding(
        "planted/1n4/ring, rank 1 (node-a) -> rank 3 (node-b)",
        "hosts are joined by sockets, although there is RDMA (mlx5_0, mlx5_1)",
        "warning",
        "2 of 2 connections between hosts",
        among=("node-a", "node-b"),
    )


def test_sockets_of_which_the_receiving_ends_alone_are_logged_are_named() -> None:
    (finding,) = findings([[message for message in own if "[send]" not in message] for own in SOCKETS])
    assert finding.what == "hosts are joined by sockets, although there is RDMA (mlx5_0, mlx5_1)"
    assert finding.evidence == "2 of 2 connections between hosts"


def test_sockets_where_the_host_says_that_a_port_is_active_are_named() -> None:
    without_cards = [[message for message in own if message != CARDS] for own in SOCKETS]
    assert findings(without_cards) == []
    (finding,) = findings(without_cards, environment=PORTS)
    assert finding.what == "hosts are joined by sockets, although there is RDMA (mlx5_0)"
    down = {"hosts": {"node-a": {"infiniband": [{"device": "mlx5_0", "port": 1, "state": "1: DOWN"}]}}}
    assert findings(without_cards, environment=down) == []


def test_a_receiving_end_without_gdr_is_named() -> None:
    messages = changed("[receive] via NET/IB/1/GDRDMA", "[receive] via NET/IB/1")
    messages[3].append("NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'")
    (finding,) = findings(messages)
    assert finding == Finding(
        "planted/1n4/ring, rank 1 (node-a) -> rank 3 (node-b)",
        "network cards do not write into GPU memory themselves (no GPUDirect RDMA over mlx5_1); "
        "NCCL says it is disabled for mlx5_1",
        "warning",
        "1 of 2 receiving ends between hosts",
        among=("node-a", "node-b"),
    )


@pytest.mark.parametrize("gpu", [None, "NVIDIA GB10", "NVIDIA GeForce RTX 4090", "Some GPU 9000"])
def test_no_gdr_is_normal_or_unknown_on_other_gpus(gpu: str | None) -> None:
    assert findings(changed("/GDRDMA", ""), gpu=gpu) == []


def test_a_sending_end_without_gdr_is_no_finding() -> None:
    assert findings(changed("[send] via NET/IB/1/GDRDMA", "[send] via NET/IB/1")) == []


def test_another_gpus_card_is_no_finding() -> None:
    assert findings(changed("[send] via NET/IB/1/GDRDMA", "[send] via NET/IB/0(0)/GDRDMA")) == []


def test_a_host_that_talks_to_itself_through_the_network_is_named() -> None:
    (finding,) = findings(changed("0[0] -> 1[1] via P2P/CUMEM", "0[0] -> 1[1] [send] via NET/IB/0/GDRDMA"))
    assert finding == Finding(
        "planted/1n4/ring, rank 0 (node-a) -> rank 1 (node-a)",
        "ranks of one host talk through the network (NET/IB)",
        "warning",
        "1 of 2 connections within hosts",
        among=("node-a",),
    )


def test_shared_memory_beside_nvlink_is_named() -> None:
    messages = changed("Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM", "Channel 00 : 3[1] -> 2[0] via SHM/direct/direct")
    (finding,) = findings(messages, topology=NVLINK)
    assert finding.what == "ranks of one host talk through its memory, although NVLink joins all its GPUs"
    assert finding.where == "planted/1n4/ring, rank 3 (node-b) -> rank 2 (node-b)"


def test_shared_memory_without_nvlink_or_where_nothing_is_known_is_silent() -> None:
    messages = changed("via P2P/CUMEM", "via SHM/direct/direct")
    assert findings(messages, topology=joined_by("SYS")) == []
    assert findings(messages, topology={"no_matrix": "nvidia-smi is not on PATH on node-a."}) == []


def test_nvlink_between_hosts_is_no_network() -> None:
    messages = changed("[send] via NET/IB/1/GDRDMA", "via P2P/MNNVL")
    assert findings(messages) == []


def test_a_variable_that_nobody_asked_for_is_named() -> None:
    messages = [
        [*own, "NCCL_P2P_DISABLE set by environment to 1"] if rank < 2 else own for rank, own in enumerate(HEALTH)
    ]
    (finding,) = findings(messages)
    assert finding == Finding(
        "planted/1n4/ring, node-a",
        "NCCL_P2P_DISABLE=1 is set, and not by the suite: GPUs of a host do not reach each other's memory",
        "warning",
        among=("node-a",),
    )
    assert findings([[*own, "NCCL_P2P_DISABLE set by environment to 0"] for own in HEALTH]) == []


def test_missing_multicast_is_a_note_on_gpus_that_have_it() -> None:
    messages = changed(MULTICAST, "NVLS multicast support is not available on dev 0")
    (finding,) = findings(messages)
    assert (finding.where, finding.severity, finding.evidence) == (
        "planted/1n4/ring, node-a, node-b",
        "note",
        "4 of 4 ranks",
    )
    assert findings(messages, gpu="NVIDIA A100-SXM4-80GB") == []
    assert findings(messages, gpu="NVIDIA H100 NVL") == []


@pytest.mark.parametrize(
    ("messages", "variables"),
    [
        (SOCKETS, {"NCCL_IB_DISABLE": "1"}),
        (changed("/GDRDMA", ""), {"NCCL_NET_GDR_LEVEL": "LOC"}),
        (changed("via P2P/CUMEM", "[send] via NET/IB/0/GDRDMA"), {"NCCL_P2P_DISABLE": "1"}),
        (changed("via P2P/CUMEM", "via SHM/direct/direct"), {"NCCL_P2P_DISABLE": "1"}),
        (changed(MULTICAST, "NVLS multicast support is not available on dev 0"), {"NCCL_NVLS_ENABLE": "0"}),
        ([[*own, "NCCL_SHM_DISABLE set by environment to 1."] for own in HEALTH], {"NCCL_SHM_DISABLE": "1"}),
    ],
)
def test_what_the_suite_itself_forbids_is_no_finding(messages: list[list[str]], variables: dict[str, str]) -> None:
    assert findings(messages, topology=NVLINK, **variables) == []
    assert findings(messages, topology=NVLINK)


def test_what_the_suite_allows_is_still_expected() -> None:
    messages = changed("[receive] via NET/IB/1/GDRDMA", "[receive] via NET/IB/1")
    assert len(findings(messages, NCCL_NET_GDR_LEVEL="SYS", NCCL_IB_DISABLE="0")) == 1


@pytest.mark.parametrize("damage", [None, 5, "x", [None, 5], {"a": [1]}])
@pytest.mark.parametrize("key", ["cards", "gdr_refused", "environment", "nvls"])
def test_a_damaged_record_is_no_finding_of_its_own(key: str, damage: Any) -> None:
    found = run(HEALTH, environment={"hosts": {"node-a": damage, "node-b": {"infiniband": [damage]}}})
    for log in found.histories[0].observations[0].passes[LOG.name]:
        log[key] = damage
    assert WrongTransport().findings(found) == []


def test_cases_without_a_log_are_silent() -> None:
    assert WrongTransport().findings(reading(cases=[case("a")])) == []
