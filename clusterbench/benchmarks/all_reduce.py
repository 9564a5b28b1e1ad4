"""All-reduce: every rank ends up with the sum, or another reduction, of all ranks' arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._collective import GROUPED, ITEM_BYTES, Collective, Exchange
from clusterbench.options import option
from clusterbench.types import Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class AllReduce(Collective):
    """How fast all ranks reduce an array that each of them ends up holding.

    What each rank adds is chosen so that the result is known exactly in every dtype on any number of ranks, and every
    element is checked. Out of place costs a copy, because torch reduces in place only. Source of the bandwidth
    conventions: nccl-tests, ``doc/PERFORMANCE.md``.
    """

    version: ClassVar[int] = 2
    operation: ClassVar[str] = "all_reduce"
    optional: ClassVar[frozenset[str]] = GROUPED | {"op", "in_place"}

    in_place: bool = option(True, "false copies the input first and times that too: torch reduces in place only")

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        dtype, op = str(point["dtype"]), str(point["op"])
        numel = int(point["size_bytes"]) // ITEM_BYTES[dtype]
        array = rig.full(numel, dtype, 0)
        sent = array if point["in_place"] else rig.full(numel, dtype, 0)
        mine, whole = rig.operands(op, dtype, comm.rank, comm.world_size)

        def in_place() -> None:
            comm.all_reduce(array, op)

        def out_of_place() -> None:
            array.copy_(sent)
            comm.all_reduce(array, op)

        return Exchange(
            call=in_place if point["in_place"] else out_of_place,
            fill=lambda: rig.write(sent, [(numel, mine)]),
            verify=lambda: rig.expect(cls.operation, array, [(numel, whole)]),
            rest=sent.zero_,  # sums of sums would run out of the dtype's range
        )
