"""Matrix products: the compute rate this very machine reaches, against which training is held."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._sustained import SustainedBenchmark, burst
from clusterbench.errors import NotHere
from clusterbench.formulas.statistics import summarise
from clusterbench.measured.step import BURST
from clusterbench.options import later_values, option
from clusterbench.types import Case, Expected, Metric, MetricKind, Observation, Place, Point, Step

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.rig import Rig

_CHECKED_ROWS = 64
_SUMMED_AT_ONCE = 2**24
_WEIGHTS = 7

_FLOAT8_MULTIPLE = 16
"""Of which every length of a product of eight-bit floats has to be one, on GPUs."""

_SCALE = 2.0
"""Of each of its operands: one that were left out would show in the result."""

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
class Matmul(SustainedBenchmark):
    """How many FLOP/s each rank reaches in C = A B while so many ranks compute at once.

    Ranks of one host share its power, its clocks and, on a CPU, its cores, so the rate is taken at each number of ranks
    that a layout may use: 1, 2, 4, ... and all. On GPUs it is the sustained one: of two seconds and more once clocks
    have settled. With ``search`` sixteen more shapes are tried, most of them not square.

    Eight-bit floats are e4m3fn with one scale a matrix, summed up as forward passes do (fast accumulation) and written
    as bfloat16. Operands are multiplied again and again and not rotated: small ones stay in a cache, as what one layer
    writes is there for the next. Of size 8192 three matrices in bfloat16 have 384 MiB, more than the cache of any GPU
    on record, and the best size decides the peak.
    """

    ranks_work_alone: ClassVar[bool] = True
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
        "element type; tf32 is float32 that tensor cores multiply with 10 bits of mantissa, float8 is e4m3fn",
        choices=("float32", "bfloat16", "float16", "float64", "tf32", "float8"),
    )

    def points(self, place: Place) -> Iterable[Point]:
        per_node = place.cluster.ranks_per_node
        counts = {2**i for i in range(per_node.bit_length()) if 2**i < per_node} if place.num_nodes == 1 else set()
        for num_ranks in sorted(counts | {place.world_size}):
            shared = {"dtype": self.dtype, "num_ranks": num_ranks, **later_values(self)}
            for size in self.sizes:
                yield {"size": size, **shared}
            for m, n, k in SEARCHED if self.search else ():
                if not (m == n == k and m in self.sizes):
                    yield {"m": m, "n": n, "k": k, **shared}

    def label(self, point: Point) -> str:
        m, n, k = _shape(point)
        return f"{m}-{point['dtype']}" if "size" in point else f"{m}x{n}x{k}-{point['dtype']}"

    def objection(self, point: Point, place: Place) -> str | None:
        odd = [length for length in _shape(point) if length % _FLOAT8_MULTIPLE]
        if point["dtype"] == "float8" and odd:
            return f"a float8 product takes multiples of {_FLOAT8_MULTIPLE} only, and {odd[0]} is none"
        card = place.cluster.accelerator
        if point["dtype"] == "float8" and card is not None and "float8" in card.lacks:
            return f"{card.name} has no units for float8 (e4m3fn)"
        return None

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

        from clusterbench.engine.compat import scaled_product

        dtype = str(point["dtype"])
        if reason := _missing(rig.device.type, dtype):
            raise NotHere(reason)
        m, n, k = _shape(point)
        kind = {"tf32": torch.float32, "float8": torch.float8_e4m3fn}.get(dtype) or rig.dtype(dtype)
        generator = torch.Generator(rig.device).manual_seed(rig.rank)

        def normal(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator, device=rig.device).to(kind)

        def small_whole_numbers(rows: int, columns: int) -> torch.Tensor:
            # One in eight is 1 or -1, of long sums fewer: every partial sum stays a small whole number, exact in any
            # dtype and any order.
            one = max(8, math.isqrt(k // 512))
            parts = torch.randint(-one, one + 1, (rows, columns), generator=generator, device=rig.device)
            return parts.div(one, rounding_mode="trunc").float().to(kind)

        def second(b: torch.Tensor) -> torch.Tensor:
            return b.t().contiguous().t() if dtype == "float8" else b  # there its columns have to lie together

        a_MK, b_KN = normal(m, k), second(normal(k, n))
        c_MN = torch.empty(m, n, dtype=torch.bfloat16 if dtype == "float8" else kind, device=rig.device)
        scale = torch.tensor(_SCALE, device=rig.device)

        def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.mm(a, b, out=c_MN)

        def multiply_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("high")
            try:
                return multiply(a, b)
            finally:
                torch.set_float32_matmul_precision(before)  # other cases of this process multiply in full

        def multiply_float8(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return scaled_product(a, b, scale, scale, c_MN.dtype, out=c_MN)

        product = {"tf32": multiply_tf32, "float8": multiply_float8}.get(dtype, multiply)

        def run() -> torch.Tensor:
            return product(a_MK, b_KN)

        def proven() -> Mapping[str, float]:
            """Of the very operands that are timed, filled with other numbers.

            Some rows are compared element by element, and of all rows the sums with a weight for each column, which
            are known without the product: one wrong element anywhere shows in them. Freivalds 1977.
            """
            whole_MK, whole_KN = small_whole_numbers(m, k), small_whole_numbers(k, n)
            a_MK.copy_(whole_MK)
            b_KN.copy_(whole_KN)
            run()
            c_MN.fill_(float("nan"))
            product_MN = run()  # once more of the same operands, as all that is timed
            rows = slice(None, None, max(1, m // _CHECKED_ROWS))  # evenly spread
            expected = torch.mm(whole_MK[rows].double(), whole_KN.double())
            got = product_MN[rows].double()
            factor = _SCALE**2 if dtype == "float8" else 1.0
            rig.expect_equal("matmul", got, expected * factor)
            weights = 1 + torch.arange(n, dtype=torch.float64, device=rig.device) % _WEIGHTS
            sums = _weighted(whole_MK, _weighted(whole_KN, weights)) * factor
            return rig.expect_equal("matmul, summed by rows,", _weighted(product_MN, weights), sums)

        def check() -> Mapping[str, float]:
            evidence = proven()
            a_MK.copy_(normal(m, k))
            b_KN.copy_(normal(k, n))
            return evidence

        return Step(run=run, check=check, confirm=lambda is_first: proven() if is_first else {})

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


def _weighted(matrix: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Each row's sum with a weight for each column, in float64: exact, of whole numbers."""
    import torch

    step = max(1, _SUMMED_AT_ONCE // matrix.shape[1])
    return torch.cat([matrix[row : row + step].double() @ weights for row in range(0, len(matrix), step)])


def _shape(point: Point) -> tuple[int, int, int]:
    """Rows of A, columns of B, and what is summed over; square points have one size."""
    m, n, k = (point.get(name, point.get("size")) for name in ("m", "n", "k"))
    return int(m), int(n), int(k)


def _missing(device: str, dtype: str) -> str:
    """Why this device cannot multiply so; empty where it can. A CPU has float8, slowly."""
    import torch

    from clusterbench.engine.compat import lacks_float8

    if dtype == "float8":
        return lacks_float8(device)
    is_nvidia = device == "cuda" and not torch.version.hip
    if dtype != "tf32" or (is_nvidia and torch.cuda.get_device_capability() >= (8, 0)):
        return ""
    return "tf32 is a mode of the tensor cores of NVIDIA GPUs since the A100, and this device has none"
