"""Scatter: every rank ends up with its part of the root's array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._collective import GROUPED, ITEM_BYTES, Collective, Exchange
from clusterbench.types import Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class Scatter(Collective):
    """How fast one rank hands every other a part of its array.

    In place, the root's own part stays where it is; other ranks do the same either way.
    """

    operation: ClassVar[str] = "scatter"
    optional: ClassVar[frozenset[str]] = GROUPED | {"root", "in_place"}
    in_parts: ClassVar[bool] = True

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        dtype, root, n = str(point["dtype"]), int(point["root"]), comm.world_size
        numel = int(point["size_bytes"]) // ITEM_BYTES[dtype] // n
        whole = rig.empty(n * numel if comm.rank == root else 0, dtype)
        parts = [whole[rank * numel :][:numel] for rank in range(n)] if comm.rank == root else []
        part = parts[root] if point["in_place"] and comm.rank == root else rig.empty(numel, dtype)

        def fill() -> None:
            rig.forget(part)
            if comm.rank == root:
                rig.write(whole, [(numel, rig.block(dtype, rank)) for rank in range(n)])

        return Exchange(
            call=lambda: comm.scatter(part, parts, root),
            fill=fill,
            verify=lambda: rig.expect(cls.operation, part, [(numel, rig.block(dtype, comm.rank))]),
        )
