"""Send and receive: every rank sends to one and receives from one at the same time, as pipelines and rings do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks._collective import ITEM_BYTES, Collective, Exchange
from clusterbench.options import option
from clusterbench.types import Place, Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class SendRecv(Collective):
    """How fast messages pass between neighbours, or between ranks further apart.

    ``ring`` sends to the next rank, ``stride`` to the one that is so many ranks further, ``pairs`` exchanges with the
    one at that distance: with half the ranks as stride, every message crosses the middle.
    """

    operation: ClassVar[str] = "send_recv"
    refused_options: ClassVar[Mapping[str, str]] = {
        "in_place": "what is sent and what is received are two messages; nccl-tests has none either"
    }

    pattern: str = option("ring", "who sends to whom", choices=("ring", "stride", "pairs"))
    stride: int = option(1, "ranks between sender and receiver", minimum=1, maximum=1_000_000)

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        yield from super().ineffective(keys, place)
        if self.pattern == "ring" and "stride" in keys:
            yield "stride", "a ring is of neighbours; 'pattern: stride' sends further"

    def manner(self, place: Place) -> dict[str, Any]:
        return {
            **super().manner(place),
            "pattern": self.pattern,
            "stride": 1 if self.pattern == "ring" else self.stride,
        }

    def label(self, point: Point) -> str:
        words = [super().label(point)]
        words += [str(point["pattern"])] if point["pattern"] != "ring" else []
        words += [f"stride{point['stride']}"] if point["stride"] != 1 else []
        return "-".join(words)

    def objection(self, point: Point, place: Place) -> str | None:
        group_size, stride = int(point["group_size"]), int(point["stride"])
        if reason := super().objection(point, place):
            return reason
        if group_size == 1:
            return "one rank has no other rank to send to"
        if point["pattern"] == "stride" and stride % group_size == 0:
            return f"with a stride of {stride} each of {group_size} ranks would send to itself"
        if point["pattern"] == "pairs" and group_size % (2 * stride):
            return (
                f"{group_size} ranks are no pairs at a distance of {stride}; their number must divide by {2 * stride}"
            )
        return None

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        dtype, me = str(point["dtype"]), comm.rank
        numel = int(point["size_bytes"]) // ITEM_BYTES[dtype]
        source, destination = peers(str(point["pattern"]), int(point["stride"]), me, comm.world_size)
        sent, received = rig.empty(numel, dtype), rig.empty(numel, dtype)

        def fill() -> None:
            rig.forget(received)
            rig.write(sent, [(numel, rig.block(dtype, me))])

        return Exchange(
            call=lambda: comm.send_receive(received, source, sent, destination),
            fill=fill,
            verify=lambda: rig.expect(cls.operation, received, [(numel, rig.block(dtype, source))]),
        )


def peers(pattern: str, stride: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """From whom a rank receives, and to whom it sends.

    >>> [peers("ring", 1, rank, 4) for rank in range(4)]
    [(3, 1), (0, 2), (1, 3), (2, 0)]
    >>> [peers("pairs", 2, rank, 4) for rank in range(4)]
    [(2, 2), (3, 3), (0, 0), (1, 1)]
    """
    if pattern == "pairs":
        peer = rank + stride if rank // stride % 2 == 0 else rank - stride
        return peer, peer
    return (rank - stride) % num_ranks, (rank + stride) % num_ranks
