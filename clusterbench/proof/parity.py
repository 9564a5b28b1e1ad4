"""The proof before the timing: a layout computes what one rank computes.

The layout of a case is run on a small twin of its model (same heads, kv heads and tying, the case's own options) and
compared with one rank: loss, every gradient, what two steps changed of every weight. See docs/proof.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist

from clusterbench.engine.compat import shapes_on_meta
from clusterbench.engine.grid import Grid
from clusterbench.errors import WrongResult
from clusterbench.expected.tolerances import EXACT, Comparison, comparisons_of, rounding_of_summed_gradients
from clusterbench.expected.twin import twin_of
from clusterbench.formulas.rounding import BFLOAT16_ROUNDING
from clusterbench.job import TrainingJob
from clusterbench.model.experts import MixtureOfExperts
from clusterbench.parallel import Parallelism, active_in
from clusterbench.proof.approximation import check_approximation
from clusterbench.proof.by_chance import spacing_of_weights
from clusterbench.proof.copies import check_copies
from clusterbench.proof.coverage import check_coverage
from clusterbench.proof.one_rank import beyond_rounding, growth_of
from clusterbench.proof.order import check_order
from clusterbench.proof.sent import check_sent
from clusterbench.proof.two_steps import (
    ALL,
    FIRST,
    IN_WORDS,
    SECOND,
    Deviations,
    OneRank,
    TwoSteps,
    deviations,
    over_all_ranks,
    two_steps,
)
from clusterbench.trainers import Trainer
from clusterbench.training.built_step import BuiltStep
from clusterbench.training.step import TrainingStep

MOST_BEYOND = 1.6
"""By which the worst update may go beyond its tolerance for sums in bfloat16: 0.8, where without a step it is 1."""
WORST_LEAST = 0.45
"""Of what two steps changed of a weight no rank is trusted to less than this, where products are coarse."""


@shapes_on_meta()  # most of its seconds went into what DTensor had not seen yet
def check_parity(
    trainer: Trainer, job: TrainingJob, parallelisms: Sequence[Parallelism], grid: Grid, device: torch.device
) -> dict[str, float]:
    """Compares the step a trainer builds for ``job`` with our own on one rank.

    A collective: every rank calls it and gets the same answer.

    Returns
    -------
    The largest deviation of each kind, by the keys of :func:`~clusterbench.expected.tolerances.allowed_of`.

    Raises
    ------
    WrongResult
        On every rank, naming what deviates most, its deviation and the tolerance.
    """
    twin = twin_of(job, parallelisms)
    references = References(twin, device)
    evidence: dict[str, float] = {}
    complaints = list[str]()
    for comparison in comparisons_of(job, parallelisms, trainer.runs_in_float64):
        step = trainer.build(replace(twin, dtype=comparison.dtype), comparison.parallelisms, grid, device)
        check_coverage(step, trainer.copies(step.job, active_in(job.layout, comparison.parallelisms)), device)
        exact = references.of(comparison, EXACT)
        # Weights that are kept in 16 bits are changed by what is left of an update: on one rank no less.
        coarse = max((parallelism.product_rounding for parallelism in comparison.parallelisms), default=0.0)
        by_chance = any(parallelism.rounds_by_chance for parallelism in comparison.parallelisms)
        keeps_half = step.job.master_bytes == 2 and (by_chance or not coarse)
        updated = references.of(comparison, comparison.dtype) if keeps_half else exact
        spacing = spacing_of_weights(step.job.on_one_rank(), device) if by_chance else None
        seen = two_steps(step)
        check_copies(over_all_ranks({"": {"": float(seen.stale)}}, device)[""][""], step.job)
        gradients = {name: weight.gradient for name, weight in seen.weights.items()}
        check_sent(gradients, step.job, active_in(job.layout, comparison.parallelisms), device)
        check_order(step, device)
        found = over_all_ranks(deviations(seen, exact, updated, spacing), device)
        if comparison.dtype == "bfloat16":
            of_one_rank = deviations(references.of(comparison, comparison.dtype), exact)
            numels = _least_parts(step, exact, device)
            own = replace(twin, dtype=comparison.dtype)
            sums = rounding_of_summed_gradients(own, active_in(job.layout, comparison.parallelisms))
            growth = growth_of(twin.shape.num_layers)
            found = over_rounding(found, of_one_rank, exact, keeps_half, coarse, numels, sums, growth)
            grown = growth_by_sums(of_one_rank["parity_gradients"], sums)
            keeps_weights_half = step.job.master_bytes == 2
            found |= beyond_rounding(of_one_rank, twin.shape.num_layers, bool(coarse), keeps_weights_half, grown)
        evidence |= {comparison.key(metric): max(group.values()) for metric, group in found.items()}
        complaints += [
            f"{job.layout} does not compute what one rank computes: {how}" for how in _too_far(found, comparison, job)
        ]
    evidence |= references.evidence
    if not complaints and any(parallelism.approximates for parallelism in active_in(job.layout, parallelisms)):
        routed = [each.routed_by_place() if comparison.by_place else each for each in parallelisms]  # as `exact` is
        approximate = trainer.build(twin, routed, grid, device)
        assert isinstance(approximate, TrainingStep)
        evidence |= check_approximation(approximate, exact, active_in(job.layout, parallelisms), device)
    if complaints:
        where = f"{twin.shape.name}: {twin.shape.num_layers} layers, seq_len {twin.seq_len}, {twin.equation}"
        raise WrongResult(f"{complaints[0]}. Checked on {where}.", evidence)
    return evidence


def _too_far(found: Deviations, comparison: Comparison, job: TrainingJob) -> list[str]:
    """Of each metric beyond its tolerance, what deviates most; the second loss, which says least, comes last."""
    complaints, of_the_second_loss = list[str](), list[str]()
    for metric, limit in comparison.allowed(job).items():
        beyond = {name: off for name, off in found[metric].items() if not off <= limit.value}
        if beyond:
            name = FIRST if FIRST in beyond else max(beyond, key=lambda name: beyond[name])
            said = of_the_second_loss if name == SECOND else complaints
            said.append(
                f"{IN_WORDS[metric].format(name)} deviates by {beyond[name]:.3g} in {comparison.dtype}; allowed is "
                f"{limit.value:g}, {limit.basis}"
            )
    return complaints + of_the_second_loss


@dataclass
class References:
    """What a twin shows on one rank: each computed once, by one of the ranks, when it is first asked for."""

    twin: TrainingJob
    device: torch.device

    def __post_init__(self) -> None:
        self._known: dict[tuple[str, tuple[Parallelism, ...]], OneRank] = {}

    def of(self, comparison: Comparison, dtype: str) -> OneRank:
        """The twin of a comparison on one rank in this dtype. A collective."""
        model = tuple(parallelism for parallelism in comparison.parallelisms if parallelism.changes_model)
        if dtype == EXACT:
            model = tuple(parallelism.exact() for parallelism in model)
        if (dtype, model) not in self._known:
            job, owner = self.twin.on_one_rank(dtype), len(self._known) % dist.get_world_size()
            run = partial(_on_one_rank, job, model, self.device)
            self._known[dtype, model] = OneRank.shared(job, run, owner, self.device)
        return self._known[dtype, model]

    @property
    def evidence(self) -> dict[str, float]:
        """Between a token's last expert and the first it was not sent to: near 0, rounding could choose another."""
        margin = min(one_rank.routing_margin for one_rank in self._known.values())
        return {"routing_margin": margin} if math.isfinite(margin) else {}


