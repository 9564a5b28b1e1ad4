"""NCCL's log: each trap of it, in lines written for the purpose, and real logs where they are at hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from clusterbench.errors import ToolError
from clusterbench.tools.nccl_log import Channels, Edge, NcclLog, Ring, Tree, Tuning, Warned, parse

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")

WHOLE = """\
NCCL version 2.30.3+cuda13.0
node-a:700:711 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.10<0>
node-a:700:711 [0] NCCL INFO Initialized NET plugin IB
node-a:700:711 [0] NCCL INFO Using network IB
node-a:700:711 [0] NCCL INFO NCCL_DEBUG_SUBSYS set by environment to INIT,NET.
node-a:700:711 [0] NCCL INFO [Rank 0] ncclCommInitRankConfig comm 0x5a rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 \
commId 0xbeef - Init START
node-a:701:712 [1] NCCL INFO [Rank 1] ncclCommInitRankConfig comm 0x6a rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 43000 \
commId 0xbeef - Init START
node-b:700:710 [0] NCCL INFO [Rank 2] ncclCommInitRankConfig comm 0x7a rank 2 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 \
commId 0xbeef - Init START
node-b:701:713 [1] NCCL INFO [Rank 3] ncclCommInitRankConfig comm 0x8a rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 43000 \
commId 0xbeef - Init START
node-a:700:711 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
node-a:700:711 [0] NCCL INFO Channel 00/02 : 0 1 3 2
node-a:700:711 [0] NCCL INFO Channel 01/02 : 0 1 3 2
node-a:700:711 [0] NCCL INFO Ring 00 : 2 -> 0 -> 1
node-a:700:711 [0] NCCL INFO Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->2
node-a:700:711 [0] NCCL INFO Tree 0 : -1 -> 0 -> 1/2/-1
node-a:700:711 [0] NCCL INFO 2 coll channels, 0 collnet channels, 16 nvls channels, 2 p2p channels, 2 p2p channels per \
peer
node-a:700:711 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node-a:700:711 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
node-a:701:712 [1] NCCL INFO Channel 00/0 : 1[1] -> 3[1] [send] via NET/IB/1/GDRDMA
node-a:700:711 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
node-a:700:700 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
node-a:700:700 [0] NCCL INFO AllGather: 262144 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
node-b:700:710 [0] NCCL INFO Using network IB
node-b:700:710 [0] NCCL INFO Trees [0] 3/-1/-1->2->0 [1] 3/0/-1->2->-1
node-b:700:710 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [send] via NET/IB/0/GDRDMA
node-b:701:713 [1] NCCL INFO Using network IB
node-b:701:713 [1] NCCL INFO Trees [0] -1/-1/-1->3->2 [1] -1/-1/-1->3->2
node-b:701:713 [1] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM
"""


def log_of(*messages: str, host: str = "node-a") -> NcclLog:
    """The log of one process that said this."""
    return parse("".join(f"{host}:700:711 [0] NCCL INFO {message}\n" for message in messages))


def edge(via: str, middle: str = "0[0] -> 1[0] [send]", channel: str = "00/0") -> Edge:
    (parsed_edge,) = log_of(f"Channel {channel} : {middle} via {via}").edges
    return parsed_edge


def test_a_whole_log_gives_everything_it_says() -> None:
    log = parse(WHOLE)
    assert log.unread == 0
    assert log.num_lines == WHOLE.count("\n")
    assert log.version == "2.30.3+cuda13.0"
    assert log.networks == ("IB",)
    assert log.hosts == {0: "node-a", 1: "node-a", 2: "node-b", 3: "node-b"}
    assert {(member.identity, member.num_ranks) for member in log.members} == {("0xbeef", 4)}
    assert log.nics == {("node-a", "IB", 0): "mlx5_0", ("node-a", "IB", 1): "mlx5_1"}
    assert log.nvls == {"node-a": True}
    assert log.environment == {"NCCL_DEBUG_SUBSYS": "INIT,NET"}
    assert log.rings == (Ring(0, (0, 1, 3, 2), True), Ring(1, (0, 1, 3, 2), True))
    assert [tree for tree in log.trees if tree.rank == 0] == [Tree(0, 0, None, (1, 2)), Tree(1, 0, 2, (1,))]
    assert log.channels == (Channels(coll=2, p2p=2, collnet=0, nvls=16),)
    assert [(rings.pxn, rings.gdr) for rings in log.connected] == [(False, True)]
    assert log.tunings == (
        Tuning("AllReduce", 1048576, "RING", "SIMPLE", 2),
        Tuning("AllGather", 262144, "NVLS", "SIMPLE", 16),
    )
    assert log.edges[2] == Edge(1, 3, 0, 0, "send", "NET", "IB", "node-a", 1, "mlx5_1", True, None, False)


# Trap 1: the transport is the last group, and networks have names of their own.


@pytest.mark.parametrize(
    ("via", "net", "device", "gdr", "pxn", "shared"),
    [
        ("NET/IB/4", "IB", 4, False, None, False),
        ("NET/IB/3/GDRDMA", "IB", 3, True, None, False),
        ("NET/AWS Libfabric/0/GDRDMA", "AWS Libfabric", 0, True, None, False),
        ("NET/IBext_v8/7/GDRDMA", "IBext_v8", 7, True, None, False),
        ("NET/NCCL RDMA Plugin v9/12/GDRDMA/Shared", "NCCL RDMA Plugin v9", 12, True, None, True),
        ("NET/IB/3/GDRDMA(PCI)", "IB", 3, True, None, False),
        ("NET/IB/3(5)/GDRDMA(PCI)/Shared", "IB", 3, True, 5, True),
        ("NET/Socket/0", "Socket", 0, False, None, False),
        ("NET/a/b/2", "a/b", 2, False, None, False),
    ],
)
def test_a_network_is_read_from_its_end(
    via: str, net: str, device: int, gdr: bool, pxn: int | None, shared: bool
) -> None:
    network = edge(via)
    assert (network.kind, network.detail, network.device, network.gdr) == ("NET", net, device, gdr)
    assert (network.pxn, network.shared, network.direction) == (pxn, shared, "send")


@pytest.mark.parametrize(
    "via",
    [
        "P2P/CUMEM",
        "P2P/CUMEM/read",
        "P2P/MNNVL",
        "P2P/IPC",
        "P2P/IPC/read/CE",
        "P2P/direct pointer",
        "P2P/direct pointer/read",
        "P2P/indirect/3[3]",
    ],
)
def test_peer_access_in_all_its_forms(via: str) -> None:
    peer = edge(via, "7[7] -> 6[6]")
    assert (peer.source, peer.destination, peer.transport, peer.gdr) == (7, 6, via, None)


@pytest.mark.parametrize("via", ["NET/IB", "NET/IB/x", "P2P/", "P2P/CUMEMX", "SHM/elsewhere", "TELEPATHY/0", "NET//"])
def test_a_transport_that_is_not_known_is_counted(via: str) -> None:
    log = log_of(f"Channel 00/0 : 0[0] -> 1[0] [send] via {via}")
    assert (log.edges, log.unread) == ((), 1)


def test_a_switch_that_reduces_is_one_end_of_an_edge() -> None:
    sent, got = log_of(
        "CollNet 00/0 : 5 [send] via COLLNET/SHARP/1/GDRDMA", "CollNet 01/1 : 5 [receive] via COLLNET/SHARP/1"
    ).edges
    assert (sent.source, sent.destination, sent.gdr, sent.transport) == (5, None, True, "COLLNET/SHARP")
    assert (got.source, got.destination, got.gdr, got.connection) == (None, 5, False, 1)


# Trap 2: shared memory has no connection, and old versions print bus ids.


def test_shared_memory_has_no_connection() -> None:
    memory = edge("SHM/direct/direct", "3[3] -> 2[2]", channel="01")
    assert (memory.channel, memory.connection, memory.transport) == (1, None, "SHM/direct/direct")


def test_bus_ids_in_brackets_are_not_ranks() -> None:
    peer = edge("P2P/direct pointer", "2[a000] -> 3[b000]", channel="00")
    assert (peer.source, peer.destination) == (2, 3)


def test_versions_up_to_2_6_say_ring_where_later_ones_say_channel() -> None:
    """NVIDIA/nccl, issues 226 (2.4) and 302 (2.5)."""
    log = log_of(
        "comm 0x7f145c002250 rank 17 nranks 64 cudaDev 0 nvmlDev 0 - Init COMPLETE",
        "Trees [0] 18->17->16/-1/-1 [1] -1->17->-1/-1/-1",
        "Ring 00 : 17 -> 25 [send] via NET/Socket/0",
        "Ring 00 : 17[1] -> 16[0] via direct shared memory",
        "Ring 01 : 17[3d000] -> 16[b2000] via P2P/IPC",
    )
    assert (log.unread, [edge.transport for edge in log.edges]) == (0, ["NET/Socket", "SHM/direct", "P2P/IPC"])
    assert [(member.rank, member.num_ranks) for member in log.members] == [(17, 64)]
    assert [(tree.rank, tree.parent, tree.children) for tree in log.trees] == [(17, 18, (16,)), (17, None, ())]


# Trap 3: prefixes of launchers, and lines that break into each other.


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[1,12]<stderr>: ",
        "[rank0]:",
        "[default3]:",
        "[0] ",
        " 3: ",
        "[2026-05-05 06:16:47] ",
        "[rank0]:[2026-05-05 06:16:47] ",
        "\x1b[36m",
    ],
)
def test_prefixes_of_launchers_change_nothing(prefix: str) -> None:
    prefixed = "".join(f"{prefix}{line}\n" for line in WHOLE.splitlines()[1:])
    log, plain = parse(prefixed), parse(WHOLE.partition("\n")[2])
    assert log == plain


def test_carriage_returns_and_colours_within_change_nothing() -> None:
    coloured = WHOLE.replace("NCCL INFO", "\x1b[1mNCCL INFO\x1b[0m").replace("\n", "\r\n")
    assert parse(coloured) == parse(WHOLE)


def test_a_log_that_is_cut_anywhere_says_less_and_nothing_else() -> None:
    whole = parse(WHOLE)
    for at in range(len(WHOLE)):
        cut = WHOLE[:at]
        if "\n" not in cut:
            with pytest.raises(ToolError, match="no line of this is from NCCL's log"):
                parse(cut)
            continue
        log = parse(cut)
        assert [_bare(edge) for edge in log.edges] == [_bare(edge) for edge in whole.edges[: len(log.edges)]]
        assert log.members == whole.members[: len(log.members)]
        assert log.tunings == whole.tunings[: len(log.tunings)]
        assert log.hosts.items() <= whole.hosts.items()
        assert log.num_lines == cut.count("\n")
        assert log.unread == ("NCCL IN" in cut.rpartition("\n")[2])


SECOND = "".join(
    f"gpu-17:9{rank}:95 [{rank}] NCCL INFO "
    f"Channel 0{channel}/0 : {rank}[{rank}] -> {rank + 1}[{rank + 1}] via P2P/CUMEM/read\n"
    for rank in range(3)
    for channel in range(8)
)


def test_a_line_that_breaks_into_another_gives_no_wrong_value() -> None:
    """Another process's line, in the middle of one: both may be lost, none may be made up."""
    whole = parse(WHOLE)
    right = Counter(_bare(edge) for edge in (*whole.edges, *parse(SECOND).edges))
    breaking, rest = SECOND[: SECOND.index("\n") + 1], SECOND[SECOND.index("\n") + 1 :]
    for at in range(len(WHOLE)):
        log = parse(WHOLE[:at] + breaking + WHOLE[at:] + rest)
        edges = Counter(_bare(edge) for edge in log.edges)
        assert edges <= right, at
        assert sum((right - edges).values()) <= 2, at
        assert set(log.members) <= set(whole.members), at
        assert set(log.tunings) <= set(whole.tunings), at
        assert set(log.trees) <= set(whole.trees), at
        assert set(log.rings) <= set(whole.rings), at
        assert set(log.environment.items()) <= set(whole.environment.items()), at
        assert log.nics.items() <= whole.nics.items(), at
        assert log.unread >= (at > len("NCCL version 2.30.3+cuda13.0") and WHOLE[at - 1] != "\n"), at


