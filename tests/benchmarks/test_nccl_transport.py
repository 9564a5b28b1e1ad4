"""What is made of NCCL's logs, from lines written for the purpose; the collectives themselves run on Gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterbench.benchmarks.all_reduce import AllReduce
from clusterbench.benchmarks.nccl_transport import (
    NcclTransport,
    calls,
    carried,
    check_all,
    open_log,
    run_all,
    wire_bandwidths,
)
from clusterbench.cluster import Cluster
from clusterbench.derive import derive_rows
from clusterbench.engine.rig import Rig
from clusterbench.errors import NotHere, SuiteError, ToolError, WrongResult
from clusterbench.rows import Row
from clusterbench.run_folder.passes import as_json
from clusterbench.tools.host_links import TOPOLOGY
from clusterbench.tools.nccl_log import parse
from clusterbench.tools.nccl_record import LOG, connections, rank_log
from clusterbench.types import Case, Metric, Observation, Outcome, Place
from tests.ranks import run_ranks
from tests.report.synthetic import case, outcome, write_run
from tests.report.synthetic import plain_row as row

TWO_HOSTS = Place(Cluster(2, 2, "cuda", "NVIDIA H100 80GB HBM3"), 2)
HOSTS = ("node-a", "node-a", "node-b", "node-b")


def point(**options: Any) -> Mapping[str, Any]:
    (planned,) = NcclTransport(**options).points(TWO_HOSTS)
    return planned


def log(rank: int, *messages: str) -> dict[str, Any]:
    """What a rank leaves whose NCCL said this, after a way through JSON."""
    text = "".join(f"{HOSTS[rank]}:70{rank}:71 [{rank % 2}] NCCL INFO {message}\n" for message in messages)
    left: dict[str, Any] = json.loads(json.dumps(as_json(rank_log(parse(f"NCCL version 2.30.3+cuda13.0\n{text}")))))
    return left


def observation(*logs: dict[str, Any], hosts: Sequence[str] = HOSTS) -> Observation:
    return Observation("x", "", 0, 1, tuple(hosts), [[0.1]] * len(logs), passes={LOG.name: list(logs)})


def derived(*logs: dict[str, Any], hosts: Sequence[str] = HOSTS, **options: Any) -> dict[str, Metric]:
    planned = point(**{"ops": ("all_reduce",), "min_size": 64, "max_size": 64, **options})
    case = Case("x", "nccl_transport", 1, planned, "cuda", 2, len(logs), 1, 0, 60.0)
    return {metric.key: metric for metric in NcclTransport.derive(case, observation(*logs, hosts=hosts), TWO_HOSTS)}


RING = [
    log(
        0,
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:192.0.2.1<0>",
        "Channel 00/02 : 0 1 3 2",
        "Channel 01/02 : 0 1 3 2",
        "2 coll channels, 0 collnet channels, 16 nvls channels, 4 p2p channels, 2 p2p channels per peer",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
        "Connected all rings, use ring PXN 0 GDR 1",
        "AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
        "AllGather: 16 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
        "AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",
    ),
    log(
        1,
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:192.0.2.1<0>",
        "Channel 00/0 : 1[1] -> 3[1] [send] via NET/IB/1(0)/GDRDMA",
        "Connected all rings, use ring PXN 1 GDR 1",
    ),
    log(
        2,
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:192.0.2.2<0>",
        "Channel 00/0 : 2[0] -> 0[0] [send] via NET/IB/0/GDRDMA",
        "Connected all rings, use ring PXN 0 GDR 1",
    ),
    log(
        3,
        "Channel 00/0 : 1[1] -> 3[1] [receive] via NET/IB/1",
        "Channel 00/0 : 3[1] -> 2[0] via SHM/direct/direct",
        "Connected all rings, use ring PXN 0 GDR 0",
        "Trees [0] 2/-1/-1->3->1 [1] 2/-1/-1->3->1",
        "NVLS multicast support is not available on dev 1",
    ),
]


def test_ranks_become_connections_with_their_reach() -> None:
    values = {key: metric.value for key, metric in derived(*RING).items() if metric.name == "connections"}
    assert values == {
        "connections[category=NET/IB,part=between hosts]": 2.0,
        "connections[category=P2P/CUMEM,part=within hosts]": 2.0,
        "connections[category=SHM/direct/direct,part=within hosts]": 1.0,
    }


def test_gpudirect_is_counted_at_both_ends() -> None:
    metrics = derived(*RING)
    assert metrics["gdr_share"].value == 0.75
    assert metrics["pxn_share"].value == 0.5
    assert (metrics["ring_gdr"].value, metrics["ring_gdr"].basis) == (0.75, "NCCL's own word, by 4 of 4 ranks")
    assert metrics["nvls_available"].value == 0.0


def test_shares_are_of_channels_and_not_of_connections() -> None:
    """Three channels by GPUDirect through another GPU, and one by neither, each logged at both ends."""
    cards = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:192.0.2.1<0>"
    three = [f"Channel 0{number}/0 : 1[1] -> 3[1] [{{}}] via NET/IB/1{{}}/GDRDMA" for number in range(3)]
    metrics = derived(
        log(0, cards, "Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0"),
        log(1, cards, *(message.format("send", "(0)") for message in three)),
        log(2, cards, "Channel 00/0 : 2[0] -> 0[0] [send] via NET/IB/0"),
        log(3, cards, *(message.format("receive", "") for message in three)),
    )
    assert (metrics["gdr_share"].value, metrics["pxn_share"].value) == (6 / 8, 3 / 4)


def test_a_card_is_that_of_the_end_that_names_it() -> None:
    """One card of the first host sends to two others."""
    cards = "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:192.0.2.1<0>"
    sends = [f"Channel 0{rank}/0 : 0[0] -> {rank}[0] [send] via NET/IB/0" for rank in (1, 2)]
    metrics = derived(log(0, cards, *sends), log(1, cards), log(2, cards), hosts=("a", "b", "c"))
    assert metrics["cards_used"].value == 1.0


def test_cards_are_named_and_counted_on_each_host() -> None:
    metrics = derived(*RING)
    # The last host's list was not in its log, so that its card has the network's number only.
    assert {key: metric.value for key, metric in metrics.items() if metric.name == "card_connections"} == {
        "card_connections[category=IB/1]": 1.0,
        "card_connections[category=mlx5_0]": 2.0,
        "card_connections[category=mlx5_1]": 1.0,
    }
    assert metrics["cards_used"].value == 4.0


def test_channels_rings_and_trees() -> None:
    metrics = derived(*RING)
    assert {
        key: metrics[key].value for key in ("rings", "trees", "channels[category=coll]", "channels[category=nvls]")
    } == {
        "rings": 2.0,
        "trees": 2.0,
        "channels[category=coll]": 2.0,
        "channels[category=nvls]": 16.0,
    }


def test_the_choice_for_each_size_is_a_row() -> None:
    metrics = derived(*RING, ops=("all_reduce", "all_gather"), min_size=8, max_size=64, factor=8)
    chosen = {key: metric.value for key, metric in metrics.items() if metric.name == "channels_used"}
    assert chosen == {
        "channels_used[category=TREE/LL,part=all_reduce 8]": 1.0,
        "channels_used[category=RING/LL,part=all_reduce 64]": 2.0,
        # 8 bytes are no four elements: the collective moves 16, and NCCL speaks of the 4 of one rank.
        "channels_used[part=all_gather 16]": None,
        "channels_used[category=NVLS/SIMPLE,part=all_gather 64]": 16.0,
    }
    assert metrics["channels_used[part=all_gather 16]"].basis == "NCCL's log does not name this call"


def test_a_choice_without_channels_says_so() -> None:
    copied = log(0, "AllReduce [Copy Engine]: 64 Bytes -> cudaMemcpy")
    choice = derived(copied, hosts=["node-a"])["channels_used[category=COPY_ENGINE/cudaMemcpy,part=all_reduce 64]"]
    assert (choice.value, choice.basis) == (None, "NCCL does not say how many channels such a call takes")


def test_an_old_log_that_names_no_call_gives_no_choice() -> None:
    old = log(0, "64 Bytes -> Algo 1 proto 2 time 9.5")
    assert derived(old, hosts=["node-a"])["channels_used[part=all_reduce 64]"].value is None


def test_one_host_has_nothing_to_say_of_the_network() -> None:
    within = log(0, "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
    metrics = derived(within, log(1, "Using network IB"), hosts=["node-a"])
    assert "gdr_share" not in metrics
    assert metrics["connections[category=P2P/CUMEM,part=within hosts]"].value == 1.0


def test_nvlink_between_hosts_leaves_gdr_unknown() -> None:
    nvlink = log(0, "Channel 00/0 : 0[0] -> 1[0] via P2P/MNNVL")
    metrics = derived(nvlink, log(1, "Using network IB"), hosts=["node-a", "node-b"])
    assert metrics["connections[category=P2P/MNNVL,part=between hosts]"].value == 1.0
    assert (metrics["gdr_share"].value, metrics["gdr_share"].basis) == (
        None,
        "no connection between hosts goes over a network",
    )


def test_a_switch_that_reduces_is_neither_within_nor_between() -> None:
    metrics = derived(log(0, "CollNet 00/0 : 0 [send] via COLLNET/SHARP/1/GDRDMA"), hosts=["node-a"])
    assert metrics["connections[category=COLLNET/SHARP,part=to the switch]"].value == 1.0


def test_warnings_and_unread_lines_are_rows() -> None:
    bad = rank_log(
        parse(
            "node-a:1:1 [0] transport/net.cc:9 NCCL WARN Something is off\n"
            "node-a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2\n"
        )
    )
    metrics = derived(as_json(bad), hosts=["node-a"])
    assert (metrics["warnings"].value, metrics["warnings"].basis) == (1.0, "transport/net.cc:9: Something is off")
    assert metrics["unread_lines"].value == 1.0
    assert (metrics["connections"].value, metrics["connections"].basis) == (None, "the ranks' logs name no connection")


def test_without_a_log_there_is_one_sentence() -> None:
    case = Case("x", "nccl_transport", 1, point(), "cuda", 2, 1, 1, 0, 60.0)
    (metric,) = NcclTransport.derive(case, Observation("x", "", 0, 1, ("node-a",), [[0.1]]), TWO_HOSTS)
    assert (metric.value, metric.basis) == (None, "no rank left a log of NCCL")


def test_a_record_is_in_the_file_what_it_was_before_it_had_a_type() -> None:
    messages = ["Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "NVLS multicast support is not available on dev 0"]
    assert log(0, *messages, "AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}") == {
        "version": "2.30.3+cuda13.0",
        "num_ranks": [],
        "connections": [[0, 1, "send", "P2P/CUMEM", None, None, None, 1]],
        "tunings": [["AllReduce", 64, "RING", "LL", 2]],
        "channels": [],
        "num_rings": 0,
        "num_trees": 0,
        "ring_gdr": None,
        "nvls": False,
        "networks": [],
        "plugins": [],
        "cards": [],
        "gdr_refused": [],
        "environment": {},
        "warnings": [],
        "unread": 0,
    }


def test_a_damaged_log_is_named() -> None:
    damaged = {**log(0), "connections": [[0, 1, "send"]]}
    with pytest.raises(ValueError, match="the record 'nccl_log' of rank 0 is not what a rank leaves: 'connections' is"):
        derived(damaged, hosts=["node-a"])


def test_the_gpu_with_the_fewest_links_is_named() -> None:
    topologies = [{"nvlinks": {"0": 18, "1": 18}}, {}, {"nvlinks": {"0": 18, "1": 12}}, {}]
    case = Case("x", "nccl_transport", 1, point(), "cuda", 2, 4, 1, 0, 60.0)
    logged = observation(*RING)
    nvlinks = {
        metric.key: metric
        for metric in NcclTransport.derive(
            case, replace(logged, passes={**logged.passes, TOPOLOGY.name: topologies}), TWO_HOSTS
        )
    }
    assert (nvlinks["nvlinks"].value, nvlinks["nvlinks"].basis) == (
        12.0,
        "GPU 1 of node-b; the most of one of 4 are 18",
    )


def test_connections_that_are_alike_are_one_with_their_number() -> None:
    (p2p,) = [
        connection for connection, between in connections(observation(*RING)) if connection.transport == "P2P/CUMEM"
    ]
    assert (p2p.source, p2p.destination, p2p.num_channels) == (0, 1, 2)


# What follows for other cases


def chosen(how: str, call: str, **environment: str) -> Row:
    detail = {"category": how, "part": call}
    options = {**NcclTransport.variables, **environment, "dtype": "float32"}
    return row("nccl_transport", "channels_used", 2.0, options, unit="1", detail=detail)


def estimates(*rows: Row) -> list[tuple[str, float | None, float | None, Mapping[str, str]]]:
    return [(row.metric, row.value, row.high, row.detail) for row in wire_bandwidths(rows)]


COLLECTIVE = {"size_bytes": 1024, "dtype": "float32", "group_size": 4}


def test_a_ring_puts_the_bus_bandwidth_on_its_links() -> None:
    rows = [
        chosen("RING/SIMPLE", "all_gather 1024"),
        row("all_gather", "busbw", 30e9, COLLECTIVE, high=33e9),
        row("all_gather", "algbw", 40e9, COLLECTIVE),
    ]
    assert estimates(*rows) == [("wire_bw_est", 30e9, 33e9, {"source": "RING"})]
    (estimated,) = wire_bandwidths(rows)
    assert estimated.basis == "estimate: a RING puts the bus bandwidth on its links"


def carrier(metric: str, value: float, **detail: str) -> Row:
    options = {**NcclTransport.variables, "dtype": "float32"}
    return row("nccl_transport", metric, value, options, unit="1", detail=detail)


def test_a_timed_row_says_how_it_was_carried() -> None:
    rows = [
        chosen("RING/SIMPLE", "all_gather 1024"),
        carrier("connections", 4.0, category="P2P/CUMEM", part="within hosts"),
        carrier("connections", 4.0, category="NET/IB", part="between hosts"),
        carrier("card_connections", 4.0, category="mlx5_1"),
        carrier("card_connections", 4.0, category="mlx5_0"),
        carrier("gdr_share", 0.5),
        row("all_gather", "busbw", 30e9, COLLECTIVE),
    ]
    (said,) = carried(rows)
    assert (said.benchmark, said.metric, said.value, said.detail) == (
        "all_gather",
        "carried_by",
        2.0,
        {"category": "RING/SIMPLE"},
    )
    assert said.basis.startswith(
        "P2P/CUMEM within hosts, NET/IB between hosts over mlx5_0, mlx5_1, GPUDirect RDMA at 50 % of the ends; "
        "nccl_transport/"
    )


@pytest.mark.parametrize(
    "timed",
    [
        row("all_gather", "busbw", None, COLLECTIVE),
        row("all_gather", "busbw", 30e9, {**COLLECTIVE, "size_bytes": 2048}),
        row("all_reduce", "busbw", 30e9, COLLECTIVE),
        row("all_gather", "busbw", 30e9, {**COLLECTIVE, "axis": "tp"}),
        row("all_gather", "busbw", 30e9, {**COLLECTIVE, "NCCL_ALGO": "Tree"}),
    ],
)
def test_what_was_not_logged_says_nothing_of_how_it_was_carried(timed: Row) -> None:
    assert list(carried([chosen("RING/SIMPLE", "all_gather 1024"), timed])) == []


def test_an_all_reduce_in_the_switch_sends_a_little_more_than_its_size() -> None:
    # NVIDIA/nccl-tests pull request 239: algbw = wire x n/(n+1).
    rows = [
        chosen("NVLS/SIMPLE", "all_reduce 1024"),
        row("all_reduce", "algbw", 40e9, COLLECTIVE),
        row("all_reduce", "busbw", 60e9, COLLECTIVE),
    ]
    assert estimates(*rows) == [("wire_bw_est", 50e9, None, {"source": "NVLS"})]


@pytest.mark.parametrize(
    ("choice", "collective"),
    [
        (chosen("TREE/LL", "all_reduce 1024"), COLLECTIVE),
        (chosen("NVLS_TREE/SIMPLE", "all_reduce 1024"), COLLECTIVE),
        (chosen("RING/LL", "all_reduce 2048"), COLLECTIVE),
        (chosen("RING/LL", "all_gather 1024"), COLLECTIVE),
        (chosen("RING/LL", "all_reduce 1024", NCCL_P2P_DISABLE="1"), COLLECTIVE),
        (chosen("RING/LL", "all_reduce 1024"), {**COLLECTIVE, "dtype": "bfloat16"}),
        (chosen("RING/LL", "all_reduce 1024"), {**COLLECTIVE, "op": "product"}),
        (chosen("RING/LL", "all_reduce 1024"), {**COLLECTIVE, "axis": "tp"}),
    ],
)
def test_what_was_not_read_for_the_same_call_is_not_estimated(choice: Row, collective: Mapping[str, Any]) -> None:
    assert estimates(choice, row("all_reduce", "busbw", 60e9, collective)) == []


def test_two_algorithms_for_one_call_are_no_algorithm() -> None:
    choices = [chosen("RING/LL", "all_reduce 1024"), chosen("TREE/LL", "all_reduce 1024")]
    assert estimates(*choices, row("all_reduce", "busbw", 60e9, COLLECTIVE)) == []


def test_the_same_environment_finds_its_own_choice() -> None:
    off = {"NCCL_P2P_DISABLE": "1"}
    rows = [
        chosen("RING/SIMPLE", "all_reduce 1024"),
        chosen("TREE/LL", "all_reduce 1024", **off),
        row("all_reduce", "busbw", 60e9, COLLECTIVE),
        row("all_reduce", "busbw", 6e9, {**off, **COLLECTIVE}),
    ]
    assert [estimate[1] for estimate in estimates(*rows)] == [60e9]


def test_a_run_with_both_has_estimate_ratio_and_the_choice(tmp_path: Path) -> None:
    """From records on disk to the table, as a report reads it."""
    sweep = {"NCCL_NET_GDR_LEVEL": "SYS"}, {"NCCL_NET_GDR_LEVEL": "LOC"}
    transport_point = point(ops=("all_reduce",), min_size=64, max_size=64)
    (of_kind,) = AllReduce(min_size=64, max_size=64).points(Place(Cluster(2, 2, "cuda"), 2))
    cases: list[Case] = []
    records: list[tuple[Outcome, Observation | None]] = []
    for environment, time_s in zip(sweep, (1e-6, 4e-6), strict=True):
        about: dict[str, Any] = {"device": "cuda", "num_nodes": 2, "environment": environment}
        level = environment["NCCL_NET_GDR_LEVEL"]
        logged = case(f"log-{level}", benchmark="nccl_transport", point=transport_point, **about)
        timed = case(f"sum-{level}", benchmark="all_reduce", point=of_kind, **about)
        cases += [logged, timed]
        records.append((outcome(logged), replace(observation(*RING), case=logged.id, hash=logged.hash)))
        timed_observation = Observation(timed.id, timed.hash, 0, 1, HOSTS, [[time_s] * 3] * 4)
        records.append((outcome(timed), timed_observation))
    run = write_run(tmp_path / "run", cases, records, cluster=TWO_HOSTS.cluster)
    rows = derive_rows(run)
    values = {(row.case.rsplit("/", 1)[1], row.metric): row for row in rows}
    assert values["sum-SYS", "wire_bw_est"].value == pytest.approx(64 / 1e-6 * 1.5)
    assert values["sum-SYS", "busbw"].value == pytest.approx(64 / 1e-6 * 1.5)
    assert ("sum-SYS", "environment_ratio") not in values
    ratio = [row for row in rows if row.metric == "environment_ratio"]
    assert {(row.case.rsplit("/", 1)[1], row.detail["category"]): row.value for row in ratio} == {
        ("sum-LOC", "busbw"): pytest.approx(0.25),
        ("sum-LOC", "latency"): pytest.approx(4.0),
    }
    assert values["log-SYS", "gdr_share"].value == 0.75


def test_the_log_is_asked_for_all_that_is_read() -> None:
    """What NCCL does not print by default would be missing, and prove nothing."""
    subsystems = set(NcclTransport.variables["NCCL_DEBUG_SUBSYS"].split(","))
    assert subsystems >= {"INIT", "ENV", "GRAPH", "NET", "P2P", "SHM", "TUNING", "NVLS"}
    assert NcclTransport.variables["NCCL_DEBUG"] == "INFO"


# Where NCCL writes


def test_the_log_is_found_as_nccl_names_it_and_leaves_no_name(tmp_path: Path) -> None:
    path = tmp_path / "100%.node-a.17.log"
    path.write_text("NCCL version 2.30.3+cuda13.0\n")
    environment = {"NCCL_DEBUG_FILE": f"{tmp_path}/100%%.%h.%p.log"}
    with open_log(environment, "node-a.example.org", 17) as file:
        assert not path.exists()
        assert file.read() == "NCCL version 2.30.3+cuda13.0\n"


def test_no_log_says_what_to_leave_alone(tmp_path: Path) -> None:
    environment = {"NCCL_DEBUG_FILE": f"{tmp_path}/none.%p", "NCCL_DEBUG": "WARN"}
    with pytest.raises(ToolError) as caught:
        open_log(environment, "node-a", 17)
    assert str(caught.value) == (
        f"NCCL's log '{tmp_path}/none.17' cannot be opened (No such file or directory); NCCL_DEBUG is WARN.\n"
        "hint: leave NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE to this benchmark"
    )


def test_another_users_log_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_text("")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ToolError, match="belongs to another user; NCCL_DEBUG is not set"):
        open_log({"NCCL_DEBUG_FILE": str(path)}, "node-a", 17)
    assert path.exists()


WRITES_A_LOG = """
import os, socket, torch, torch.distributed as dist
from clusterbench.benchmarks.nccl_transport import open_log
from clusterbench.tools.nccl_log import parse
torch.cuda.set_device(0)
store = dist.HashStore()
dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
dist.all_reduce(torch.ones(1024, device="cuda"))
with open_log(os.environ, socket.gethostname(), os.getpid()) as file:
    text = file.read()
