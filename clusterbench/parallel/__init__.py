"""Ways of sharing a training step among ranks: one file each, found by its name.

Adding one is adding a file here and its test. A parallelism is a frozen dataclass whose :func:`option` fields are YAML
keys of ``train_step``. It owns a mesh axis (dp, tp, cp, pp) or rides one, and says two things: how it changes what one
rank holds and sends (the describing half, pure, read with torch blocked), and how it changes the model (``apply``, the
only place that may import torch). Both halves are compared with each other in every run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.discover import things
from clusterbench.formulas.collectives import traffic_bytes
from clusterbench.layout import ParallelLayout
from clusterbench.options import options_of
from clusterbench.training.job import TrainingJob, activations, weight_shapes

if TYPE_CHECKING:
    from clusterbench.training.assembly import Assembly


MATERIALIZE = "materialize"
PHASES = (
    "tensor",  # first: it replaces plain weights, and everything else must see the parts
    "sequence",  # rides tensor's regions: it arranges what lies between them
    "expert",  # like tensor, a cut of single weights
    "context",  # changes what attention does with the local heads that tensor left it
    "recompute",  # around whole layers, so that what was put inside a layer is computed again with it
    "pipeline",  # takes layers away: their insides are complete, and nothing yet holds on to their parameters
    "shard",  # ZeRO 2 and 3: shards what the others left, whatever it is
    MATERIALIZE,  # only now memory is touched, and only for the parts that stayed on this rank
    "replicate",  # DDP, ZeRO 1: buckets and optimizer hold real parameters, so they come last
)
"""The order in which things happen to a model, each with the reason for its place."""


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind along one axis during one step, as one rank takes part in them.

    ``size_bytes`` is the sum over the calls of the larger of input and output.
    """

    axis: str
    op: str
    count: int
    size_bytes: int

    def bytes_on_link(self, degree: int) -> float:
        """``size_bytes`` times the bus factor."""
        return traffic_bytes(self.op, self.size_bytes, degree)


@dataclass(frozen=True, kw_only=True)
class Parallelism(ABC):
    """One way of sharing a step.

    Attributes
    ----------
    phase
        When it is applied: a name of :data:`PHASES`.
    """

    phase: ClassVar[str]

    @abstractmethod
    def active(self, layout: ParallelLayout) -> bool:
        """Whether it does anything in this layout, with these options."""

    def concerned(self, layout: ParallelLayout) -> bool:
        """Whether its options can change anything in this layout."""
        return self.active(layout)

    def objection(self, job: TrainingJob) -> str | None:
        """Why this job cannot be shared this way, with the numbers; None when it can. Asked only when active."""
        return None

    def weight(self, name: str, size: tuple[int, ...], job: TrainingJob) -> tuple[int, ...]:
        """What is left on one rank of a weight that has ``size`` before."""
        return size

    def partial(self, name: str, job: TrainingJob) -> bool:
        """Whether a weight whole on every tp rank gets only a part of its gradient there, to be summed over tp."""
        return False

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        """What is left on one rank of the entries of :func:`clusterbench.training.job.activations`."""
        return held

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        """What it sends in one step, exactly. Asked only when active."""
        return ()

    @abstractmethod
    def apply(self, assembly: Assembly) -> None:
        """Changes the model, or what surrounds it. Communicates nothing."""


def parallelisms() -> dict[str, type[Parallelism]]:
    """All parallelisms by name."""
    return things("clusterbench.parallel", Parallelism)


def from_options(values: Mapping[str, Any]) -> tuple[Parallelism, ...]:
    """Every parallelism, each with its own among ``values``."""
    return tuple(
        kind(**{name: values[name] for name in options_of(kind) if name in values}) for kind in parallelisms().values()
    )


def active_in(layout: ParallelLayout, every: Iterable[Parallelism]) -> list[Parallelism]:
    """Those that do something in ``layout``, in the order in which they are applied."""
    return sorted((one for one in every if one.active(layout)), key=lambda one: PHASES.index(one.phase))


def local_weights(active: Sequence[Parallelism], job: TrainingJob) -> dict[str, tuple[int, ...]]:
    """The part of every weight that one rank holds, in the model's order."""
    weights = weight_shapes(job.shape)
    for parallelism in active:
        weights = {name: parallelism.weight(name, size, job) for name, size in weights.items()}
    return weights


def partial_weights(active: Sequence[Parallelism], job: TrainingJob) -> set[str]:
    """Weights whose gradients are parts, see :meth:`Parallelism.partial`."""
    return {name for name in weight_shapes(job.shape) if any(one.partial(name, job) for one in active)}


def expected_traffic(active: Sequence[Parallelism], job: TrainingJob) -> list[Traffic]:
    """All collectives of one step, one entry per axis and op."""
    sums: dict[tuple[str, str], Traffic] = {}
    for sent in _all_traffic(active, job):
        before = sums.get((sent.axis, sent.op), Traffic(sent.axis, sent.op, 0, 0))
        sums[sent.axis, sent.op] = Traffic(
            sent.axis, sent.op, before.count + sent.count, before.size_bytes + sent.size_bytes
        )
    return [sent for sent in sums.values() if sent.count]


def _all_traffic(active: Sequence[Parallelism], job: TrainingJob) -> Iterator[Traffic]:
    for parallelism in active:
        yield from parallelism.traffic(job)
    # What training/step.py does itself, after the last backward: the gradients that are parts travel in one flat
    # buffer,
    weights = local_weights(active, job)
    parts = sum(prod(weights[name]) for name in partial_weights(active, job))
    yield Traffic("tp", "all_reduce", int(parts > 0), parts * job.master_bytes)
    # and of the weights that are split each rank adds up its own squares: one number for the norm.
    if job.max_grad_norm is not None and job.layout.uses("tp"):
        yield Traffic("tp", "all_reduce", 1, job.master_bytes)


def expected_memory(active: Sequence[Parallelism], job: TrainingJob) -> dict[str, float]:
    """Bytes on one rank by category: parameters, gradients and optimizer state exactly, activations by what is held.

    ``activations`` is what lives when the loss of a micro-batch has been computed, with the batch itself; or, under
    full recomputation of a model whose layers outweigh its logits, when the last layer has been computed again.
    """
    weights = local_weights(active, job)
    parameters = sum(map(prod, weights.values())) * job.master_bytes
    held = activations(job)
    for parallelism in active:
        held = parallelism.activations(held, job)
    batch = 2 * job.gradient_accumulation_steps * job.tokens_per_micro_batch * 8  # tokens and labels, int64
    rope = 2 * job.seq_len * job.shape.head_dim * job.compute_bytes
    return {
        "parameters": parameters,
        "gradients": parameters,
        # Adam's two moments, and a float32 step count for each tensor
        "optimizer_state": 2 * parameters + 4 * len(weights),
        "activations": sum(held.values()) + batch + rope,
    }
