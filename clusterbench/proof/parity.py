"""The proof before the timing: a layout computes what one rank computes.

The layout of a case is run on a small twin of its model (same heads, kv heads and tying, the case's own options) and
compared with one rank, which every rank computes for itself: loss, every gradient, parameters after two steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.engine.grid import Grid
from clusterbench.errors import WrongResult
from clusterbench.expected.tolerances import allowed_of, parity_dtype
from clusterbench.job import TrainingJob
from clusterbench.model.experts import MixtureOfExperts
from clusterbench.parallel import Parallelism, active_in
from clusterbench.trainers import Trainer
from clusterbench.training.built_step import BuiltStep, ObservedStep, WeightPart
from clusterbench.training.step import TrainingStep

TWIN_TOKENS = 16
BFLOAT16_ROUNDING = 2.0**-9


def twin_of(job: TrainingJob, parallelisms: Sequence[Parallelism]) -> TrainingJob:
    """The small job a layout is checked on.

    Two micro-batches at least, so that one left out shows; a sequence of which every rank has a part; layers for every
    stage.
    """
    least = [parallelism.twin(job) for parallelism in active_in(job.layout, parallelisms)]
    layers, micro_batches = (max([2, *numbers]) for numbers in list(zip(*least, strict=True))[:2] or ((), ()))
    unit = lcm(*(multiple for _, _, multiple in least))
    return replace(
        job,
        shape=job.shape.twin(layers),
        seq_len=-(-TWIN_TOKENS // unit) * unit,
        micro_batch_size=1,
        global_batch_size=micro_batches * job.layout.dp,
    )


def check_parity(
    trainer: Trainer, job: TrainingJob, parallelisms: Sequence[Parallelism], grid: Grid, device: torch.device
) -> dict[str, float]:
    """Compares the step a trainer builds for ``job`` with our own on one rank.

    A collective: every rank calls it and gets the same answer.

    Returns
    -------
    The largest deviation of each kind: ``parity_loss``, ``parity_gradients``, ``parity_parameters``. In bfloat16 they
    are multiples of what one rank in bfloat16 deviates, see :func:`~clusterbench.expected.tolerances.tolerances`.

    Raises
    ------
    WrongResult
        On every rank, naming the worst parameter, its deviation and the tolerance.
    """
    parallelisms = [parallelism.for_proof() for parallelism in parallelisms]
    twin = replace(twin_of(job, parallelisms), dtype=parity_dtype(job, parallelisms, trainer.runs_in_float64))
    model = [parallelism for parallelism in parallelisms if parallelism.changes_model]
    one_rank = TrainingStep(twin.on_one_rank(), model, None, device)
    margins = [mixture for mixture in one_rank.model.modules() if isinstance(mixture, MixtureOfExperts)]
    for mixture in margins:
        mixture.record_margin = True
    alone = two_steps(one_rank)
    seen = two_steps(trainer.build(twin, parallelisms, grid, device))
    if twin.dtype != "bfloat16":
        found = worst(_over_all_ranks(deviations(seen, alone), device))
    else:
        exact = two_steps(TrainingStep(twin.on_one_rank("float32"), model, None, device))
        rounding = worst(deviations(alone, exact))
        found = {}
        for metric, (name, deviation) in worst(_over_all_ranks(deviations(seen, exact), device)).items():
            # A loss is one number, and may be right by luck: it is never trusted to less than its own rounding.
            least = BFLOAT16_ROUNDING if metric == "parity_loss" else 0.0
            found[metric] = name, deviation / max(rounding[metric][1], least)
    evidence = {metric: deviation for metric, (_, deviation) in found.items()}
    if margins:
        # between a token's last expert and the first it was not sent to: near 0, rounding could choose another
        evidence["routing_margin"] = min(float(mixture.smallest_margin or 0.0) for mixture in margins)
    for metric, (name, deviation) in found.items():
        allowed = allowed_of(job, parallelisms, trainer.runs_in_float64)[metric]
        if not deviation <= allowed.value:
            raise WrongResult(
                f"{job.layout} does not compute what one rank computes: {name} deviates by {deviation:.3g} in "
                f"{twin.dtype}; allowed is {allowed.value:g}, {allowed.basis}. "
                f"Checked on {twin.shape.name}: {twin.shape.num_layers} layers, seq_len {twin.seq_len}, "
                f"{twin.equation}.",
                evidence,
            )
    return evidence


@dataclass(frozen=True)
class TwoSteps:
    """What two steps showed on this rank: the first as it was observed, and its part of every weight after both."""

    first: ObservedStep
    parts: Mapping[str, WeightPart]

    @property
    def norm(self) -> Tensor:
        """Of the gradients of the whole model; zero where none is computed."""
        return torch.zeros_like(self.first.loss) if self.first.norm is None else self.first.norm


def two_steps(step: BuiltStep) -> TwoSteps:
    """Runs two steps."""
    first = step.observed()
    step()
    return TwoSteps(first, step.parts())


Deviations = dict[str, dict[str, float]]
"""Metric -> what was compared -> how far it is off: relative to the largest value, or absolute for parameters."""


def deviations(seen: TwoSteps, reference: TwoSteps) -> Deviations:
    """How far this rank's parts are from the same places of the reference."""
    gradients = {"the norm of all gradients": _relative(seen.norm, reference.norm, reference.norm)}
    parameters = {}
    for name, whole in reference.first.gradients.items():  # in one order on all ranks, whatever they hold of it
        distance, change = 0.0, 0.0
        if name in seen.parts:
            part = seen.parts[name]
            distance = _relative(seen.first.gradients[name], whole[part.place], whole)
            change = _distance(part.value, reference.parts[name].value[part.place])
        gradients[f"the gradient of {name}"] = distance
        parameters[f"{name} after two steps"] = change
    return {
        "parity_loss": {"the loss": _relative(seen.first.loss, reference.first.loss, reference.first.loss)},
        "parity_gradients": gradients,
        "parity_parameters": parameters,
    }


def _distance(got: Tensor, expected: Tensor) -> float:
    if got.shape != expected.shape:
        return math.inf
    distance = float((got.double() - expected.double()).abs().max()) if got.numel() else 0.0
    return math.inf if math.isnan(distance) else distance


def _relative(got: Tensor, expected: Tensor, scale: Tensor) -> float:
    distance, largest = _distance(got, expected), float(scale.abs().max())
    return distance / largest if largest else (math.inf if distance else 0.0)


def _over_all_ranks(found: Deviations, device: torch.device) -> Deviations:
    """The largest of each deviation over all ranks, so that all of them come to the same verdict."""
    values = torch.tensor([value for group in found.values() for value in group.values()], device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    largest = iter(values.tolist())
    return {metric: {name: next(largest) for name in group} for metric, group in found.items()}


def worst(found: Deviations) -> dict[str, tuple[str, float]]:
    """Metric -> what deviates most, and by how much."""
    return {metric: max(group.items(), key=lambda item: item[1]) for metric, group in found.items()}
