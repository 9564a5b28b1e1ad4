"""Scatter: every rank ends up with its part of the root's array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._collective import GROUPED, Collective, Exchange, buffers_of_root
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
        whole, parts, part = buffers_of_root(rig, comm, point)
        numel = len(part)

        def fill() -> None:
            rig.forget(part)
            if comm.rank == root:
                rig.write(whole, [(numel, rig.block(dtype, rank)) for rank in range(n)])

        return Exchange(
            call=lambda: comm.scatter(part, parts, root),
            fill=fill,
            verify=lambda: rig.expect(cls.operation, part, [(numel, rig.block(dtype, comm.rank))]),
        )
