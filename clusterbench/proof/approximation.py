"""What has no like on one rank, because it only approximates, still trains: what it did not send it sends later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from math import ceil

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.errors import WrongResult
from clusterbench.expected.tolerances import FACTORS, LARGEST, UNSENT, allowed_approximation
from clusterbench.job import is_spread_expert
from clusterbench.model.assembly import Weight
from clusterbench.parallel import Parallelism
from clusterbench.proof.two_steps import OneRank, over_all_ranks
from clusterbench.training.step import TrainingStep

PASSES, _WHOLE = 8, 2
"""Of the same weights: all, and those before compression begins."""

STEPS = 6

_IN_WORDS = {
    UNSENT: f"loses what it does not send: {{:.3g}} of {PASSES} gradients was not sent and is not kept",
    FACTORS: "begins each compression anew: what it sends is {:.3g} of it away from one power iteration on from "
    "the one before",
    LARGEST: "does not send the largest elements: what it sends of a weight is {:.3g} of it away from them",
}


def check_approximation(
    step: TrainingStep, exact: OneRank, active: Sequence[Parallelism], device: torch.device
) -> dict[str, float]:
    """Compares the sum of some gradients of the same weights with as many exact ones, and then trains.

    What a compressed gradient lacks is kept and added to the next (error feedback), so the sum lacks what is kept now,
    and nothing else. The factors of one are where the next begins (warm start); of the largest elements those are sent
    that each rank has, of what it computed alone and what it kept. Of a gradient that is summed over
    another axis behind that, each rank's part is compressed alone: it is held against the first, which was sent whole.
    A collective.

    Source: Vogels et al. 2019, arXiv:1905.13727, algorithms 1 and 2; Stich et al. 2018, arXiv:1809.07599, algorithm 1.

    Raises
    ------
    WrongResult
        On every rank, if nothing is compressed in time, something is lost, a compression begins anew, or the loss does
        not fall.
    """
    share = max(parallelism.largest_share for parallelism in active)
    own = _own_gradients(step) if share else {}
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
    if share:
        further = {LARGEST: off_largest(own, sent, share, step.assembly.grid.group(step.job.layout.data_axis))}
    else:
        further = {FACTORS: max((off_next_iteration(of_weight) for of_weight in sent.values()), default=0.0)}
    evidence = over_all_ranks({"": {UNSENT: lost, **further}}, device)[""]
    for metric, limit in allowed_approximation(active).items():
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


def _own_gradients(step: TrainingStep) -> dict[str, Tensor]:
    """Of the ranks' common weights, as this rank alone computes them."""
    with ExitStack() as stack:
        for context in step.assembly.accumulating:
            stack.enter_context(context())
        step.forward_backward()
    common = [weight for weight in step.weights if not is_spread_expert(weight.name, step.job)]
    return {weight.name: weight.gradient.clone() for weight in common}


def off_largest(
    own: Mapping[str, Tensor], sent: Mapping[str, Sequence[Tensor]], share: float, group: dist.ProcessGroup
) -> float:
    """How far what was sent is from the largest elements of each rank's gradients, summed up plainly. A collective.

    Parameters
    ----------
    own
        What this rank computes in every pass.
    sent
        What came back of each pass, the first of which send whole gradients.
    share
        Of the elements of each.

    Returns
    -------
    Of the weight that is furthest off, a fraction of what is due.
    """
    worst = 0.0
    for name, gradient in own.items():
        kept, due = torch.zeros_like(gradient), list[Tensor]()
        for _ in sent[name][_WHOLE:]:
            lacking = (gradient + kept).flatten()
            # by the same operator: of elements that are equally large, as in bfloat16, it decides which goes
            _, places = lacking.abs().topk(max(1, ceil(share * lacking.numel())), sorted=False)
            is_sent = torch.zeros_like(lacking, dtype=torch.bool).index_fill(0, places, True)
            kept = lacking.where(~is_sent, 0.0).view_as(gradient)
            due.append(lacking.where(is_sent, 0.0).view_as(gradient))
        wanted = torch.stack(due).double()
        dist.all_reduce(wanted, group=group)
        wanted /= group.size()
        off = torch.stack(list(sent[name][_WHOLE:])) - wanted
        if wanted.norm():
            worst = max(worst, float(off.norm() / wanted.norm()))
    return worst


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
