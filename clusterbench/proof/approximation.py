"""What has no like on one rank, because it only approximates, still trains: what it did not send it sends later."""

from __future__ import annotations

import torch

from clusterbench.errors import WrongResult
from clusterbench.expected.tolerances import UNSENT, allowed_unsent
from clusterbench.proof.two_steps import OneRank, over_all_ranks
from clusterbench.training.step import TrainingStep

PASSES = 8
"""Of the same weights. Compression begins with the third."""

STEPS = 6


def check_approximation(step: TrainingStep, exact: OneRank, device: torch.device) -> dict[str, float]:
    """Compares the sum of some gradients of the same weights with as many exact ones, and then trains.

    What a compressed gradient lacks is kept and added to the next (error feedback), so the sum lacks what is kept now,
    and nothing else. A collective.

    Source: Vogels et al. 2019, arXiv:1905.13727, algorithm 2.

    Raises
    ------
    WrongResult
        On every rank, if something is lost, or the loss does not fall.
    """
    sums = {weight.name: torch.zeros_like(weight.value, dtype=torch.float64) for weight in step.weights}
    for _ in range(PASSES):
        step.forward_backward()
        step.reduce()
        for weight in step.weights:
            sums[weight.name] += weight.gradient
    lacks, wanted = torch.zeros(2, dtype=torch.float64, device=device)
    for weight in step.weights:
        due = PASSES * exact.weights[weight.name].gradient[weight.place]
        lacks += (sums[weight.name] - due).square().sum()
        wanted += due.square().sum()
    assert step.assembly.unsent is not None
    kept = step.assembly.unsent().double().norm()
    lost = float((lacks.sqrt() - kept).abs() / wanted.sqrt())
    evidence = {UNSENT: over_all_ranks({UNSENT: {"": lost}}, device)[UNSENT][""]}
    limit = allowed_unsent()
    if not evidence[UNSENT] <= limit.value:
        raise WrongResult(
            f"{step.job.layout} loses what it does not send: {evidence[UNSENT]:.3g} of {PASSES} gradients was not sent "
            f"and is not kept; allowed is {limit.value:g}, {limit.basis}.",
            evidence,
        )
    losses = [float(step.global_loss(step())) for _ in range(STEPS)]
    if not losses[-1] < losses[0]:
        raise WrongResult(
            f"{step.job.layout} does not train: in {STEPS} steps on the same batch the loss went from {losses[0]:.4g} "
            f"to {losses[-1]:.4g}.",
            evidence,
        )
    return evidence