def _bare(edge: Edge) -> tuple[object, ...]:
    """Without the card's name, which is lost with the line that lists the cards."""
    return edge.host, edge.source, edge.destination, edge.channel, edge.direction, edge.transport, edge.device, edge.gdr


def test_a_host_that_lost_its_beginning_is_not_a_host() -> None:
    lines = "".join(f"node-a:700:711 [0] NCCL INFO Channel 0{i}/0 : 0[0] -> 1[1] via P2P/CUMEM\n" for i in range(6))
    log = parse(f"{lines}de-a:700:711 [0] NCCL INFO Channel 07/0 : 0[0] -> 1[1] via P2P/CUMEM\n")
    assert {edge.host for edge in log.edges} == {"node-a"}
    assert (len(log.edges), log.unread) == (6, 1)


def test_what_is_not_nccls_is_refused() -> None:
    with pytest.raises(ToolError) as caught:
        parse("loss 2.31\nstep 4\n")
    assert str(caught.value) == "no line of this is from NCCL's log: 'loss 2.31\\nstep 4'"


def test_lines_of_others_are_no_loss() -> None:
    log = parse("+ srun python train.py\n" + WHOLE + "loss 2.31\n#  size  count\n")
    assert log.unread == 0


# Trap 4: three generations of the choice.


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "AllReduce: 33554432 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..31}",
            Tuning("AllReduce", 33554432, "RING", "SIMPLE", 32),
        ),
        ("4 Bytes -> Algo 0 proto 0 time 25.200462", Tuning(None, 4, "TREE", "LL", None)),
        ("65536 Bytes -> Algo 1 proto 2 time 9.5", Tuning(None, 65536, "RING", "SIMPLE", None)),
        (
            "AllGather [Copy Engine]: 4096 Bytes -> cudaMemcpy; CE synchronization with NVLS",
            Tuning("AllGather", 4096, "COPY_ENGINE", "cudaMemcpy", None),
        ),
        (
            "AllGather [Hierarchical CE]: 4096 Bytes -> RMA proxy + CE",
            Tuning("AllGather", 4096, "COPY_ENGINE", "RMA proxy + CE", None),
        ),
        (
            "AllReduce [Symmetric]: 8192 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512 nWorks 1",
            Tuning("AllReduce", 8192, "SYMMETRIC", "AllReduce_AGxLL_R", 4),
        ),
    ],
)
def test_choices_of_three_generations(message: str, expected: Tuning) -> None:
    assert log_of(message).tunings == (expected,)


