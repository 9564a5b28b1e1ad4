"""Reduce-scatter: every rank ends up with its part of the sum, or another reduction, of all arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._collective import GROUPED, ITEM_BYTES, Collective, Exchange
from clusterbench.types import Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class ReduceScatter(Collective):
    """How fast all ranks reduce an array of which each keeps a part.

    ``size_bytes`` is the whole, ranks times a part, as nccl-tests prints it. Gloo's is an all_reduce and a copy, so on
    a CPU it shows no gain over one.
    """

    operation: ClassVar[str] = "reduce_scatter"
    optional: ClassVar[frozenset[str]] = GROUPED | {"op", "in_place"}
    in_parts: ClassVar[bool] = True

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        from clusterbench.engine.rig import from_place

        dtype, op, n = str(point["dtype"]), str(point["op"]), comm.world_size
        numel = int(point["size_bytes"]) // ITEM_BYTES[dtype] // n
        whole = rig.full(n * numel, dtype, 0)
        part = whole[comm.rank * numel :][:numel] if point["in_place"] else rig.empty(numel, dtype)
        mine, result = rig.operands(op, dtype, comm.rank, n)

        def fill() -> None:
            rig.forget(part)
            rig.write(whole, [(n * numel, mine)])

        return Exchange(
            call=lambda: comm.reduce_scatter(part, whole, op),
            fill=fill,
            verify=lambda: rig.expect(cls.operation, part, [(numel, from_place(result, comm.rank * numel))]),
            rest=whole.zero_,  # in place, sums of sums would run out of the dtype's range
        )
