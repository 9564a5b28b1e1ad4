"""Gather: the root ends up with every rank's part, in the order of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._collective import GROUPED, Collective, Exchange, buffers_of_root
from clusterbench.types import Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class Gather(Collective):
    """How fast the parts of all ranks are put together on one of them.

    In place, the root's own part is already where it belongs; other ranks do the same either way.
    """

    operation: ClassVar[str] = "gather"
    optional: ClassVar[frozenset[str]] = GROUPED | {"root", "in_place"}
    in_parts: ClassVar[bool] = True

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        dtype, root, n = str(point["dtype"]), int(point["root"]), comm.world_size
        whole, parts, part = buffers_of_root(rig, comm, point)
        numel = len(part)

        def fill() -> None:
            rig.forget(whole)
            rig.write(part, [(numel, rig.block(dtype, comm.rank))])

        def verify() -> Mapping[str, float]:
            pieces = [(numel, rig.block(dtype, rank)) for rank in range(n)]
            return rig.expect(cls.operation, whole, pieces) if comm.rank == root else {}

        return Exchange(call=lambda: comm.gather(parts, part, root), fill=fill, verify=verify)