@pytest.mark.parametrize(
    "message", ["4 Bytes -> Algo 9 proto 0 time 1.0", "AllReduce: 4 Bytes -> Algo RING", "X: 4 Bytes -> ?"]
)
def test_a_choice_that_cannot_be_read_is_counted(message: str) -> None:
    log = log_of(message)
    assert (log.tunings, log.unread) == ((), 1)


# Trap 5: hosts decide what is between nodes, not the word NET.


def test_nvlink_between_hosts_and_a_network_within_one() -> None:
    text = (
        "node-a:700:711 [0] NCCL INFO comm 0x5 rank 0 nranks 3 cudaDev 0 busId 1b000 - Init COMPLETE\n"
        "node-a:701:712 [1] NCCL INFO comm 0x6 rank 1 nranks 3 cudaDev 1 busId 43000 - Init COMPLETE\n"
        "node-b:700:710 [0] NCCL INFO comm 0x7 rank 2 nranks 3 cudaDev 0 busId 1b000 - Init COMPLETE\n"
        "node-a:700:711 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] via P2P/MNNVL\n"
        "node-a:700:711 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0\n"
        "node-a:700:711 [0] NCCL INFO Channel 00/0 : 0[0] -> 9[1] [send] via NET/Socket/0\n"
    )
    log = parse(text)
    assert [log.between_hosts(edge) for edge in log.edges] == [True, False, None]


