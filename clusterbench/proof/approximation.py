"""What has no like on one rank, because it only approximates, still trains: what it did not send it sends later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from clusterbench.errors import WrongResult
from clusterbench.expected.tolerances import FACTORS, UNSENT, allowed_approximation
from clusterbench.model.assembly import Weight
from clusterbench.proof.two_steps import OneRank, over_all_ranks
from clusterbench.training.step import TrainingStep

PASSES, _WHOLE = 8, 2
"""Of the same weights: all, and those before compression begins."""

STEPS = 6

_IN_WORDS = {
    UNSENT: f"loses what it does not send: {{:.3g}} of {PASSES} gradients was not sent and is not kept",
    FACTORS: "begins each compression anew: what it sends is {:.3g} of it away from one power iteration on from "
    "the one before",
}


def check_approximation(step: TrainingStep, exact: OneRank, device: torch.device) -> dict[str, float]:
    """Compares the sum of some gradients of the same weights with as many exact ones, and then trains.

    What a compressed gradient lacks is kept and added to the next (error feedback), so the sum lacks what is kept now,
    and nothing else. The factors of one are where the next begins (warm start). Of a gradient that is summed over
    another axis behind that, each rank's part is compressed alone: it is held against the first, which was sent whole.
    A collective.

    Source: Vogels et al. 2019, arXiv:1905.13727, algorithms 1 and 2.

    Raises
    ------
    WrongResult
        On every rank, if nothing is compressed in time, something is lost, a compression begins anew, or the loss does
        not fall.
    """
    sent: dict[str, list[Tensor]] = defaultdict(list)
    for _ in range(PASSES):
        step.forward_backward()
        parts = _gradients(weight for weight in step.weights if weight.sum_over)
        step.reduce()
        for name, gradient in {**_gradients(step.weights), **parts}.items():
            sent[name].append(gradient)
    lacks, wanted = torch.zeros(2, dtype=torch.float64, device=device)
    for weight in step.weights:
        whole = sent[weight.name][0] if weight.sum_over else exact.weights[weight.name].gradient[weight.place]
        due = PASSES * whole
        lacks += (torch.stack(sent[weight.name]).sum(0) - due).square().sum()
        wanted += due.square().sum()
    assert step.assembly.unsent is not None
    unsent = step.assembly.unsent().double()
    if begins_late(sent.values(), has_begun=unsent.numel() > 0):
        raise WrongResult(
            f"{step.job.layout} sends whole gradients beyond its first {_WHOLE}: what is timed is not compressed."
        )
    kept = unsent.norm()
    lost = float((lacks.sqrt() - kept).abs() / wanted.sqrt())
    off = max((off_next_iteration(of_weight) for of_weight in sent.values()), default=0.0)
    evidence = over_all_ranks({"": {UNSENT: lost, FACTORS: off}}, device)[""]
    for metric, limit in allowed_approximation().items():
        if not evidence[metric] <= limit.value:
            what = _IN_WORDS[metric].format(evidence[metric])
            raise WrongResult(f"{step.job.layout} {what}; allowed is {limit.value:g}, {limit.basis}.", evidence)
    losses = [float(step.global_loss(step())) for _ in range(STEPS)]
    if not losses[-1] < losses[0]:
        raise WrongResult(
            f"{step.job.layout} does not train: in {STEPS} steps on the same batch the loss went from {losses[0]:.4g} "
            f"to {losses[-1]:.4g}.",
            evidence,
        )
    return evidence


def _gradients(weights: Iterable[Weight]) -> dict[str, Tensor]:
    """As they are now, by the names of the weights."""
    return {weight.name: weight.gradient.to(torch.float64, copy=True) for weight in weights}


def begins_late(sent: Iterable[Sequence[Tensor]], has_begun: bool) -> bool:
    """Whether gradients, each of the same weights again and again, were sent whole when they were to be compressed.

    Of small weights none is worth compressing, and all are sent whole for good: then ``has_begun`` says whether
    something looked at them.
    """
    changed = [
        [
            bool((each - of_weight[0]).norm() > _REPEATED * of_weight[0].norm())
            for each in (of_weight[_WHOLE], of_weight[-1])
        ]
        for of_weight in sent
    ]
    at_once, at_last = (any(changes) for changes in zip(*changed, strict=True))
    return not at_once and (at_last or not has_begun)


_REPEATED = 1e-3
"""Of a gradient: what it may differ by where the same is computed twice. A compressed one lacks more."""

_NONE = 1e-6
"""Of a matrix: less is rounding."""


def off_next_iteration(sent: Sequence[Tensor]) -> float:
    """How far the last of some compressed gradients is from one power iteration on from the one before it.

    Parameters
    ----------
    sent
        What was made of the same gradient again and again; the first is the gradient itself.

    Returns
    -------
    A fraction of the last; 0 for one that is not compressed.
    """
    gradient, before, last = (tensor.reshape(tensor.shape[0], -1) for tensor in (sent[0], sent[-2], sent[-1]))
    if gradient.shape[1] == 1 or (last - gradient).norm() <= _NONE * gradient.norm():
        return 0.0
    # With what earlier ones lacked, which all was added to it.
    matrix = len(sent) * gradient - torch.stack(list(sent[:-1])).sum(0).reshape_as(gradient)
    _, sizes, rows = torch.linalg.svd(before, full_matrices=False)
    basis, _ = torch.linalg.qr(matrix @ rows[sizes > _NONE * sizes[0]].T)
    return float((last - basis @ (basis.T @ matrix)).norm() / last.norm())
