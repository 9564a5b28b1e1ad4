"""In which dtype gradients were added up and sent, by their own bits.

One more rounding is below what bfloat16 leaves of a step, and another format may be as fast and no less right: it is
not what was asked for all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from clusterbench.errors import WrongResult
from clusterbench.job import TrainingJob, is_spread_expert, weight_shapes
from clusterbench.model.assembly import COMPUTE_DTYPES
from clusterbench.parallel import Parallelism, summed_over
from clusterbench.proof.two_steps import over_all_ranks

MOST_BY_LUCK = 0.9
"""Of the elements of a matrix's gradient, those that bfloat16 has although they were added up in more bits.

Of sums of three micro-batches in bfloat16 it was 0.15 to 0.37, of 14 layouts and shapes; rounded it is all.
"""
ENOUGH = 256
"""Elements that are not 0, of which a share says something."""


def check_sent(
    gradients: Mapping[str, Tensor], job: TrainingJob, active: Sequence[Parallelism], device: torch.device
) -> None:
    """Looks at each gradient that was summed by a compression and by nothing behind it, or else at all of matrices.

    Those in layers: a row of an embedding may have a single token, whose gradient is one of bfloat16. A collective:
    every rank comes to the same verdict.

    Parameters
    ----------
    gradients
        This rank's parts by the name of their weights, before clipping.

    Raises
    ------
    WrongResult
        If an element of one is no number of the dtype in which it was sent, or nearly all of them were
        rounded to bfloat16 though nothing asks for it.
    """
    sent_as = next(filter(None, (parallelism.sent_as for parallelism in active)), "")
    if not sent_as:
        if job.gradient_bytes == job.master_bytes > 2:
            _check_wide(gradients, job, device)
        return
    others = 0
    for name, gradient in gradients.items():
        if not summed_over(active, name, job) and not is_spread_expert(name, job):
            others += int((gradient != gradient.to(COMPUTE_DTYPES[sent_as]).to(gradient.dtype)).sum())
    most = over_all_ranks({"": {"": float(others)}}, device)[""][""]
    if most:
        raise WrongResult(
            f"{job.layout} does not send gradients in {sent_as}: {int(most)} numbers of those that came back, on a "
            f"rank, are none of {sent_as}."
        )


def _check_wide(gradients: Mapping[str, Tensor], job: TrainingJob, device: torch.device) -> None:
    sizes = weight_shapes(job.on_one_rank())
    shares = dict.fromkeys(sizes, 0.0)
    for name, gradient in gradients.items():
        if name.startswith("layers.") and len(sizes[name]) > 1:  # a part may be flattened
            numbers = gradient[gradient != 0]
            if numbers.numel() >= ENOUGH:
                shares[name] = float((numbers == numbers.bfloat16().to(numbers.dtype)).double().mean())
    shares = over_all_ranks({"": shares}, device)[""]
    name = max(shares, key=lambda name: shares[name])
    if shares[name] > MOST_BY_LUCK:
        raise WrongResult(
            f"{job.layout} rounds gradients to bfloat16, which nothing asks for: {shares[name]:.0%} of the gradient of "
            f"{name} are numbers of bfloat16; what is added up in more bits has less than half."
        )
