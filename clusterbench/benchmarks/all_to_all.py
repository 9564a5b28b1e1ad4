"""All-to-all: every rank sends every rank another part, as experts' tokens and Ulysses' heads travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._collective import ITEM_BYTES, Collective, Exchange
from clusterbench.types import Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class AllToAll(Collective):
    """How fast every rank sends an equal part to every other.

    ``size_bytes`` is what one rank sends, which is what it receives: ranks times a part.
    """

    operation: ClassVar[str] = "all_to_all"
    in_parts: ClassVar[bool] = True
    refused_options: ClassVar[Mapping[str, str]] = {
        "in_place": "ranks would overwrite what they still have to send; nccl-tests has none either"
    }

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        dtype, n, me = str(point["dtype"]), comm.world_size, comm.rank
        numel = int(point["size_bytes"]) // ITEM_BYTES[dtype] // n
        sent, received = rig.empty(n * numel, dtype), rig.empty(n * numel, dtype)

        def fill() -> None:
            rig.forget(received)
            rig.write(sent, [(numel, rig.block(dtype, me * n + peer)) for peer in range(n)])

        def verify() -> Mapping[str, float]:
            pieces = [(numel, rig.block(dtype, peer * n + me)) for peer in range(n)]
            return rig.expect(cls.operation, received, pieces)

        return Exchange(call=lambda: comm.all_to_all(received, sent), fill=fill, verify=verify)
