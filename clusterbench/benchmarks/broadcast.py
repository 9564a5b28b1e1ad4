"""Broadcast: the root's array is copied to all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._collective import GROUPED, ITEM_BYTES, Collective, Exchange
from clusterbench.types import Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class Broadcast(Collective):
    """How fast one rank's array reaches all others."""

    operation: ClassVar[str] = "broadcast"
    optional: ClassVar[frozenset[str]] = GROUPED | {"root"}
    refused_options: ClassVar[Mapping[str, str]] = {
        "in_place": "it always is: torch broadcasts one array, the source on the root and the destination elsewhere"
    }

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        dtype, root = str(point["dtype"]), int(point["root"])
        numel = int(point["size_bytes"]) // ITEM_BYTES[dtype]
        array = rig.empty(numel, dtype)
        whole = [(numel, rig.block(dtype, root))]

        return Exchange(
            call=lambda: comm.broadcast(array, root),
            fill=lambda: rig.write(array, whole) if comm.rank == root else rig.forget(array),
            verify=lambda: rig.expect(cls.operation, array, whole),
        )
