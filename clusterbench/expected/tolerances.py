"""How far a parallel step may be from one rank, each figure with its reason; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterbench.job import LEARNING_RATE, TrainingJob
from clusterbench.parallel import Parallelism, active_in
from clusterbench.types import Expected

PARITY_METRICS = ("parity_loss", "parity_gradients", "parity_parameters")

_SUMS = "the sums are the same in another order"
_RELATIVE = {
    "float64": (1e-9, f"{_SUMS}: about 1e-15 in float64, and what the optimizer makes of it"),
    "float32": (1e-5, f"{_SUMS}: about 1e-6 in float32"),
}


def parity_dtype(job: TrainingJob, parallelisms: Sequence[Parallelism], runs_in_float64: bool = True) -> str:
    """In what a layout is compared with one rank: the job's own dtype, but float64 where a router decides.

    Sums in another order can send a token whose experts are nearly equal to another one, which is no mistake. A trainer
    that does not run in float64 is compared in the job's own dtype all the same.
    """
    return "float64" if runs_in_float64 and _routes(job, parallelisms) else job.dtype


def _routes(job: TrainingJob, parallelisms: Sequence[Parallelism]) -> bool:
    return job.shape.has_experts and any(parallelism.routes for parallelism in parallelisms)


def allowed_of(
    job: TrainingJob, parallelisms: Sequence[Parallelism], runs_in_float64: bool = True
) -> dict[str, Expected]:
    """Metric -> the largest value that still counts as the same result, for this job and what shares it."""
    dtype, active = parity_dtype(job, parallelisms, runs_in_float64), active_in(job.layout, parallelisms)
    allowed = tolerances(dtype)
    if not runs_in_float64:
        why = f"; proven in {dtype}: this trainer's step does not run in float64"
        allowed = {metric: replace(limit, basis=f"{limit.basis}{why}") for metric, limit in allowed.items()}
    rounding = max((parallelism.rounding() for parallelism in active), default=0.0)
    if rounding and dtype != "bfloat16":
        basis = f"at most; gradients are rounded before they are sent: {rounding:g}"
        allowed["parity_gradients"] = Expected(rounding, "1", basis)
        two_steps = f"at most; 2 x learning rate {LEARNING_RATE:g}: {basis.partition('; ')[2]}"
        allowed["parity_parameters"] = Expected(2 * LEARNING_RATE, "1", two_steps)
    return allowed


def tolerances(dtype: str) -> dict[str, Expected]:
    """Metric -> the largest value that still counts as the same result.

    Loss and gradients are relative to their largest element, parameters after two AdamW steps absolute. In bfloat16 all
    three are multiples of what a step on one rank in bfloat16 deviates from float32: no figure fits every width, and
    the rounding of one rank is there to be measured.

    >>> tolerances("float64")["parity_gradients"].value
    1e-09
    """
    if dtype == "bfloat16":
        reason = (
            "at most; deviation from one rank in float32, as a multiple of what one rank in bfloat16 deviates: "
            "parallel sums round elsewhere, not coarser"
        )
        return {metric: Expected(2.0, "1", reason) for metric in PARITY_METRICS}
    value, reason = _RELATIVE[dtype]
    same = Expected(value, "1", f"at most; {reason}")
    if dtype == "float64":
        return dict.fromkeys(PARITY_METRICS, same)
    amplified = Expected(
        2 * LEARNING_RATE,
        "1",
        f"at most; 2 x learning rate {LEARNING_RATE:g}: Adam divides by the gradient's size, so where it is near 0 its "
        "rounding decides the sign of an update",
    )
    return {"parity_loss": same, "parity_gradients": same, "parity_parameters": amplified}
