"""Square matrix products: the compute rate this very machine reaches, against which training is held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.formulas.statistics import summarise
from clusterbench.options import option
from clusterbench.types import Case, Expected, Metric, MetricKind, Observation, Place, Point, Step

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_CHECKED_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Matmul(Benchmark):
    """How many FLOP/s each rank reaches in C = A B while so many ranks compute at once.

    Ranks of one host share its power, its clocks and, on a CPU, its cores, so the rate is taken at each number of ranks
    that a layout may use: 1, 2, 4, ... and all.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("step_time", "s", "lower", "time of one product, from the slowest rank"),
        MetricKind("flops_per_s_per_rank", "FLOP/s", "higher", "2 n^3 over the time of the slowest rank"),
    )

    sizes: tuple[int, ...] = option(
        (4096, 8192), "rows and columns of the matrices; the best is the machine's peak", minimum=16, maximum=131_072
    )
    dtype: str = option("float32", "element type", choices=("float32", "bfloat16", "float16", "float64"))

    def points(self, place: Place) -> Iterable[Point]:
        per_node = place.cluster.ranks_per_node
        counts = {2**i for i in range(per_node.bit_length()) if 2**i < per_node} if place.num_nodes == 1 else set()
        for num_ranks in sorted(counts | {place.world_size}):
            for size in self.sizes:
                yield {"size": size, "dtype": self.dtype, "num_ranks": num_ranks}

    def label(self, point: Point) -> str:
        return f"{point['size']}-{point['dtype']}"

    def world_size(self, point: Point, place: Place) -> int:
        return int(point["num_ranks"])

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        if (peak := place.cluster.peak_flops_per_s(str(point["dtype"]))) is None:
            return {}
        value, source = peak
        return {"flops_per_s_per_rank": Expected(value, "FLOP/s", f"dense peak, an upper bound: {source}")}

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        import torch

        size, dtype = int(point["size"]), rig.dtype(str(point["dtype"]))
        generator = torch.Generator(rig.device).manual_seed(rig.rank)

        def normal() -> torch.Tensor:
            return torch.randn(size, size, generator=generator, device=rig.device).to(dtype)

        def small_whole_numbers() -> torch.Tensor:
            # One in eight is 1 or -1: every partial sum stays a small whole number, exact in any dtype and any order.
            eighths = torch.randint(-8, 9, (size, size), generator=generator, device=rig.device)
            return eighths.div(8, rounding_mode="trunc").to(dtype)

        a_NK, b_KN, c_NN = normal(), normal(), torch.empty(size, size, dtype=dtype, device=rig.device)

        def check() -> Mapping[str, float]:
            whole_NK, whole_KN = small_whole_numbers(), small_whole_numbers()
            got = torch.mm(whole_NK, whole_KN)[:_CHECKED_ROWS]
            expected = torch.mm(whole_NK[:_CHECKED_ROWS].double(), whole_KN.double())
            return rig.expect_equal("matmul", got.double(), expected)

        return Step(run=lambda: torch.mm(a_NK, b_KN, out=c_NN), check=check)

    @classmethod
    def derive(cls, case: Case, observation: Observation) -> Iterable[Metric]:
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        flops = 2 * int(case.point["size"]) ** 3
        yield Metric("step_time", "s", time.value, time.low, time.high, time.n)
        yield Metric("flops_per_s_per_rank", "FLOP/s", flops / time.value, flops / time.high, flops / time.low, time.n)