def test_a_rank_with_two_hosts_has_none() -> None:
    log = parse(
        "node-a:700:711 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE\n"
        "node-b:700:710 [0] NCCL INFO comm 0x7 rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE\n"
    )
    assert log.hosts == {}


def test_members_of_a_split_communicator_are_found() -> None:
    begin = "ncclCommSplit comm 0x5 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 90000 parent 0x3 "
    log = log_of(
        f"{begin}splitCount 1 color 17 key 1- Init START", f"{begin}childCount 1 color 17 key 1 - Init COMPLETE"
    )
    assert [(member.identity, member.rank, member.num_ranks) for member in log.members] == [("color 17", 1, 2)]


# Traps 6 to 9


def test_another_gpus_card_is_no_error() -> None:
    log = log_of("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3(5)/GDRDMA")
    assert (log.edges[0].pxn, log.unread) == (5, 0)


def test_no_gdr_is_a_fact_and_not_a_failure() -> None:
    log = log_of(
        "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "NET/IB : GPU Direct RDMA Enabled for HCA 1 'mlx5_1'"
    )
    assert log.gdr_refused == (("node-a", "mlx5_0"),)


def test_multicast_that_is_not_available() -> None:
    assert log_of("NVLS multicast support is not available on dev 7").nvls == {"node-a": False}


