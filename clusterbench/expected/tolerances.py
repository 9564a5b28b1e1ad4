"""What a layout is compared with one rank in, and how far it may be from it, each figure with its reason; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from clusterbench.formulas.rounding import BFLOAT16_ROUNDING, rounding_of_sums
from clusterbench.job import TrainingJob, is_spread_expert, kept_bytes, weight_shapes
from clusterbench.parallel import Parallelism, active_in, summed_over
from clusterbench.types import Expected, metric_key

PARITY_METRICS = (
    "parity_loss",
    "parity_gradients",
    "parity_gradient_scale",
    "parity_update",
    "parity_worst_update",
    "parity_second_norm",
)
ONE_RANK = "parity_one_rank"
"""How far one rank in bfloat16 is from float64, over the most of healthy ones: layouts are allowed what it is off."""

UNSENT = "parity_unsent"
"""Of a step that only approximates: how much of some gradients was neither sent nor kept to be sent later."""

FACTORS = "parity_factors"
"""How far a compressed gradient is from one power iteration on from the one before."""

LARGEST = "parity_largest"
"""How far what top-k sends of some gradients is from the largest elements of each with what was kept before."""

LAST_UPDATE, COPIES, CLIPPING, BIAS = "last_update", "copies", "clipping", "update_bias"
"""Of the job itself, behind the clock: see :mod:`clusterbench.proof.last_update`."""

EXACT = "float64"

_SUMS = "the sums are the same in another order"
_AMPLIFIED = "Adam divides by the gradient's size, so where it is near 0 its rounding decides the sign of an update"
_FLOAT64 = {
    "parity_loss": (1e-12, _SUMS),
    "parity_gradients": (1e-11, _SUMS),
    "parity_gradient_scale": (1e-12, _SUMS),
    "parity_update": (1e-9, _AMPLIFIED),
    "parity_worst_update": (1e-8, _AMPLIFIED),
    "parity_second_norm": (1e-9, _AMPLIFIED),
}
_FLOAT32 = {
    "parity_loss": (1e-5, _SUMS),
    "parity_gradients": (1e-5, _SUMS),
    "parity_gradient_scale": (1e-5, _SUMS),
    "parity_update": (1e-3, _AMPLIFIED),
    "parity_worst_update": (1e-2, _AMPLIFIED),
    "parity_second_norm": (1e-3, _AMPLIFIED),
}
_OF_ONE_RANK = (
    "deviation from one rank in float64, as a multiple of what one rank in bfloat16 deviates: parallel sums round "
    "elsewhere, not coarser"
)
_OF_HEALTHY = "as a multiple of the most by which one rank in bfloat16 was seen to deviate from float64"
_OF_ROUNDING = "as a multiple of what rounding of all its numbers leaves, which goes both ways and cancels"
_BFLOAT16 = {
    "parity_loss": (0.5, f"{_OF_ONE_RANK}; a mean over many tokens, whose rounding cancels"),
    "parity_gradients": (2.0, _OF_ONE_RANK),
    "parity_gradient_scale": (1.0, _OF_ROUNDING),
    "parity_update": (2.0, _OF_ONE_RANK),
    "parity_worst_update": (0.5, "of a norm's few numbers some get another sign; without a step it is 1"),
    "parity_second_norm": (0.02, "some updates get another sign; with clipped gradients of the step before it is 0.3"),
}
_OF_THE_SAME = (
    "from one rank in bfloat16, whose weights are rounded as well, as a share of what one in float64 changed; measured "
    "0.1 and 0.17, without a step it is 1"
)
_PURE_BFLOAT16 = _BFLOAT16 | {"parity_update": (0.3, _OF_THE_SAME), "parity_worst_update": (0.5, _OF_THE_SAME)}
# A change that is a small share of the distance to the next number becomes that distance, seldom. Two layouts round
# alike but for elements whose random bits lie between the two layouts' values of them: as many as the difference of
# these is of that distance, give or take some by chance. So eight elements are added to what a weight is compared with.
_SAME_BITS = (
    "from one rank in bfloat16, whose weights are rounded by the same random bits, as a share of what such a rounding "
    "leaves of the change of one in float64, and of 8 elements"
)
_OF_THE_SAME_BITS = f"{_SAME_BITS}; measured 0.1 and 0.32, without a step it is 1"
_BY_CHANCE = _BFLOAT16 | {"parity_update": (0.3, _OF_THE_SAME_BITS), "parity_worst_update": (0.5, _OF_THE_SAME_BITS)}
_FLOAT8 = _BFLOAT16 | {
    "parity_worst_update": (
        1.5,
        f"{_OF_ONE_RANK}; products are in float8, and no rank is trusted to less than 0.45; without a step it is 2.2",
    ),
    "parity_second_norm": (0.1, "products are in float8: measured 0.018; with those of the step before it is 0.3"),
}
_BY_CHANCE_FLOAT8 = _FLOAT8 | {
    "parity_update": (0.65, f"{_SAME_BITS}; products are in float8: measured 0.43, at a third of the rate 0.82"),
    "parity_worst_update": (0.9, f"{_SAME_BITS}; products are in float8: measured 0.61, without a step it is 1"),
}
_TOLERANCES = {"float64": _FLOAT64, "float32": _FLOAT32, "bfloat16": _BFLOAT16}


_SUMMED = (
    "; what sums of gradients in bfloat16 over micro-batches and ranks add to that is allowed as well: as independent "
    "roundings of each addition"
)
_OF_SUMS = ("parity_gradients", "parity_gradient_scale", "parity_update", "parity_worst_update")


def rounding_of_summed_gradients(job: TrainingJob, active: Sequence[Parallelism]) -> dict[str, float]:
    """By the name of each weight: how far its gradient is off for being added up in bfloat16, beyond one rank's.

    Root mean square over that of the gradient. Over the ranks that have copies of a weight; and over micro-batches, and
    the other axes along which it is summed, but for FSDP's shares, which are in float32 by then. On llama-tiny over 2
    to 64 micro-batches half the weights were off by 0.84 to 0.91 of this, the worst by 1.08.

    Parameters
    ----------
    job
        In the dtype in which it is compared.
    """
    if job.gradient_bytes == job.master_bytes:
        return {}
    layout, rounding = job.layout, dict[str, float]()
    for name in weight_shapes(job.on_one_rank()):
        copies = "edp" if is_spread_expert(name, job) else layout.data_axis
        parts = [layout.degree(copies)]
        if kept_bytes(name, job) != job.master_bytes:
            others = (axis for axis in summed_over(active, name, job) if axis != copies)
            parts += [job.gradient_accumulation_steps, *map(layout.degree, others)]
        known = job.on_one_rank().gradient_accumulation_steps
        rounding[name] = BFLOAT16_ROUNDING * rounding_of_sums(parts, known)
    return rounding


@dataclass(frozen=True)
class Comparison:
    """One comparison of the small twin with one rank.

    Attributes
    ----------
    dtype
        Of the arithmetic.
    parallelisms
        In the form in which they are compared.
    is_own
        Whether the dtype is that of the job, so that its figures stand under the plain names.
    why
        Why it is not the job's own dtype, or not as the job routes; empty where it is both.
    by_place
        Whether tokens go by their place where the job's router decides.
    """

    dtype: str
    parallelisms: tuple[Parallelism, ...]
    is_own: bool
    why: str = ""
    by_place: bool = False

    def key(self, metric: str) -> str:
        """How a figure of this comparison is called."""
        return metric if self.is_own else metric_key(metric, source=self.dtype)

    def allowed(self, job: TrainingJob) -> Mapping[str, Expected]:
        """Metric -> the largest value that still counts as the same result."""
        active = active_in(job.layout, self.parallelisms)
        rounding = max((parallelism.rounding(self.dtype) for parallelism in active), default=0.0)
        coarse = any(parallelism.product_rounding for parallelism in active)
        by_chance = any(parallelism.rounds_by_chance for parallelism in active)
        own = job if self.dtype == job.dtype else replace(job, dtype=self.dtype)
        sums_rounded = own.gradient_bytes != own.master_bytes
        return _limits(self.dtype, own.master_bytes, coarse, by_chance, rounding, sums_rounded, self.why)


@cache  # a plan asks for every case
def _limits(
    dtype: str, master_bytes: int, coarse: bool, by_chance: bool, rounding: float, sums_rounded: bool, why: str
) -> Mapping[str, Expected]:
    limits = {}
    kept_half = _BY_CHANCE if by_chance else _PURE_BFLOAT16
    of_float8 = _BY_CHANCE_FLOAT8 if by_chance else _FLOAT8
    tolerances = of_float8 if coarse else kept_half if master_bytes == 2 else _TOLERANCES[dtype]
    for metric, (value, reason) in tolerances.items():
        if rounding and dtype != "bfloat16":
            value, reason = _BFLOAT16[metric]  # of the worst update, and the others by what is lost
            if metric in _ROUNDED:
                value, reason = _ROUNDED[metric] * rounding, f"gradients are rounded before they are sent: {rounding:g}"
        summed = _SUMMED if sums_rounded and metric in _OF_SUMS else ""
        limits[metric] = Expected(value, "1", f"at most; {reason}{summed}{why}")
    if dtype == "bfloat16":
        limits[ONE_RANK] = Expected(2.0, "1", f"at most; {_OF_HEALTHY}")
    return limits


_ROUNDED = {
    "parity_loss": 0.01,
    "parity_gradients": 1,
    "parity_gradient_scale": 0.25,
    "parity_update": 8,
    "parity_second_norm": 16,
}
"""As multiples of what a message loses of the largest gradient; the second loss is of weights stepped by such.