def _on_one_rank(job: TrainingJob, model: Sequence[Parallelism], device: torch.device) -> TwoSteps:
    step = TrainingStep(job, model, None, device)
    mixtures = [module for module in step.model.modules() if isinstance(module, MixtureOfExperts)]
    for mixture in mixtures:
        mixture.record_margin = True
    seen = two_steps(step)
    if not any(parallelism.routes for parallelism in model):
        return seen
    margins = (float(mixture.smallest_margin or 0.0) for mixture in mixtures)
    return replace(seen, routing_margin=min(margins, default=math.inf))


def over_rounding(
    found: Deviations,
    of_one_rank: Deviations,
    exact: OneRank,
    keeps_half: bool = False,
    coarse: float = 0.0,
    numels: Mapping[str, int] | None = None,
    sums: Mapping[str, float] | None = None,
    growth: float = 1.0,
) -> Deviations:
    """Deviations as multiples of what bfloat16 makes of a step on one rank.

    What one rank deviates says how far rounding goes over many numbers. A loss is one number, and may be right by luck:
    it is never trusted to less than its own rounding. Of a gradient's scale rounding leaves what does not cancel, see
    :func:`_of_scale`. What two steps changed of one weight stays as it is: of a norm's few numbers one may have got
    another sign. With ``keeps_half`` that of all weights stays, too: it was compared with one rank that rounds as well.
    ``coarse`` is what products lose of their operands: where that is much, a loss is trusted to half of it, the
    scale of all gradients by it and that of one by half of it more, and what two steps changed of a weight by a
    multiple of what it is on one rank, too. ``numels`` has the elements of the smallest part that a rank has of each
    weight: of few elements a deviation is as far from its mean as chance will have it. ``sums`` has what sums in
    bfloat16 add to a gradient of one rank: as independent errors they add up in squares. Adam turns the sign of an
    update where the gradient is smaller than its error, so of those elements there are as many times more, and an
    update is off by the root of that. The second loss is of weights that were updated: what rounding makes of an update
    is across the gradient, so of what the loss fell it costs no more than its square. ``growth`` is by how much more
    many layers round: see :func:`~clusterbench.proof.one_rank.growth_of`.
    """
    by_sums = growth_by_sums(of_one_rank["parity_gradients"], sums or {})
    numels = numels or {name: weight.gradient.numel() for name, weight in exact.weights.items()}
    gradients = {name: off * by_sums[name] for name, off in of_one_rank["parity_gradients"].items()}
    scales = {name: _of_scale(name, off, numels[name]) + coarse / 2 for name, off in gradients.items()}
    of_all = sum(numels[name] * off for name, off in of_one_rank["parity_gradients"].items())
    losses, (first, second) = of_one_rank["parity_loss"], exact.losses.tolist()
    fallen, of_update = abs(first - second) / second, 0.3 if keeps_half else of_one_rank["parity_update"][ALL]
    more_updates = math.sqrt(sum(numels[name] * off for name, off in gradients.items()) / of_all) if of_all else 1.0
    rounding = {
        **of_one_rank,
        "parity_gradients": {name: off * _by_chance(numels[name]) for name, off in gradients.items()},
        "parity_update": {name: off * more_updates for name, off in of_one_rank["parity_update"].items()},
        "parity_loss": {
            FIRST: max(losses[FIRST], BFLOAT16_ROUNDING * growth, coarse / 2 * growth),
            SECOND: max(losses[SECOND], BFLOAT16_ROUNDING * growth, coarse / 2 * growth, of_update**2 * fallen),
        },
        "parity_gradient_scale": {ALL: max(4 * BFLOAT16_ROUNDING, coarse)} | scales,
        "parity_second_norm": {ALL: 1.0},
        "parity_worst_update": {
            name: min(MOST_BEYOND, math.sqrt(by_sums[name])) * _of_turned(numels[name])
            for name in of_one_rank["parity_worst_update"]
        },
    }
    if coarse and not keeps_half:
        rounding["parity_worst_update"] = {
            name: max(off, WORST_LEAST) * _spread(numels[name])
            for name, off in of_one_rank["parity_worst_update"].items()
        }
    if keeps_half:
        rounding["parity_update"] = {ALL: 1.0}
    return {
        metric: {name: off / max(rounding[metric][name], 1e-30) for name, off in group.items()}
        for metric, group in found.items()
    }