def test_the_word_on_rings_of_old_and_new_versions() -> None:
    connected = log_of("Connected all rings, use ring PXN 1 GDR 0", "Connected all rings").connected
    assert [(rings.pxn, rings.gdr) for rings in connected] == [(True, False), (None, None)]


def test_a_ring_that_nccl_itself_cut_is_not_whole() -> None:
    member = "comm 0x5 rank 0 nranks 32 cudaDev 0 busId 1b000 - Init COMPLETE"
    twenty = " ".join(map(str, range(20)))
    log = log_of(member, f"Channel 00/02 :    {twenty}", f"Channel 01/02 : {twenty} 2...")
    assert log.rings == (Ring(0, tuple(range(20)), False), Ring(1, tuple(range(20)), False))
    assert log.unread == 0


@pytest.mark.parametrize(
    "message", ["Channel 02/02 : 0 1", "Channel 00/02 : 0 1 1", "Channel 00/02 : 0 1 x", "Trees [0] 1/-1"]
)
def test_a_ring_or_tree_that_cannot_be_is_counted(message: str) -> None:
    log = log_of(message)
    assert (log.rings, log.trees, log.unread) == ((), (), 1)


# Trap 11: warnings


def test_warnings_of_old_and_new_versions_have_their_place() -> None:
    log = parse(
        "\n[2026-05-05 06:16:47] node-a:700:700 [3] plugin/net.cc:334 NCCL WARN Failed to initialize any NET plugin\n"
        "\nnode-b:7:9 [7] transport/net_ib.cc:839 (ncclIbTest) NCCL WARN NET/IB : Got completion with error 12\n"
        "HINT: the remote side went away\n"
        "\nnode-c:7:9 misc/socket.cc:40 NCCL WARN Connect failed\n"
    )
    assert log.warnings == (
        Warned("node-a", "plugin/net.cc:334", "Failed to initialize any NET plugin"),
        Warned("node-b", "transport/net_ib.cc:839 (ncclIbTest)", "NET/IB : Got completion with error 12"),
        Warned("node-c", "misc/socket.cc:40", "Connect failed"),
    )
    assert log.unread == 0


def test_a_host_without_rdma_says_so_in_two_ways() -> None:
    assert log_of("NET/IB : No device found.").without_rdma == ("node-a",)
    assert log_of("Failed to open libibverbs.so[.1]", host="node-b").without_rdma == ("node-b",)


def test_merged_cards_have_their_own_number() -> None:
    log = log_of(
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:192.0.2.1<0>",
        "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2 rail=-1 plane=-1",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/2/GDRDMA",
        "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/5/GDRDMA",
        "NET/Socket : Using [0]eth0:192.0.2.32<0> [1]eth1:192.0.2.33<0>",
        "Channel 00/0 : 0[0] -> 2[0] [send] via NET/Socket/1",
    )
    assert [edge.nic for edge in log.edges] == ["mlx5_0+mlx5_1", None, "eth1"]
    assert log.unread == 0


# Trap 12 is the benchmark's: it asks for the subsystems itself.

# Real logs


def sample(name: str) -> NcclLog:
    return parse((SAMPLES / name).read_text())


def transports(log: NcclLog) -> dict[tuple[str, bool | None], int]:
    return dict(Counter((edge.transport, log.between_hosts(edge)) for edge in log.edges))


