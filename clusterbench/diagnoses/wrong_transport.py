from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.host_facts import mapping
from clusterbench.run_folder.attempts import host_of
from clusterbench.tools.host_links import TOPOLOGY
from clusterbench.tools.nccl_record import LOG, Connection, RankLog, connections
from clusterbench.tools.nccl_ways import (
    BETWEEN_GPUS,
    by_socket,
    forbidden,
    network_receives,
    through_memory,
    through_network,
    without_gdr,
)
from clusterbench.types import Case, Observation, Severity
from clusterbench.words import Word, few

WITHOUT_GDR = ("rtx-",)
"""Accelerators whose driver has no GPUDirect RDMA: linux-rdma/perftest issue 269."""

WITH_MULTICAST = ("h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm", "b300-sxm")
"""Accelerators that are joined by NVLink switches of the third generation or later, which reduce (NVLink SHARP)."""

_ALLOWS = {
    "NCCL_IB_DISABLE": ("0",),
    "NCCL_P2P_DISABLE": ("0",),
    "NCCL_P2P_LEVEL": ("SYS",),
    "NCCL_SHM_DISABLE": ("0",),
    "NCCL_NET_GDR_LEVEL": ("SYS",),
    "NCCL_NET_GDR_READ": ("1",),
    "NCCL_NVLS_ENABLE": ("1", "2"),
}
_FOR_NETWORK = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA")
_FOR_GDR = ("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_NET_GDR_C2C", "NCCL_DMABUF_ENABLE", *_FOR_NETWORK)


class WrongTransport(Diagnosis):
    """Bytes that take a slower way than the machine has.

    What it looks for
    -----------------
    In NCCL's own log (benchmark nccl_transport): connections between hosts over sockets where InfiniBand or RoCE is
    there; network cards that do not write into GPU memory themselves (GPUDirect RDMA), by the receiving ends, as GPUs
    before Ampere may rightly send without it; connections within a host through the network, or through its memory
    where NVLink joins all GPUs; variables that forbid a way and that the suite does not set; NVLink switches that could
    reduce and do not. What the suite itself forbids is no finding, nor is what is not known: GPUDirect only of GPUs on
    record, and never of GeForce, which has none.

    Why it matters
    --------------
    With sockets the CPUs copy every byte. Without GPUDirect it goes through the host's memory; 300 instead of 720 Gb/s
    have been seen (imbue). Within a host NVLink carries a multiple of what PCIe and memory do. Nothing fails, so that
    only a figure below its expectation tells of it.

    How to confirm
    --------------
    Run suites/gpu_direct.yaml: it allows and forbids each way in turn. On the host: 'nvidia-smi topo -m' and 'topo -p2p
    r', 'lsmod | grep peermem', 'ibstat', 'env | grep NCCL', /etc/nccl.conf.

    What usually fixes it
    ---------------------
    Sockets: libibverbs and /dev/infiniband in the container, NCCL_IB_HCA without dead cards. GPUDirect: load
    nvidia_peermem, or open kernel modules for DMA-BUF; turn off ACS on bridges; a card on the GPU's own PCIe switch.
    Within a host: one container with all GPUs, or --ipc=host; take NCCL_P2P_DISABLE out of profiles and images.
    """

    glossary: ClassVar[tuple[Word, ...]] = (
        Word("ACS", "Access control services of PCIe: where on, traffic between two devices goes by way of the CPU."),
    )

    def answer(self, reading: Reading) -> Answer:
        logged = [
            _LoggedCase(reading, history.case, seen, logs)
            for history in reading.histories
            for seen in [each for each in history.observations if LOG.name in each.passes][-1:]
            if (logs := LOG.readable(seen))
        ]
        findings = tuple(finding for case in logged for finding in _of_case(case))
        if any(any(True for _ in connections(case.observation)) for case in logged):
            return Answer(findings, ("NCCL's connections take no slower way than is known to be there",))
        uses_nccl = any(
            history.case.device == "cuda" and history.case.world_size > 1 and history.observations
            for history in reading.histories
            if history.ran_here
        )
        if findings or not uses_nccl:
            return Answer(findings)
        why = "no case kept NCCL's own log"
        return Answer(not_judged=(NotJudged("NCCL's transports", why, "nccl_transport in the suite"),))


@dataclass(frozen=True)
class _LoggedCase:
    """One case with the NCCL logs of its ranks, and the run it belongs to."""

    reading: Reading
    case: Case
    observation: Observation
    logs: Sequence[RankLog]

    @property
    def accelerator(self) -> str:
        """The GPU's name on record; nothing where it is on none."""
        accelerator = self.reading.plan.cluster.accelerator
        return accelerator.name if accelerator else ""

    def asks_for(self, names: Iterable[str]) -> bool:
        """Whether the suite itself sets one of these variables, to more than what allows every way."""
        own = self.case.environment
        return any(name in own and own[name] not in _ALLOWS.get(name, ()) for name in names)

    def warning(self, connections: Sequence[Connection], of: int, what: str, evidence: str) -> Finding:
        """A finding at the first of the connections."""
        first = connections[0]
        assert first.source is not None
        assert first.destination is not None
        ends = [end for each in connections for end in (each.source, each.destination) if end is not None]
        among = tuple(dict.fromkeys(host_of(self.observation, end) for end in ends))
        hosts = [host_of(self.observation, rank) for rank in (first.source, first.destination)]
        where = f"{self.case.id}, rank {first.source} ({hosts[0]}) -> rank {first.destination} ({hosts[1]})"
        count = sum(connection.num_channels for connection in connections)
        return Finding(where, what, "warning", f"{count} of {of} {evidence}", among=among)