log = parse(text)
print([line for line in text.splitlines() if "NCCL" in line and parse(line).unread])
print(log.version is not None, [(member.rank, member.num_ranks) for member in log.members][:1], log.unread)
dist.destroy_process_group()
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_nccl_writes_the_log_that_is_read(tmp_path: Path) -> None:
    variables = {**NcclTransport.variables, "NCCL_DEBUG_FILE": f"{tmp_path}/nccl.%h.%p.log"}
    done = subprocess.run(
        [sys.executable, "-c", WRITES_A_LOG],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True [(0, 1)] 0", done.stdout
    assert list(tmp_path.iterdir()) == []


# What runs


def rig(device: str, world_size: int, rank: int = 0) -> Rig:
    return Rig(rank=rank, world_size=world_size, local_rank=rank, host="here", device=torch.device(device))


def test_on_a_cpu_the_case_is_skipped() -> None:
    with pytest.raises(NotHere) as caught:
        NcclTransport.prepare(rig("cpu", 4), point())
    assert str(caught.value) == (
        "ranks on cpu communicate through Gloo, which does not log its transports.\n"
        "hint: this benchmark reads NCCL's log, and needs GPUs"
    )


def test_on_one_gpu_the_case_is_skipped() -> None:
    with pytest.raises(NotHere) as caught:
        NcclTransport.prepare(rig("cuda", 1), point())
    assert str(caught.value) == (
        "one rank sends nothing.\nhint: this benchmark reads how NCCL joins ranks; give it two GPUs"
    )


def test_a_largest_size_below_the_smallest_is_a_mistake() -> None:
    with pytest.raises(SuiteError) as caught:
        NcclTransport(min_size=1024, max_size=8)
    assert str(caught.value) == "max_size is 8B, below min_size, 1KiB: there is nothing to run"


def test_every_size_of_the_collectives_own_benchmarks_is_run() -> None:
    runs = [(kind.operation, of_kind["size_bytes"]) for kind, of_kind in calls(point(max_size=64, factor=4), 3)]
    assert runs == [
        *(("all_reduce", size_bytes) for size_bytes in (8, 32)),
        *(("all_gather", size_bytes) for size_bytes in (12, 24)),
        *(("reduce_scatter", size_bytes) for size_bytes in (12, 24)),
        *(("broadcast", size_bytes) for size_bytes in (8, 32)),
    ]


EVERY_OP = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send_recv", "all_to_all")


def _checked() -> object:
    import torch.distributed as dist

    mine = rig("cpu", dist.get_world_size(), dist.get_rank())
    planned = point(ops=EVERY_OP, min_size=64, max_size=4096, factor=64)
    evidence = check_all(mine, planned)
    run_all(mine, planned)
    return evidence


@pytest.mark.gloo
def test_every_collective_is_proven_at_every_size() -> None:
    assert run_ranks(3, _checked) == [{"wrong_elements": 0.0}] * 3


@pytest.mark.gloo
def test_a_wrong_element_is_found() -> None:
    errors = run_ranks(2, _checked_first_wrong)
    assert errors[0] == {"wrong_elements": 0.0}
    assert str(errors[1]).startswith("broadcast gave wrong results on rank 1 (host here): 1 of 16 elements differ.")


def _checked_first_wrong() -> object:
    """Only one collective and size: after a wrong result a rank takes no part in what comes next."""
    import torch.distributed as dist

    mine = rig("cpu", dist.get_world_size(), dist.get_rank())
    real = mine.comm.broadcast

    def broken(array: torch.Tensor, root: int = 0) -> None:
        real(array, root)
        array[5] += mine.rank

    mine.comm.broadcast = broken  # type: ignore[assignment,method-assign]
    try:
        return check_all(mine, point(ops=("broadcast",), min_size=64, max_size=64))
    except WrongResult as error:
        return str(error)
