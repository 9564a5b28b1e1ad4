"""Parameter servers: ranks send what they have to some of them, which add it up and send back the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks._collective import ITEM_BYTES, Collective, Exchange
from clusterbench.options import option
from clusterbench.types import Place, Point
from clusterbench.words import Word

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Collective):
    """How fast ranks sum an array by way of servers, each of which keeps a part of it.

    Every rank sends each server its part of a gradient (push); a server adds up those of all ranks in their order and
    sends the sum to every rank (pull). Servers are ranks of the group, evenly spread, and train as the others do. One
    server receives and sends n - 1 arrays, so its link is what a step waits for (incast); where each rank is one, as
    many bytes cross each link as in a ring. All ranks wait for each other in every call, as in synchronous training:
    asynchronous updates have no result that could be checked.

    Its bandwidths are those of an all_reduce of the same size, so the two may be compared.

    Source
    ------
    Li et al., OSDI 2014 (parameter server); Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002 (the ring).
    """

    operation: ClassVar[str] = "parameter_server"
    refused_options: ClassVar[Mapping[str, str]] = {
        "op": "servers add what they receive",
        "in_place": "it always is: what comes back is written over what was sent",
    }
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "parameter server",
            "A rank that keeps a part of the weights for all: others send it gradients and fetch what it makes of "
            "them. Li et al., OSDI 2014.",
            "parameter servers?",
        ),
    )

    servers: int = option(
        1, "ranks of each group that are servers, evenly spread", minimum=1, maximum=2**16, label="{} servers"
    )

    def manner(self, place: Place) -> dict[str, Any]:
        return {**super().manner(place), "servers": self.servers}

    def multiple(self, common: Point) -> int:
        return int(common["servers"])

    def label(self, point: Point) -> str:
        return f"{super().label(point)}-{point['servers']}servers"

    def objection(self, point: Point, place: Place) -> str | None:
        if int(point["servers"]) > int(point["group_size"]):
            return f"servers is {point['servers']}, and a group has {point['group_size']} ranks"
        return super().objection(point, place)

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        num_servers, dtype, me = int(point["servers"]), str(point["dtype"]), comm.rank
        numel = int(point["size_bytes"]) // ITEM_BYTES[dtype]
        array = rig.full(numel, dtype, 0)
        mine, whole = rig.operands("sum", dtype, me, comm.world_size)
        parts = dict(zip(servers_of(comm.world_size, num_servers), array.chunk(num_servers), strict=True))
        others = [rank for rank in range(comm.world_size) if rank != me]
        own = parts.get(me)
        inbox = [] if own is None else [rig.full(own.numel(), dtype, 0) for _ in others]
        pushed = [(part, server) for server, part in parts.items() if server != me]
        pulled = [] if own is None else [(own, rank) for rank in others]

        def call() -> None:
            comm.exchange(pushed, list(zip(inbox, others, strict=False)))
            for received in inbox:
                assert own is not None
                own.add_(received)
            comm.exchange(pulled, pushed)

        return Exchange(
            call=call,
            fill=lambda: rig.write(array, [(numel, mine)]),
            verify=lambda: rig.expect(cls.operation, array, [(numel, whole)]),
            rest=array.zero_,  # sums of sums would run out of the dtype's range
        )


def servers_of(num_ranks: int, num_servers: int) -> list[int]:
    """The ranks that are servers.

    >>> servers_of(8, 1), servers_of(8, 3)
    ([0], [0, 2, 5])
    """
    return [server * num_ranks // num_servers for server in range(num_servers)]
