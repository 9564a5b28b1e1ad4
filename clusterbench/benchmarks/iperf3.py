"""TCP between two hosts by iperf3: what the ordinary network carries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._tool import PAIRS, WHICH_NODES, Figures, ToolBenchmark, pairs_of, with_limit
from clusterbench.errors import ToolError
from clusterbench.options import option
from clusterbench.tools import iperf3
from clusterbench.types import MetricKind, Place, Point, Step

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class Iperf3(ToolBenchmark):
    """How fast TCP carries bytes between two hosts, over the interface of the ranks.

    Checkpoints, data and the control of a run travel here, and NCCL where it finds no RDMA. Retransmits tell of loss
    that the bandwidth alone hides: BBR keeps its rate at one lost segment in a hundred.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("bandwidth", "B/s", "higher", "payload per second of all streams, as the receiver counted it"),
        MetricKind("retransmits", "1", "lower", "segments sent again during one run"),
        MetricKind("round_trip", "s", "lower", "TCP's smoothed round trip under this load, mean over the streams"),
    )
    program: ClassVar[str] = "iperf3"
    install: ClassVar[str] = "Debian: apt install iperf3"

    pairs: str = option("neighbours", WHICH_NODES, choices=PAIRS)
    streams: int = option(1, "connections at once", minimum=1, maximum=128)
    seconds: int = option(5, "how long it sends", minimum=1, maximum=3600)

    def points(self, place: Place) -> Iterable[Point]:
        for server, client in pairs_of(place, self.pairs):
            point = {"streams": self.streams, "seconds": self.seconds, "server": server, "client": client}
            yield with_limit(self, point)

    def label(self, point: Point) -> str:
        return f"{point['streams']}streams-{point['seconds']}s-{point['server']}to{point['client']}"

    def objection(self, point: Point, place: Place) -> str | None:
        if point["seconds"] >= point["tool_time_limit_s"]:
            return f"iperf3 sends for {point['seconds']} s and would be ended after {point['tool_time_limit_s']:g} s"
        return None

    @classmethod
    def cost(cls, point: Point) -> float:
        return float(point["seconds"])

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        client = ["-c", "{host}", "-p", "{port}", "-J", "-t", str(point["seconds"]), "-P", str(point["streams"])]
        return cls.between(rig, point, ["-s", "-1", "-p", "{port}"], client)

    @classmethod
    def parse(cls, text: str, point: Point) -> Figures:
        result = iperf3.parse(text)
        if result.num_streams != point["streams"] or result.seconds < 0.9 * point["seconds"]:
            raise ToolError(
                f"iperf3 was asked for {point['streams']} streams of {point['seconds']} s and reports "
                f"{result.num_streams} of {result.seconds:.3g} s"
            )
        figures = {"bandwidth": result.bytes_per_s}
        figures |= {} if result.retransmits is None else {"retransmits": float(result.retransmits)}
        figures |= {} if result.round_trip_s is None else {"round_trip": result.round_trip_s}
        return figures
