"""What a rank records of NCCL's log, and the connections of all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clusterbench.run_folder.attempts import host_of
from clusterbench.run_folder.passes import Pass
from clusterbench.tools._nccl import Channels, Tuning
from clusterbench.types import Observation

if TYPE_CHECKING:  # what reads records needs none of the patterns that read logs
    from clusterbench.tools.nccl_log import NcclLog


class Connection(NamedTuple):
    """Connections of one rank with another that are alike but for their channel.

    A rank of None is the switch of a CollNet. Fields are those of :class:`~clusterbench.tools.nccl_log.Edge`; ``card``
    is the name, or the network and its number.
    """

    source: int | None
    destination: int | None
    direction: str
    transport: str
    card: str | None
    gdr: bool | None
    pxn: int | None
    num_channels: int

    @property
    def is_network(self) -> bool:
        return self.transport.startswith("NET/")


@dataclass(frozen=True)
class RankLog:
    """What NCCL's log of one rank says; None where it does not say.

    Attributes
    ----------
    num_ranks
        Sizes of the communicators.
    tunings
        What was chosen for each call, on rank 0.
    ring_gdr
        Whether all rings reach the network by GPUDirect RDMA.
    nvls
        Whether the GPU has NVLink SHARP's multicast.
    cards
        Names of the cards that ``NET/IB`` lists.
    gdr_refused
        Cards of which NCCL says that GPUDirect RDMA is disabled.
    environment
        Variables that NCCL says it was given.
    unread
        Lines that could not be read whole.
    """

    version: str | None
    num_ranks: Sequence[int]
    connections: Sequence[Connection]
    tunings: Sequence[Tuning]
    channels: Sequence[Channels]
    num_rings: int
    num_trees: int
    ring_gdr: bool | None
    nvls: bool | None
    networks: Sequence[str]
    plugins: Sequence[str]
    cards: Sequence[str]
    gdr_refused: Sequence[str]
    environment: Mapping[str, str]
    warnings: Sequence[str]
    unread: int


LOG: Pass[RankLog] = Pass("nccl_log", RankLog)


def rank_log(log: NcclLog) -> RankLog:
    """What is kept of a rank's log; connections that differ in their channel only are one, with their number."""
    alike = Counter(
        (
            edge.source,
            edge.destination,
            edge.direction,
            edge.transport,
            edge.nic or (None if edge.device is None else f"{edge.detail}/{edge.device}"),
            edge.gdr,
            edge.pxn,
        )
        for edge in log.edges
    )
    gdr_flags = {rings.gdr for rings in log.connected}
    return RankLog(
        version=log.version,
        num_ranks=sorted({member.num_ranks for member in log.members}),
        connections=[Connection(*connection, count) for connection, count in alike.items()],
        tunings=list(dict.fromkeys(log.tunings)),
        channels=log.channels,
        num_rings=len({ring.channel for ring in log.rings}),
        num_trees=len({tree.channel for tree in log.trees}),
        ring_gdr=None if gdr_flags <= {None} else gdr_flags <= {True, None},
        nvls=None if not log.nvls else all(log.nvls.values()),
        networks=log.networks,
        plugins=log.plugins,
        cards=sorted({name for (_, net, _), name in log.nics.items() if net == "IB"}),
        gdr_refused=sorted({card for _, card in log.gdr_refused}),
        environment=log.environment,
        warnings=[f"{warning.place}: {warning.text}" for warning in log.warnings],
        unread=log.unread,
    )


def connections(observation: Observation) -> Iterator[tuple[Connection, bool | None]]:
    """Every rank's, each with whether it leaves its host; None for one with the switch.

    A connection through the network is logged by both of its ends, any other by the sender.
    """
    ranks = range(len(observation.seconds))
    for log in LOG.of(observation):
        for connection in log.connections:
            ends = [rank for rank in (connection.source, connection.destination) if rank is not None]
            if all(rank in ranks for rank in ends):
                hosts = {host_of(observation, rank) for rank in ends}
                yield connection, None if len(ends) < 2 else len(hosts) == 2