The worst update is that of a norm, however little is lost: where one of 64 gradients gets another sign in the first
step, it deviates by 0.125.
"""


def comparisons_of(
    job: TrainingJob, parallelisms: Sequence[Parallelism], runs_in_float64: bool = True
) -> Sequence[Comparison]:
    """What a layout has to stand: float64, in which nothing hides behind rounding, and the job's own dtype.

    Sums in another order can send a token whose experts are nearly equal to another one, which is no mistake. So where
    a router decides, the choice is compared in float64, and the job's own dtype with every expert's share fixed. A
    trainer that does not run in float64 is compared in the job's own dtype alone.
    """
    return _comparisons(job.dtype, job.shape.has_experts, tuple(parallelisms), runs_in_float64)


@lru_cache(maxsize=256)  # a plan asks for every layout
def _comparisons(
    dtype: str, has_experts: bool, parallelisms: tuple[Parallelism, ...], runs_in_float64: bool
) -> Sequence[Comparison]:
    every = tuple(parallelism.for_proof() for parallelism in parallelisms)
    if not runs_in_float64:
        why = f"; proven in {dtype} alone: this trainer's step does not run in float64"
        return [Comparison(dtype, every, True, why)]
    exact = Comparison(EXACT, tuple(parallelism.exact() for parallelism in every), False)
    own = Comparison(dtype, every, True)
    if dtype != EXACT and has_experts and any(parallelism.routes for parallelism in every):
        why = (
            "; tokens go by their place, more to one expert: where a router decides, rounding could send one elsewhere"
        )
        by_place = tuple(parallelism.routed_by_place() for parallelism in every)
        own = replace(own, parallelisms=by_place, why=why, by_place=True)
    is_one = (exact.dtype, exact.parallelisms) == (own.dtype, own.parallelisms)
    return [own] if is_one else [exact, own]


def allowed_of(
    job: TrainingJob, parallelisms: Sequence[Parallelism], runs_in_float64: bool = True
) -> dict[str, Expected]:
    """Metric key -> the largest value that still counts as the same result, of every comparison of this job."""
    allowed = {
        comparison.key(metric): limit
        for comparison in comparisons_of(job, parallelisms, runs_in_float64)
        for metric, limit in comparison.allowed(job).items()
    }
    active = active_in(job.layout, parallelisms)
    if any(parallelism.approximates for parallelism in active):
        allowed |= allowed_approximation(active)
    return allowed


def allowed_approximation(active: Sequence[Parallelism]) -> dict[str, Expected]:
    """Of a compression that adds what it did not send to what it sends next, and begins where it ended."""
    unsent = Expected(0.01, "1", "at most; rounding alone; without error feedback it would be near 1")
    if any(parallelism.largest_share for parallelism in active):
        return {UNSENT: unsent, LARGEST: Expected(0.05, "1", "at most; rounding alone; of other elements it is near 1")}
    return {
        UNSENT: unsent,
        FACTORS: Expected(0.05, "1", "at most; rounding alone; with factors drawn anew it would be near 1"),
    }


def allowed_after_timing(job: TrainingJob, active: Sequence[Parallelism]) -> dict[str, Expected]:
    """Of the weights and gradients of the job itself, as the timed steps left them."""
    limits = {
        LAST_UPDATE: Expected(
            2.0, "1", "at most; as a multiple of rounding of weight, gradient and moments; without decay it is 250"
        ),
        COPIES: Expected(0.1, "1", "at most; they are stepped by the same gradients; without one step it is near 1"),
    }
    if any(parallelism.rounds_by_chance for parallelism in active):
        limits[BIAS] = Expected(
            8.0, "1", "at most; standard deviations of a sum of roundings by chance; to nearest it is 170"
        )
    if job.max_grad_norm is not None:
        # All mantissas are scaled by one factor, so what rounding makes of them does not cancel. On CUDA the factor is
        # rounded, too, by 2^-8 at the most: norms were off by 0.0025 and 0.0028 on an H200.
        of_factor_and_products = 3 * BFLOAT16_ROUNDING
        most, why = (of_factor_and_products, "; gradients are in bfloat16") if job.gradient_bytes == 2 else (1e-4, "")
        limits[CLIPPING] = Expected(most, "1", f"at most; rounding of a sum over all gradients{why}")
    return limits
