"""The proof before the timing: a layout computes what one rank computes.

The layout of a case is run on a small twin of its model (same heads, kv heads and tying, the case's own options) and
compared with one rank, which every rank computes for itself: loss, every gradient, parameters after two steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from clusterbench.errors import WrongResult
from clusterbench.parallel import Parallelism
from clusterbench.training.job import TrainingJob
from clusterbench.training.step import TrainingStep
from clusterbench.training.tolerances import Tolerance, tolerances

TWIN_LAYERS = 2
TWIN_TOKENS = 16
BFLOAT16_ROUNDING = 2**-9


@dataclass(frozen=True)
class Seen:
    """What two steps showed: loss and gradients of the first, parameters after the second, by name."""

    loss: Tensor
    gradients: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]


@dataclass(frozen=True)
class Deviations:
    """How far a step is from the reference: loss and gradients relative to their largest value, parameters absolute."""

    loss: float
    gradients: Mapping[str, float]
    parameters: Mapping[str, float]

    @property
    def worst(self) -> dict[str, tuple[str, float]]:
        """Metric -> the name of what deviates most, and by how much."""
        return {
            "parity_loss": ("loss", self.loss),
            "parity_gradients": max(self.gradients.items(), key=lambda item: item[1]),
            "parity_parameters": max(self.parameters.items(), key=lambda item: item[1]),
        }


def twin_of(job: TrainingJob) -> TrainingJob:
    """The small job a layout is checked on.

    Two micro-batches whatever the case has, so that one left out shows; a sequence that every tp rank has a part of.
    """
    tp = job.layout.tp
    return replace(
        job,
        shape=job.shape.twin(TWIN_LAYERS),
        seq_len=-(-TWIN_TOKENS // tp) * tp,
        micro_batch_size=1,
        global_batch_size=2 * job.layout.dp,
    )


def check_parity(
    job: TrainingJob, parallelisms: Sequence[Parallelism], mesh: DeviceMesh, device: torch.device
) -> dict[str, float]:
    """Compares the layout of ``job`` with one rank. A collective: every rank calls it and gets the same answer.

    Returns
    -------
    ``parity_loss``, ``parity_gradients``, ``parity_parameters``: the largest deviation of each. In bfloat16 they are
    multiples of what one rank in bfloat16 deviates, see :mod:`clusterbench.training.tolerances`.

    Raises
    ------
    WrongResult
        On every rank, with the worst parameter, its deviation and the tolerance.
    """
    twin = twin_of(job)
    seen = two_steps(TrainingStep(twin, parallelisms, mesh, device))
    places = {weight.name: weight.place for weight in TrainingStep(twin, parallelisms, mesh, device).weights}
    exact = two_steps(TrainingStep(twin.on_one_rank(_reference_dtype(job)), (), None, device))
    found = deviations(seen, exact, places, mesh).worst
    if job.dtype == "bfloat16":
        alone = two_steps(TrainingStep(twin.on_one_rank(), (), None, device))
        rounding = deviations(alone, exact, {}, None).worst
        found = {
            metric: (name, deviation / max(rounding[metric][1], BFLOAT16_ROUNDING if metric == "parity_loss" else 0.0))
            for metric, (name, deviation) in found.items()
        }
    return _judge(found, job)
