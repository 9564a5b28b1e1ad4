"""All-gather: every rank ends up with every rank's part, in the order of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._collective import GROUPED, ITEM_BYTES, Collective, Exchange
from clusterbench.types import Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class AllGather(Collective):
    """How fast the parts of all ranks are put together on each of them.

    ``size_bytes`` is the whole, ranks times a part, as nccl-tests prints it; NCCL's own inspector counts a part.
    """

    operation: ClassVar[str] = "all_gather"
    optional: ClassVar[frozenset[str]] = GROUPED | {"in_place"}
    in_parts: ClassVar[bool] = True

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        dtype, n = str(point["dtype"]), comm.world_size
        numel = int(point["size_bytes"]) // ITEM_BYTES[dtype] // n
        whole = rig.empty(n * numel, dtype)
        part = whole[comm.rank * numel :][:numel] if point["in_place"] else rig.empty(numel, dtype)

        def fill() -> None:
            rig.forget(whole)
            rig.write(part, [(numel, rig.block(dtype, comm.rank))])

        return Exchange(
            call=lambda: comm.all_gather(whole, part),
            fill=fill,
            verify=lambda: rig.expect(cls.operation, whole, [(numel, rig.block(dtype, rank)) for rank in range(n)]),
        )