def growth_by_sums(of_one_rank: Mapping[str, float], sums: Mapping[str, float]) -> dict[str, float]:
    """How many times as far a gradient may be off with what sums in bfloat16 add, by name.

    >>> growth_by_sums({"head.weight": 0.003, "norm.weight": 0.01}, {"head.weight": 0.004})
    {'head.weight': 1.6666666666666667, 'norm.weight': 1.0}
    """
    return {
        name: math.hypot(off, sums[name]) / off if off and name in sums else 1.0 for name, off in of_one_rank.items()
    }


MANY = 128
"""Elements of a part that may deviate by half as much again as one rank does."""


TURNED = 1 / 128
"""Of elements: as many got another sign of both updates, in the worst weight of 11 shapes."""


def _of_turned(numel: int) -> float:
    """How much further a part of so few elements may be off than a whole norm, which has 64 or more.

    Elements of another sign are as many as chance has it: their mean, four standard deviations, and one. Each is off by
    twice an update. So of 8 elements one or two may be, which is as far as without a step: that is seen in float64, and
    behind the clock.

    >>> _of_turned(64), round(_of_turned(8), 2)
    (1.0, 1.95)
    """
    return max(1.0, _turned(numel) / _turned(64))


def _turned(numel: int) -> float:
    mean = numel * TURNED
    return 2 * math.sqrt((mean + 4 * math.sqrt(mean) + 1) / numel)


def _by_chance(numel: int) -> float:
    """How much further the gradient of a part of few elements may be off: four standard deviations.

    >>> _by_chance(32), _by_chance(8)
    (1.0, 1.25)
    """
    return max(1.0, (1 + 4 / math.sqrt(2 * numel)) / 1.6)


def _spread(numel: int) -> float:
    """How much more a part of so many elements may deviate than one of :data:`MANY`.

    Few elements get another sign, and their number varies as its root. Norms of 64 elements deviated by up to 1.3 times
    what one rank does, their parts of 32 and 16 by 1.6 and more (6 seeds of 5 layouts).

    >>> _spread(512), _spread(32)
    (1.0, 1.3333333333333333)
    """
    return max(1.0, (1 + 0.5 * math.sqrt(MANY / numel)) / 1.5)


def _least_parts(step: BuiltStep, exact: OneRank, device: torch.device) -> dict[str, int]:
    """Of each weight the elements of the smallest part on any rank. A collective."""
    parts = {name: part.value.numel() for name, part in step.parts().items()}
    own = {name: -float(parts.get(name) or weight.gradient.numel()) for name, weight in exact.weights.items()}
    return {name: int(-least) for name, least in over_all_ranks({"": own}, device)[""].items()}


def _of_scale(name: str, off: float, numel: int) -> float:
    """What rounding may leave of the scale of a gradient that it deviates by ``off``.

    One rounding in one direction, and of the others four times what independent ones would leave, or 0.5, for they are
    not independent; least of all those of a router, whose gradient is a difference of experts that are nearly equal.
    1.3 times what 200 seeded mixes of 12 models on 8 ranks left at most.
    """
    share = 1.0 if name.endswith("router.weight") else max(4 / numel**0.5, 0.5)
    return 2 * BFLOAT16_ROUNDING + share * off
