"""UCX between two ranks: latency, or bandwidth, of tagged messages and of puts, over the transports one allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._tool import Figures, ToolBenchmark, pairs_of, sizes_between, with_limit
from clusterbench.options import option
from clusterbench.tools import ucx_perftest
from clusterbench.types import MetricKind, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class UcxPerftest(ToolBenchmark):
    """How fast UCX moves messages between two hosts, or two processes of one.

    Which transport it takes is UCX's choice unless ``environment: {UCX_TLS: tcp}`` makes it, so the same entry swept
    over UCX_TLS shows what each is worth. Latency is one way, half a round trip.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("latency", "s", "lower", "time of one message, one way, median of one run"),
        MetricKind("bandwidth", "B/s", "higher", "bytes per second of one run, one direction"),
        MetricKind("message_rate", "1/s", "higher", "messages per second of one run"),
    )
    program: ClassVar[str] = "ucx_perftest"
    install: ClassVar[str] = "Debian: apt install ucx-utils; elsewhere it is built with UCX (openucx.org)"

    test: str = option("tag_bw", "what is sent", choices=("tag_lat", "tag_bw", "ucp_put_lat", "ucp_put_bw", "am_bw"))
    min_size: int = option(8, "smallest message", unit="B", minimum=1, maximum=2**32)
    max_size: int = option(2**22, "largest message", unit="B", minimum=1, maximum=2**32)
    factor: int = option(8, "each size is so many times the one before", minimum=2, maximum=1024)
    messages: int = option(1000, "messages of each run", minimum=10, maximum=10_000_000)

    def points(self, place: Place) -> Iterable[Point]:
        for server, client in pairs_of(place):
            for size_bytes in sizes_between(self.min_size, self.max_size, self.factor):
                point = {
                    "size_bytes": size_bytes,
                    "test": self.test,
                    "messages": self.messages,
                    "server": server,
                    "client": client,
                }
                yield with_limit(self, point)

    def label(self, point: Point) -> str:
        return (
            f"{point['test']}-{format_bytes(point['size_bytes']).replace(' ', '')}-{point['server']}to{point['client']}"
        )

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        messages = int(point["messages"])
        shared = ["-p", "{port}", "-t", str(point["test"]), "-s", str(point["size_bytes"]), "-n", str(messages)]
        shared += ["-w", str(max(1, messages // 10)), "-f"]
        return cls.between(rig, point, ["-p", "{port}"], ["{host}", *shared])

    @classmethod
    def parse(cls, text: str, point: Point) -> Figures:
        result = ucx_perftest.parse(text)
        if str(point["test"]).endswith("_lat"):
            return {"latency": result.typical_s, "message_rate": result.messages_per_s}
        return {"bandwidth": result.bytes_per_s, "message_rate": result.messages_per_s}