def _of_case(logged: _LoggedCase) -> Iterator[Finding]:
    all_connections = list(connections(logged.observation))
    between = [connection for connection, is_between in all_connections if is_between]
    within = [
        connection
        for connection, is_between in all_connections
        if is_between is False and connection.direction == "send"
    ]
    yield from _sockets(logged, between)
    yield from _without_gdr(logged, between)
    yield from _within(logged, within)
    yield from _forbidden(logged)
    yield from _without_multicast(logged)


def _sockets(logged: _LoggedCase, between: Sequence[Connection]) -> Iterator[Finding]:
    sockets = by_socket(between)
    ends = [connection for connection in between if sockets and connection.direction == sockets[0].direction]
    devices = sorted({card for log in logged.logs for card in log.cards} | set(_active_ports(logged.reading)))
    if sockets and devices and not logged.asks_for(_FOR_NETWORK):
        yield logged.warning(
            sockets,
            sum(connection.num_channels for connection in ends),
            f"hosts are joined by sockets, although there is RDMA ({few(devices)})",
            "connections between hosts",
        )


def _without_gdr(logged: _LoggedCase, between: Sequence[Connection]) -> Iterator[Finding]:
    if not logged.accelerator or logged.accelerator.startswith(WITHOUT_GDR) or logged.asks_for(_FOR_GDR):
        return
    ends = network_receives(between)
    without = without_gdr(ends)
    if without:
        cards = sorted({str(connection.card) for connection in without})
        refused = sorted({card for log in logged.logs for card in log.gdr_refused})
        why = f"; NCCL says it is disabled for {few(refused)}" if refused else ""
        yield logged.warning(
            without,
            sum(connection.num_channels for connection in ends),
            f"network cards do not write into GPU memory themselves (no GPUDirect RDMA over {few(cards)}){why}",
            "receiving ends between hosts",
        )


def _within(logged: _LoggedCase, within: Sequence[Connection]) -> Iterator[Finding]:
    if logged.asks_for(BETWEEN_GPUS):
        return
    total = sum(connection.num_channels for connection in within)
    if slower := through_network(within):
        what = f"ranks of one host talk through the network ({slower[0].transport})"
        yield logged.warning(slower, total, what, "connections within hosts")
    if slower := [connection for connection in through_memory(within) if _has_nvlink(logged, connection)]:
        what = "ranks of one host talk through its memory, although NVLink joins all its GPUs"
        yield logged.warning(slower, total, what, "connections within hosts")


def _forbidden(logged: _LoggedCase) -> Iterator[Finding]:
    hosts: dict[tuple[str, str, str], dict[str, None]] = {}
    for rank, log in enumerate(logged.logs):
        for name, value in log.environment.items():
            lost = forbidden(name, value)
            if lost and name not in logged.case.environment:
                hosts.setdefault((name, value, lost), {})[host_of(logged.observation, rank)] = None
    for (name, value, lost), own in hosts.items():
        yield Finding(
            f"{logged.case.id}, {few(own)}",
            f"{name}={value} is set, and not by the suite: {lost}",
            "warning",
            among=tuple(own),
        )


def _without_multicast(logged: _LoggedCase) -> Iterator[Finding]:
    severity: Severity = "note"
    if logged.accelerator not in WITH_MULTICAST or logged.asks_for(("NCCL_NVLS_ENABLE",)):
        return
    ranks = range(len(logged.logs))
    everywhere = [host_of(logged.observation, rank) for rank in ranks]
    ranks_without = [
        rank for rank in ranks if logged.logs[rank].nvls is False and everywhere.count(everywhere[rank]) > 1
    ]
    if ranks_without:
        hosts = list(dict.fromkeys(everywhere[rank] for rank in ranks_without))
        what = "NCCL finds no multicast in the NVLink switches, so that they do not reduce (NVLink SHARP)"
        yield Finding(f"{logged.case.id}, {few(hosts)}", what, severity, f"{len(ranks_without)} of {len(ranks)} ranks")


def _active_ports(reading: Reading) -> Iterator[str]:
    """Names of the devices with an active InfiniBand or RoCE port on any host of the run."""
    for host in mapping(reading.environment.get("hosts")).values():
        ports = mapping(host).get("infiniband")
        for port in ports if isinstance(ports, list) else ():
            if "ACTIVE" in str(mapping(port).get("state")):
                yield str(mapping(port).get("device"))


def _has_nvlink(logged: _LoggedCase, connection: Connection) -> bool:
    """Whether all GPUs of the connection's host are joined by NVLink, as its first rank saw; False where unknown."""
    assert connection.source is not None
    host = host_of(logged.observation, connection.source)
    for rank, topology in enumerate(TOPOLOGY.readable(logged.observation)):
        matrix = topology.matrix
        if host_of(logged.observation, rank) == host and matrix and len(matrix.gpus) > 1:
            return all(matrix.links(gpu, peer) for gpu, peer in permutations(matrix.gpus, 2))
    return False
