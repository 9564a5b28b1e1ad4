"""Gradients that were to be sent in fewer bits have no more when they are there: another format is as fast and no less
right, but not what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from clusterbench.errors import WrongResult
from clusterbench.job import TrainingJob, is_spread_expert
from clusterbench.model.assembly import COMPUTE_DTYPES
from clusterbench.parallel import Parallelism, summed_over
from clusterbench.proof.two_steps import over_all_ranks


def check_sent(
    gradients: Mapping[str, Tensor], job: TrainingJob, active: Sequence[Parallelism], device: torch.device
) -> None:
    """Looks at each gradient that was summed by a compression and by nothing behind it.

    A collective: every rank comes to the same verdict.

    Parameters
    ----------
    gradients
        This rank's parts by the name of their weights, before clipping.

    Raises
    ------
    WrongResult
        If an element of one is no number of the dtype in which it was sent.
    """
    sent_as = next(filter(None, (parallelism.sent_as for parallelism in active)), "")
    if not sent_as:
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
