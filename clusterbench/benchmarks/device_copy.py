"""A GPU's own memory: copied from one place to another, and filled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._sustained import SustainedBenchmark, burst
from clusterbench.benchmarks._transfer import WORD_BYTES, pattern, transfer_metrics, transferred
from clusterbench.errors import NotHere
from clusterbench.options import later_values, option
from clusterbench.types import Case, Expected, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_BEYOND_CACHES = 2**29
"""Arrays from this size on are larger than the caches of any GPU on record; the largest is MI300X's, of 256 MiB."""

_PASSES = {"copy": 2, "fill": 1}
"""How often an operation goes through its array's size."""

_FILLED_WITH = 0x5A5A5A5A5A5A5A5A


@dataclass(frozen=True, kw_only=True)
class DeviceCopy(SustainedBenchmark):
    """How fast each GPU copies and fills its own memory while all of them do.

    A copy of so many bytes reads and writes each, so it counts twice its size; a fill writes and counts once. Source of
    the convention: BabelStream, which counts what a kernel reads and writes. All ranks run at once, because GPUs of one
    host share power and cooling; what one GPU has to itself is its memory. The rate is the sustained one, of two
    seconds and more once clocks have settled.
    """

    ranks_work_alone: ClassVar[bool] = True
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        *transfer_metrics("one copy or fill"),
        MetricKind("burst_bandwidth_per_rank", "B/s", "higher", "of the first ones, before clocks come down"),
    )
    predicts: ClassVar[tuple[str, ...]] = ("bandwidth_per_rank",)

    sizes: tuple[int, ...] = option(
        (2**26, 2**29, 2**31), "array of each rank; below 512MiB caches may hold it", unit="B", minimum=8, maximum=2**40
    )
    operations: tuple[str, ...] = option(
        ("copy", "fill"), "copy counts twice its size, fill once", choices=tuple(_PASSES)
    )

    def points(self, place: Place) -> Iterable[Point]:
        for operation in self.operations:
            for size_bytes in self.sizes:
                yield {"size_bytes": size_bytes, "operation": operation, **later_values(self)}

    def label(self, point: Point) -> str:
        return f"{point['operation']}-{format_bytes(point['size_bytes'])}"

    def objection(self, point: Point, place: Place) -> str | None:
        if int(point["size_bytes"]) % WORD_BYTES:
            return f"a size of {point['size_bytes']} B is not a whole number of words of {WORD_BYTES} B"
        return None

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        card = place.cluster.accelerator
        if card is None or card.memory_bytes_per_s is None or int(point["size_bytes"]) < _BEYOND_CACHES:
            return {}
        basis = f"memory bandwidth of the data sheet, an upper bound: {card.source}"
        return {"bandwidth_per_rank": Expected(card.memory_bytes_per_s, "B/s", basis, is_upper_bound=True)}

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        if rig.device.type != "cuda":
            raise NotHere(
                "device_copy measures a GPU's own memory, and these are CPU ranks.\n"
                "hint: the benchmark 'cpu_memory' measures a host's memory"
            )
        import torch

        numel = int(point["size_bytes"]) // WORD_BYTES
        target = torch.zeros(numel, dtype=torch.int64, device=rig.device)
        if point["operation"] == "fill":
            filled = torch.full((1,), _FILLED_WITH, dtype=torch.int64, device=rig.device)
            return Step.proven(
                run=lambda: target.fill_(_FILLED_WITH),
                forget=target.zero_,
                verify=lambda: rig.expect_equal("fill", target, filled),
            )
        source = pattern(numel, rig.rank * numel, rig.device)
        return Step.proven(
            run=lambda: target.copy_(source),
            forget=target.zero_,
            verify=lambda: rig.expect_equal("copy", target, pattern(numel, rig.rank * numel, rig.device)),
        )

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        return 0  # nothing moves between ranks

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        size_bytes = _PASSES[case.point["operation"]] * int(case.point["size_bytes"])
        yield from transferred(case, observation, size_bytes)
        if first := burst(observation):
            rates = size_bytes / first.value, size_bytes / first.high, size_bytes / first.low
            yield Metric("burst_bandwidth_per_rank", "B/s", *rates, first.n)
