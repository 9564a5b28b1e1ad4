"""UCX between two ranks: latency, or bandwidth, of tagged messages and of puts, over the transports one allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._tool import (
    PAIRS,
    WHICH_NODES,
    Figures,
    ToolBenchmark,
    expect_sizes,
    pairs_of,
    sizes_between,
    with_limit,
)
from clusterbench.errors import ToolError
from clusterbench.options import option
from clusterbench.tools import ucx_perftest
from clusterbench.types import MetricKind, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_ROUNDED_BYTES_PER_S = 0.01 * 2**20


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
    absent: ClassVar[Mapping[str, str]] = {
        # It prints its usage, whose end this is, above which the reason is lost.
        r"When running UCP tests, transport and device": "ucx_perftest was built without this test or this memory",
    }

    # Of UCP only: tests of UCT want one transport and one device, which these leave to UCX.
    test: str = option(
        "tag_bw",
        "what is sent, and what is measured of it",
        choices=(
            "tag_lat",
            "tag_bw",
            "ucp_put_lat",
            "ucp_put_bw",
            "ucp_am_lat",
            "ucp_am_bw",
            "stream_lat",
            "stream_bw",
        ),
    )
    memory: str = option("host", "where the messages are on both sides", choices=("host", "cuda"))
    pairs: str = option("neighbours", WHICH_NODES, choices=PAIRS)
    min_size: int = option(8, "smallest message", unit="B", minimum=1, maximum=2**32)
    max_size: int = option(2**22, "largest message", unit="B", minimum=1, maximum=2**32)
    factor: int = option(8, "each size is so many times the one before", minimum=2, maximum=1024)
    messages: int = option(1000, "messages of each run", minimum=10, maximum=10_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_sizes(self.min_size, self.max_size)

    def points(self, place: Place) -> Iterable[Point]:
        for server, client in pairs_of(place, self.pairs):
            for size_bytes in sizes_between(self.min_size, self.max_size, self.factor):
                point = {
                    "size_bytes": size_bytes,
                    "test": self.test,
                    "memory": self.memory,
                    "messages": self.messages,
                    "server": server,
                    "client": client,
                }
                yield with_limit(self, point)

    def label(self, point: Point) -> str:
        memory = "" if point["memory"] == "host" else f"-{point['memory']}"
        return f"{point['test']}-{format_bytes(point['size_bytes'])}-{point['server']}to{point['client']}{memory}"

    def objection(self, point: Point, place: Place) -> str | None:
        if point["memory"] != "host" and place.device != "cuda":
            return f"memory {point['memory']} is a GPU's, and there are none here"
        return None

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        messages = int(point["messages"])
        shared = ["-p", "{port}", "-t", str(point["test"]), "-s", str(point["size_bytes"]), "-n", str(messages)]
        shared += ["-w", str(max(1, messages // 10)), "-f"]
        shared += [] if point["memory"] == "host" else ["-m", f"{point['memory']},{point['memory']}"]
        return cls.between(rig, point, ["-p", "{port}"], ["{host}", *shared])  # the client tells the server the rest

    @classmethod
    def parse(cls, text: str, point: Point) -> Figures:
        result = ucx_perftest.parse(text)
        if result.iterations != point["messages"]:
            raise ToolError(f"ucx_perftest was asked for {point['messages']} messages and sent {result.iterations}")
        if str(point["test"]).endswith("_lat"):
            return {"latency": result.typical_s, "message_rate": result.messages_per_s}
        by_rate = int(point["size_bytes"]) * result.messages_per_s
        if abs(by_rate - result.bytes_per_s) > 0.02 * by_rate + _ROUNDED_BYTES_PER_S:
            raise ToolError(
                f"ucx_perftest printed {result.bytes_per_s:.4g} B/s, but {result.messages_per_s:.4g} messages of "
                f"{point['size_bytes']} bytes a second are {by_rate:.4g} B/s"
            )
        precise = result.bytes_per_s > 100 * _ROUNDED_BYTES_PER_S
        return {
            "bandwidth": result.bytes_per_s if precise else by_rate,
            "message_rate": result.messages_per_s,
        }
