"""Copies between a host's memory and its GPUs: pinned and pageable, either way and both ways at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.benchmarks._transfer import WORD_BYTES, pattern, transfer_metrics, transferred
from clusterbench.errors import NotHere, SuiteError
from clusterbench.options import option
from clusterbench.types import Case, Expected, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_WAYS = {"host_to_device": 1, "device_to_host": 1, "both": 2}
"""Directions at once."""


@dataclass(frozen=True, kw_only=True)
class HostCopy(Benchmark):
    """How fast ranks copy between their host's memory and their GPU, one alone or all at once.

    GPUs of one host share PCIe switches, sockets and memory, so all at once are often slower than each alone; the two
    are different points. Both directions at once run on two streams and count the bytes of both. From pageable memory
    the driver copies through a buffer of its own and keeps the calling thread busy, so it has no such point.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = transfer_metrics("one copy, or of the two at once")
    predicts: ClassVar[tuple[str, ...]] = ("bandwidth_per_rank",)

    sizes: tuple[int, ...] = option(
        (2**16, 2**20, 2**24, 2**28), "array of each rank, for each direction", unit="B", minimum=8, maximum=2**38
    )
    memory: tuple[str, ...] = option(("pinned", "pageable"), "kind of host memory", choices=("pinned", "pageable"))
    directions: tuple[str, ...] = option(
        ("host_to_device", "device_to_host", "both"),
        "which way; both is at once, and of pinned memory only",
        choices=tuple(_WAYS),
    )
    ranks: str = option("all", "who copies: every rank at once, or one alone", choices=("all", "one"))

    def __post_init__(self) -> None:
        if not list(self._kinds()):
            raise SuiteError(
                "directions is 'both' and memory is 'pageable': copies from pageable memory keep their thread busy, so "
                "one rank cannot run two. Add 'pinned' to memory, or a single direction to directions"
            )

    def _kinds(self) -> Iterable[tuple[str, str]]:
        for memory in self.memory:
            for direction in self.directions:
                if (memory, direction) != ("pageable", "both"):
                    yield memory, direction

    def points(self, place: Place) -> Iterable[Point]:
        for memory, direction in self._kinds():
            for size_bytes in self.sizes:
                yield {"size_bytes": size_bytes, "memory": memory, "direction": direction, "ranks": self.ranks}

    def label(self, point: Point) -> str:
        return f"{point['direction']}-{point['memory']}-{format_bytes(point['size_bytes'])}-{point['ranks']}"

    def world_size(self, point: Point, place: Place) -> int:
        return 1 if point["ranks"] == "one" else place.world_size

    def objection(self, point: Point, place: Place) -> str | None:
        if int(point["size_bytes"]) % WORD_BYTES:
            return f"a size of {point['size_bytes']} B is not a whole number of words of {WORD_BYTES} B"
        return None

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        card = place.cluster.accelerator
        if card is None or card.pcie_bytes_per_s is None or point["memory"] != "pinned":
            return {}
        ways = _WAYS[str(point["direction"])]
        directions = "each direction of the link to the host" if ways == 2 else "one direction of the link to the host"
        basis = f"{directions} by the data sheet, an upper bound: {card.source}"
        return {"bandwidth_per_rank": Expected(ways * card.pcie_bytes_per_s, "B/s", basis, is_upper_bound=True)}

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        if rig.device.type != "cuda":
            raise NotHere(
                "host_copy copies between a host and its GPUs, and these are CPU ranks.\n"
                "hint: the benchmark 'cpu_memory' measures copies within a host's memory"
            )
        import torch

        numel, pinned = int(point["size_bytes"]) // WORD_BYTES, point["memory"] == "pinned"
        here, start = torch.device("cpu"), rig.rank * numel
        inwards, outwards = (point["direction"] in (way, "both") for way in ("host_to_device", "device_to_host"))
        copies: list[Callable[[], object]] = []
        targets: dict[str, torch.Tensor] = {}

        def add(name: str, source: torch.Tensor, target: torch.Tensor) -> None:
            copies.append(lambda: target.copy_(source, non_blocking=True))
            targets[name] = target

        def on_host(words: torch.Tensor) -> torch.Tensor:
            return words.pin_memory() if pinned else words

        if inwards:
            add(
                "host to device",
                on_host(pattern(numel, start, here)),
                torch.zeros(numel, dtype=torch.int64, device=rig.device),
            )
        if outwards:
            add("device to host", pattern(numel, start, rig.device), on_host(torch.zeros(numel, dtype=torch.int64)))
        # The second direction has a stream of its own, between two waits of the stream that is timed.
        streams = [torch.cuda.Stream(rig.device) for _ in copies[1:]]  # type: ignore[no-untyped-call]

        def run() -> None:
            current = torch.cuda.current_stream()
            for stream, copy in zip(streams, copies[1:], strict=True):
                stream.wait_stream(current)
                with torch.cuda.stream(stream):
                    copy()
            copies[0]()
            for stream in streams:
                current.wait_stream(stream)

        def forget() -> None:
            for target in targets.values():
                target.zero_()

        def verify() -> Mapping[str, float]:
            torch.cuda.synchronize()
            for name, target in targets.items():
                rig.expect_equal(name, target, pattern(numel, start, target.device))
            return {"wrong_elements": 0.0}

        return Step.proven(run, forget, verify)

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        return 0  # nothing moves between ranks

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        return transferred(case, observation, _WAYS[case.point["direction"]] * int(case.point["size_bytes"]))