def test_two_ranks_on_one_h200_as_the_probe_of_tests_gpu_logged_them() -> None:
    log = parse((Path(__file__).parent / "nccl_2_28_two_ranks_on_one_gpu.log").read_text())
    assert (log.version, log.unread, log.warnings) == ("2.28.9+cuda13.0", 0, ())
    assert Counter(member.num_ranks for member in log.members) == {2: 2, 1: 2}  # and each rank in a group of its own
    assert {edge.transport for edge in log.edges} == {"NET/Socket"}
    assert {(edge.nic, edge.gdr) for edge in log.edges} == {("lo", False)}
    assert log.channels == (Channels(2, 2, 2, 0),)
    assert {ring.ranks for ring in log.rings} == {(0, 1), (0,)}
    assert log.environment["NCCL_HOSTID"] == "probe-0"


@real
def test_sixteen_a100_over_efa() -> None:
    log = sample("nccl_info_a100_16rank_efa.txt")
    assert (log.version, log.unread, len(log.members), len(set(log.hosts.values()))) == ("2.9.9+cuda11.2", 0, 16, 2)
    assert transports(log) == {("P2P/IPC/read", False): 256, ("NET/AWS Libfabric", True): 64}
    assert all(edge.gdr for edge in log.edges if edge.kind == "NET")
    assert {edge.device for edge in log.edges if edge.kind == "NET"} == {0, 1, 2, 3}
    assert {edge.nic for edge in log.edges} == {None}
    assert (len(log.rings), len(log.trees), log.channels) == (8, 128, (Channels(8, 8),))
    assert all(ring.is_whole for ring in log.rings)


@real
def test_four_hosts_of_v100_without_gdr() -> None:
    log = sample("nccl_info_bigscience_all_reduce_bench-32gb-n4.txt")
    assert (log.version, log.unread, len(set(log.hosts.values()))) == ("2.10.3+cuda11.3", 0, 4)
    assert transports(log) == {("P2P/IPC", False): 104, ("NET/IB", True): 80}
    assert Counter((edge.nic, edge.gdr) for edge in log.edges if edge.kind == "NET") == {
        ("hfi1_1", False): 48,
        ("hfi1_3", False): 32,
    }
    assert (len(log.rings), log.channels, len(log.connected)) == (4, (Channels(4, 4),), 16)


@real
def test_four_hosts_of_a100_whose_rings_are_longer_than_a_line() -> None:
    log = sample("nccl_info_bigscience_all_reduce_bench-a100-n4.txt")
    assert (log.unread, len(log.members), len(set(log.hosts.values()))) == (0, 32, 4)
    assert transports(log) == {("P2P/IPC/read", False): 112, ("NET/IB", True): 40}
    assert [(len(ring.ranks), ring.is_whole) for ring in log.rings] == [(20, False), (20, False)]
    # The list of this host begins with the second card.
    assert {edge.nic for edge in log.edges if edge.device == 1} == {"hfi1_0"}


@real
def test_a_fragment_without_ranks_knows_no_hosts() -> None:
    log = sample("nccl_info_fragment_shm_socket_cumem.txt")
    assert (log.version, log.unread, log.hosts) == (None, 0, {})
    assert transports(log) == {("SHM/direct/direct", None): 5, ("NET/Socket", None): 3, ("P2P/CUMEM/read", None): 2}


@real
def test_the_half_of_two_hosts_whose_lines_broke_into_each_other() -> None:
    log = sample("deepep_internode_2node_with_nccl_info.txt")
    assert (log.version, log.networks, log.plugins) == ("2.28.7+cuda12.8", *[("NCCL RDMA Plugin v9",)] * 2)
    assert set(log.hosts) == set(range(8))
    assert len({edge.host for edge in log.edges}) == len(set(log.hosts.values())) == 1
    assert transports(log) == {("P2P/CUMEM", False): 455, ("NET/NCCL RDMA Plugin v9", None): 90}
    assert all(edge.gdr for edge in log.edges if edge.kind == "NET")
    assert {edge.nic for edge in log.edges if edge.kind == "NET"} == {f"mlx5_{number}" for number in range(8)}
    assert log.channels == (Channels(16, 16, 16, 16),)
    assert {(rings.pxn, rings.gdr) for rings in log.connected} == {(False, True)}
    assert set(log.nvls.values()) == {True}
    assert log.environment == {"NCCL_IB_GID_INDEX": "3"}
    assert {member.num_ranks for member in log.members} == {16}
    assert log.unread == 36


