"""Matrix products: the compute rate this very machine reaches, against which training is held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark, burst
from clusterbench.errors import NotHere
from clusterbench.formulas.statistics import summarise
from clusterbench.options import option
from clusterbench.types import Case, Expected, Metric, MetricKind, Observation, Place, Point, Step

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

BURST = "burst_flops_per_s_per_rank"
"""The metric that stands beside the sustained rate; no utilization is held against it."""

_CHECKED_ROWS = 64

SEARCHED = (
    # Squares of whole tiles that the usual powers of two miss.
    (5120, 5120, 5120),
    (6144, 6144, 6144),
    (10240, 10240, 10240),
    (12288, 12288, 12288),
    # A long sum: fewer tiles of the result, each written once for more work.
    (4096, 4096, 16384),
    (8192, 8192, 16384),
    (8192, 8192, 28672),
    # Wide results: tiles in whole waves over 108, 132 or 148 multiprocessors are more likely with many of them.
    (16384, 8192, 4096),
    (16384, 8192, 8192),
    (16384, 16384, 4096),
    # Odd multiples of 256, between the waves that the powers of two happen to fill badly.
    (6912, 8448, 8192),
    (8448, 8448, 8192),
    (9472, 9472, 8192),
    # What a transformer multiplies: tokens by the projections of hidden sizes 4096, 5120 and 8192.
    (16384, 14336, 4096),
    (16384, 13824, 5120),
    (8192, 28672, 8192),
)
"""(rows of A, columns of B, what is summed over) that ``search`` tries, all multiples of 256.

None is known to be the best: the fastest shape depends on the tiles of the library's kernels and on the number of
multiprocessors they are dealt to, 108 on an A100, 132 on an H100, 148 on a B200. The more shapes, the nearer the best
is to the machine's. Method: stas00/ml-engineering, compute/accelerator/benchmarks/mamf-finder.py.
"""


@dataclass(frozen=True, kw_only=True)
class Matmul(Benchmark):
    """How many FLOP/s each rank reaches in C = A B while so many ranks compute at once.

    Ranks of one host share its power, its clocks and, on a CPU, its cores, so the rate is taken at each number of ranks
    that a layout may use: 1, 2, 4, ... and all. On GPUs it is the sustained one: of two seconds and more once clocks
    have settled. With ``search`` sixteen more shapes are tried, most of them not square.
    Eight-bit floats are missing, because PyTorch multiplies them through a private function only.
    """

    ranks_work_alone: ClassVar[bool] = True
    is_sustained: ClassVar[bool] = True
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("step_time", "s", "lower", "time of one product, from the slowest rank"),
        MetricKind("flops_per_s_per_rank", "FLOP/s", "higher", "2 m n k over the time of the slowest rank"),
        MetricKind(BURST, "FLOP/s", "higher", "the same of the first products, before clocks come down; on GPUs"),
    )
    predicts: ClassVar[tuple[str, ...]] = ("flops_per_s_per_rank",)

    sizes: tuple[int, ...] = option(
        (4096, 8192), "rows and columns of the matrices; the best is the machine's peak", minimum=16, maximum=131_072
    )
    search: bool = option(False, "whether to try sixteen more shapes as well, up to 16384 x 16384 x 4096")
    dtype: str = option(
        "float32",
        "element type; tf32 is float32 that tensor cores multiply with 10 bits of mantissa",
        choices=("float32", "bfloat16", "float16", "float64", "tf32"),
    )

    def points(self, place: Place) -> Iterable[Point]:
        per_node = place.cluster.ranks_per_node
        counts = {2**i for i in range(per_node.bit_length()) if 2**i < per_node} if place.num_nodes == 1 else set()
        for num_ranks in sorted(counts | {place.world_size}):
            for size in self.sizes:
                yield {"size": size, "dtype": self.dtype, "num_ranks": num_ranks}
            for m, n, k in SEARCHED if self.search else ():
                if not (m == n == k and m in self.sizes):
                    yield {"m": m, "n": n, "k": k, "dtype": self.dtype, "num_ranks": num_ranks}

    def label(self, point: Point) -> str:
        m, n, k = _shape(point)
        return f"{m}-{point['dtype']}" if "size" in point else f"{m}x{n}x{k}-{point['dtype']}"

    def world_size(self, point: Point, place: Place) -> int:
        return int(point["num_ranks"])

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        if (peak := place.cluster.peak_flops_per_s(str(point["dtype"]))) is None:
            return {}
        value, source = peak
        basis = f"dense peak, an upper bound: {source}"
        return {"flops_per_s_per_rank": Expected(value, "FLOP/s", basis, is_upper_bound=True)}

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        import torch

        m, n, k = _shape(point)
        is_tf32 = point["dtype"] == "tf32"
        if is_tf32 and (rig.device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability() < (8, 0)):
            raise NotHere("tf32 is a mode of the tensor cores of NVIDIA GPUs since the A100, and this device has none")
        dtype = torch.float32 if is_tf32 else rig.dtype(str(point["dtype"]))
        generator = torch.Generator(rig.device).manual_seed(rig.rank)

        def normal(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator, device=rig.device).to(dtype)

        def small_whole_numbers(rows: int, columns: int) -> torch.Tensor:
            # One in eight is 1 or -1: every partial sum stays a small whole number, exact in any dtype and any order.
            eighths = torch.randint(-8, 9, (rows, columns), generator=generator, device=rig.device)
            return eighths.div(8, rounding_mode="trunc").to(dtype)

        a_MK, b_KN, c_MN = normal(m, k), normal(k, n), torch.empty(m, n, dtype=dtype, device=rig.device)

        def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.mm(a, b, out=c_MN)

        def multiply_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("high")
            try:
                return multiply(a, b)
            finally:
                torch.set_float32_matmul_precision(before)  # other cases of this process multiply in full

        product = multiply_tf32 if is_tf32 else multiply

        def check() -> Mapping[str, float]:
            whole_MK, whole_KN = small_whole_numbers(m, k), small_whole_numbers(k, n)
            got = product(whole_MK, whole_KN)[:_CHECKED_ROWS]
            expected = torch.mm(whole_MK[:_CHECKED_ROWS].double(), whole_KN.double())
            return rig.expect_equal("matmul", got.double(), expected)

        return Step(run=lambda: product(a_MK, b_KN), check=check)

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        m, n, k = _shape(case.point)
        flops = 2 * m * n * k
        yield Metric("step_time", "s", time.value, time.low, time.high, time.n)
        yield Metric("flops_per_s_per_rank", "FLOP/s", flops / time.value, flops / time.high, flops / time.low, time.n)
        if first := burst(observation):
            rates = flops / first.value, flops / first.high, flops / first.low
            yield Metric(BURST, "FLOP/s", *rates, first.n, basis="lasts for milliseconds; no training step sees it")


def _shape(point: Point) -> tuple[int, int, int]:
    """Rows of A, columns of B, and what is summed over; square points have one size."""
    m, n, k = (point.get(name, point.get("size")) for name in ("m", "n", "k"))
    return int(m), int(n), int(k)
