"""Reduce: the root ends up with the sum, or another reduction, of all ranks' arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._collective import GROUPED, ITEM_BYTES, Collective, Exchange
from clusterbench.options import option
from clusterbench.types import Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class Reduce(Collective):
    """How fast all ranks reduce an array that one of them ends up holding.

    What others hold afterwards is undefined, so the result is checked on the root alone. Out of place costs a copy,
    because torch reduces in place only.
    """

    operation: ClassVar[str] = "reduce"
    optional: ClassVar[frozenset[str]] = GROUPED | {"op", "root", "in_place"}

    in_place: bool = option(True, "false copies the input first and times that too: torch reduces in place only")

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        dtype, op, root = str(point["dtype"]), str(point["op"]), int(point["root"])
        numel = int(point["size_bytes"]) // ITEM_BYTES[dtype]
        array = rig.full(numel, dtype, 0)
        sent = array if point["in_place"] else rig.full(numel, dtype, 0)
        mine, whole = rig.operands(op, dtype, comm.rank, comm.world_size)

        def in_place() -> None:
            comm.reduce(array, op, root)

        def out_of_place() -> None:
            array.copy_(sent)
            comm.reduce(array, op, root)

        def verify() -> Mapping[str, float]:
            return rig.expect(cls.operation, array, [(numel, whole)]) if comm.rank == root else {}

        def rest() -> None:
            array.zero_()  # sums of sums would run out of the dtype's range, also where they are undefined
            sent.zero_()

        return Exchange(
            call=in_place if point["in_place"] else out_of_place,
            fill=lambda: rig.write(sent, [(numel, mine)]),
            verify=verify,
            rest=rest,
        )