@real
@pytest.mark.parametrize("name", ["nccl_info_a100_16rank_efa.txt", "deepep_internode_2node_with_nccl_info.txt"])
def test_a_real_log_that_is_cut_gives_nothing_new(name: str) -> None:
    text = (SAMPLES / name).read_text()
    whole = Counter(_bare(edge) for edge in parse(text).edges)
    for at in range(len(text) // 2, len(text), len(text) // 11):
        log = parse(text[:at])
        assert Counter(_bare(edge) for edge in log.edges) <= whole


AHEAD = [
    "(RayWorkerWrapper pid=1019) ",
    "(WorkerDict pid=55, ip=192.0.2.7) ",
    "\x1b[36m(TaskRunner pid=1)\x1b[0m ",
    "[pod/w-0/main] ",
    "node0-1  | ",
    "2026-03-02T14:10:00.123456Z ",
    "2026-03-02T14:10:00.123456789Z stdout F ",
    "Mar  2 14:10:00 node-a python[123]: ",
    "cb17.example.org: ",
    "2026-03-02 14:10:00,123 INFO ",
    "2026-03-02 14:10:00,123 - root - INFO - ",
    "INFO 03-02 14:10:00 [pynccl.py:69] ",
    "  [1,0]<stdout>: ",
    "[rank0]: [2026-01-01 00:00:00] ",
    "[pod/x/y] 2026-03-02T14:10:00Z [rank3]: ",
]


@pytest.mark.parametrize("ahead", AHEAD)
def test_what_stands_before_a_line_does_not_hide_it(ahead: str) -> None:
    log = parse("".join(f"{ahead}{line}\n" for line in WHOLE.splitlines()))
    plain = parse(WHOLE)
    assert (log.edges, log.members, log.trees, log.version) == (plain.edges, plain.members, plain.trees, plain.version)
    assert log.unread == 0


def test_many_words_before_a_line_cost_no_time() -> None:
    assert parse(f"{'INFO: 3: a: ' * 3000}NCCL INFO x\n{WHOLE}").unread == 1


def test_trees_up_to_2_7_have_a_half_for_each_way() -> None:
    log = log_of("Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1 [1] 1/-1/-1->0->2|2->0->3/-1/-1")
    assert log.trees == (
        Tree(0, 0, None, (1,)),
        Tree(1, 0, 2, (1,)),
        Tree(1, 0, 2, (3,)),
    )
    assert log.unread == 0


def test_what_rccl_adds_to_its_lines_changes_nothing() -> None:
    """ROCm/rccl, issues 419 and 1026, ``src/init.cc``: the communicator behind each line, and memory that is used."""
    said = "".join(
        f"{host}:700:711 [0] NCCL INFO {message}\n"
        for host, message in (
            (
                "g1",
                "comm 0x95c rank 0 nranks 2 cudaDev 0 busId c1 commId 0xdf localSize 0 used 12 bytes - Init COMPLETE",
            ),
            ("g2", "comm 0x9e4 rank 1 nranks 2 cudaDev 0 busId c1000 used 27440 bytes - Init COMPLETE"),
            ("g1", "Trees [0] -1/-1/-1->0->1 [1] 1/-1/-1->0->-1 comm 0x95c nRanks 02 busId c1000"),
            ("g2", "Channel 02/0 : 0[c1000] -> 1[c1000] [receive] via NET/Socket/1 comm 0x9e4 nRanks 02"),
            ("g2", "Channel 00/0 : 1[c1000] -> 2[c6000] via P2P/IPC comm 0x9e4 nRanks 02"),
            ("g1", "Connected all rings comm 0x95c nRanks 02 busId c1000"),
        )
    )
    log = parse(said)
    assert (log.unread, log.hosts) == (0, {0: "g1", 1: "g2"})
    assert [(edge.transport, edge.nic or edge.device) for edge in log.edges] == [("NET/Socket", 1), ("P2P/IPC", None)]
    assert len(log.trees) == 2
