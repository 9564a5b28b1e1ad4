"""All-reduce in three steps: reduce-scatter within each node, all-reduce across nodes, all-gather within."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks._collective import ITEM_BYTES, Collective, Exchange
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.types import Place, Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig

_WITHIN, _ACROSS = "tp", "dp"  # axes of the layout that stands for the nodes: neighbours are tp


@dataclass(frozen=True, kw_only=True)
class HierarchicalAllReduce(Collective):
    """How fast all ranks reduce an array when each byte crosses between nodes once a node, and not once a rank.

    Its bandwidths are those of an all_reduce of the same size, so the two may be compared. On one node halves of it
    stand for nodes.
    """

    operation: ClassVar[str] = "hierarchical_all_reduce"
    optional: ClassVar[frozenset[str]] = frozenset({"op"})
    refused_options: ClassVar[Mapping[str, str]] = {
        "in_place": "it always is: the last step writes over what the first has read",
        "layouts": "nodes are its groups; 'ranks_per_group' makes others",
    }

    ranks_per_group: int | None = option(
        None,
        "neighbours that reduce first; by default a node's ranks, or half of them on one node",
        minimum=2,
        maximum=2**16,
    )

    def groupings(self, place: Place) -> Iterator[dict[str, Any]]:
        ranks_per_node = place.cluster.ranks_per_node
        usual = ranks_per_node if place.num_nodes > 1 else max(1, ranks_per_node // 2)
        within = self.ranks_per_group or usual
        layout = ParallelLayout(dp=max(1, place.world_size // within), tp=within)
        yield {"group_size": place.world_size, "ranks_per_group": within, "layout": str(layout)}

    def multiple(self, common: Point) -> int:
        return int(common["ranks_per_group"])

    def label(self, point: Point) -> str:
        return f"{super().label(point)}-by{point['ranks_per_group']}"

    def objection(self, point: Point, place: Place) -> str | None:
        within, num_ranks = int(point["ranks_per_group"]), int(point["group_size"])
        if num_ranks % within or not 1 < within < num_ranks:
            return f"{num_ranks} ranks are no groups of {within}, several of them and several ranks in each"
        return super().objection(point, place)

    def world_size(self, point: Point, place: Place) -> int:
        return place.world_size

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        within, across = rig.communicator(_WITHIN), rig.communicator(_ACROSS)
        dtype, op = str(point["dtype"]), str(point["op"])
        numel = int(point["size_bytes"]) // ITEM_BYTES[dtype]
        array, part = rig.full(numel, dtype, 0), rig.full(numel // within.world_size, dtype, 0)
        mine, whole = rig.operands(op, dtype, comm.rank, comm.world_size)

        def call() -> None:
            within.reduce_scatter(part, array, op)
            across.all_reduce(part, op)
            within.all_gather(array, part)

        return Exchange(
            call=call,
            fill=lambda: rig.write(array, [(numel, mine)]),
            verify=lambda: rig.expect(cls.operation, array, [(numel, whole)]),
            rest=array.zero_,  # sums of sums would run out of the dtype's range
        )
