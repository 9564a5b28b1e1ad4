"""Ways of sharing a training step among ranks: one file each, found by its name.

Adding one is adding a file here and its test. A parallelism is a frozen dataclass whose :func:`option` fields are YAML
keys of ``train_step``. It owns a mesh axis (dp, tp, cp, pp) or rides one, and says two things: how it changes what one
rank holds and sends (the describing half, pure, read with torch blocked), and how it changes the model (``apply``, the
only place that may import torch). Both halves are compared with each other in every run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from math import inf, prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from clusterbench.discover import things
from clusterbench.formulas.collectives import RECV, traffic_bytes
from clusterbench.job import (
    Chunk,
    Dtypes,
    TrainingJob,
    activations,
    has_copy,
    how_many,
    kept_bytes,
    one_of_each,
    weight_shapes,
)
from clusterbench.job.layer_end import at_last_norm, before_loss
from clusterbench.layout import SHARD, ParallelLayout
from clusterbench.options import options_of
from clusterbench.parallel._words import Meaning, PhaseWords, Remark
from clusterbench.shape import ModelShape
from clusterbench.words import Word

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly


LOCALIZE, MATERIALIZE = "localize", "materialize"
PHASES = (
    "tensor",  # first: it replaces plain weights, and everything else must see the parts
    "sequence",  # rides tensor's regions: it arranges what lies between them
    "expert",  # like tensor, a cut of single weights
    "context",  # changes what attention does with the local heads that tensor left it
    "recompute",  # around whole layers, so that what was put inside a layer is computed again with it
    "compile",  # sees recomputation and everything within a layer, and nothing that is around layers
    LOCALIZE,  # all cuts are made: from here on a weight is a plain tensor, this rank's part
    "shard",  # ZeRO 2 and 3: shards what the others left, whatever it is
    MATERIALIZE,  # only now memory is touched, and only for the parts that stayed on this rank
    "replicate",  # DDP, ZeRO 1: buckets and optimizer hold real parameters
    "pipeline",  # last: it drives finished stages, and asks DDP and FSDP when to reduce
)
"""The order in which things happen to a model, each with the reason for its place.

Which layers a rank has at all (pipeline parallelism) is known before the first of these: only they are built.
"""

_TURN = {phase: turn for turn, phase in enumerate(PHASES)}

SUM_ORDER = ("tp", "edp", "dp", "cp", "dp_cp", "ends")
"""The order in which gradients are summed over axes after the last backward; ``ends`` needs whole ones."""

NORM_ORDER = ("tp", "ep", "edp", SHARD, "dp", "cp", "dp_cp")
"""The order in which squares are summed for the norm; pp comes after them."""


STEP = (
    "gather",
    "forward_tp",
    "forward_cp",
    "forward_ep",
    "forward_pp",
    "loss",
    "backward_ep",
    "backward_cp",
    "backward_tp",
    "backward_pp",
    "reduce",
    *(f"sum_{axis}" for axis in SUM_ORDER),
    "norm",
    "update",
    "share",
)
"""The phases of one step in the order of :class:`clusterbench.training.step.TrainingStep`; forward and backward are
one layer's."""

TOLD = ("tp", "pp", "cp", "dp", "ep", "")
"""Axes in the order in which parallelisms are explained: slices, stages, parts of sequences, copies, experts."""


class Traffic(NamedTuple):
    """Collectives of one kind along one axis during one step, as one rank takes part in them.

    ``size_bytes`` is the sum over the calls of the larger of input and output.
    """

    axis: str
    op: str
    count: int  # type: ignore[assignment]  # the tuple's own method is of no use here
    size_bytes: int
    ranks: int = 0
    """In one group, where the layout does not know the axis."""
    during: str = ""
    """The phase of the step: a name of :data:`STEP`. What backward computes again counts as forward."""

    def bytes_on_link(self, layout: ParallelLayout) -> float:
        """``size_bytes`` times the bus factor; 0 of what is received: that is on the link of the rank that sends it."""
        if self.op == RECV:
            return 0.0
        op = "send_recv" if self.op == "send" else self.op
        return traffic_bytes(op, self.size_bytes, self.ranks or layout.degree(self.axis))


class Joined(NamedTuple):
    """Collectives of one kind along an axis of which torch decides how many carry the bytes.

    They may be so many ``fewer`` and ``more`` than :class:`Traffic` says, whatever torch does.
    """

    axis: str
    op: str
    fewer: float = inf
    more: float = inf


RESULT = "result."
"""Begins the name of what only selective recomputation keeps: the result of an operator that nothing in backward needs.
"""

SENT = "sent."
"""In the name of what is kept of a message as it came: the tracker of memory counts it as communication."""

Moments = Sequence[Mapping[str, float]]
"""What one micro-batch holds of the layers of a job, by what it is: at the end of forward, then in backward."""


@dataclass(frozen=True)
class Slack:
    """Bytes by which activations may differ from their formula although nothing is wrong, and the reason.

    ``beside`` are bytes of what is no activation, by which the total may differ as well.
    """

    size_bytes: float
    why: str
    beside: float = 0.0


@dataclass(frozen=True)
class Twin:
    """What the small twin of a job needs at least, so that all that is looped over is gone through twice or more.

    Attributes
    ----------
    num_layers
        Of the whole model.
    micro_batches
        Of a step of one dp rank: a first, a last, and one between them.
    seq_unit
        What its ``seq_len`` is a multiple of.
    head_dim
        Channels of a head; 0 for as few as there are without need.
    """

    num_layers: int = 2
    micro_batches: int = 3
    seq_unit: int = 1
    head_dim: int = 0


class AttentionBlock(NamedTuple):
    """Calls of attention that are alike: queries and keys of each sequence, whether under the causal mask, how many."""

    queries: int
    keys: int
    causal: bool
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class Parallelism(ABC):
    """One way of sharing a step.

    Attributes
    ----------
    phase
        When it is applied: a name of :data:`PHASES`.
    axis
        The axis or view of a layout that it owns or rides; empty where there is none.
    speaks
        How often something passes along its axis, and whether that is waited for.
    meanings
        The axes and views that it owns, in words.
    glossary
        Words of the field that it brings.
    modules
        What it imports when it is applied and others do not, and what computes nothing when it is: imported once a
        host, before ranks are forked.
    changes_model
        Whether its options change what is computed, so that one rank alone needs them too.
    repeated_by_selective
        Whether its messages are sent again by selective recomputation, too: it keeps the results of collectives that
        are operators of torch, and of no others.
    """

    phase: ClassVar[str]
    axis: ClassVar[str] = ""
    speaks: ClassVar[str] = ""
    meanings: ClassVar[Mapping[str, Meaning]] = {}
    glossary: ClassVar[tuple[Word, ...]] = ()
    modules: ClassVar[tuple[str, ...]] = ()
    changes_model: ClassVar[bool] = False
    repeated_by_selective: ClassVar[bool] = False

    @property
    def routes(self) -> bool:
        """Whether what goes where depends on the data."""
        return False

    @property
    def repeats(self) -> str:
        """What backward computes again: none, selective or full."""
        return "none"

    @property
    def product_rounding(self) -> float:
        """What it loses of each operand of a product, beyond the dtype of the arithmetic; relative."""
        return 0.0

    @property
    def rounds_by_chance(self) -> bool:
        """Whether it rounds updated weights up or down by random bits, which are the same in every layout."""
        return False

    @property
    def fuses_loss(self) -> bool:
        """Whether the gradients of head and loss are computed together with the loss."""
        return False

    @property
    def stores_scores(self) -> bool:
        """Whether it has attention made of plain products, which keep the scores, in place of one operator."""
        return False

    @property
    def attends(self) -> bool:
        """Whether it calls operators of attention of its own, in the place of the one that torch would choose."""
        return False

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies batches of matrices of its own, of which no counter sees all."""
        return False

    @property
    def reaches_memory(self) -> bool:
        """Whether ranks read and write each other's memory, for which torch wants each on a device of its own."""
        return False

    def keeps_on_host(self, job: TrainingJob) -> bool:
        """Whether weights, their gradients and optimizer state are in host memory between uses, and not on a card."""
        return False

    def rounding(self, dtype: str) -> float:
        """What its messages lose of a gradient in this dtype, relative to the largest element."""
        return 0.0

    @property
    def sent_as(self) -> str:
        """The dtype that gradients have when it has summed them, where that is another than they came in."""
        return ""

    def for_proof(self) -> Self:
        """What is compared with one rank in its place: itself, or where that has no like on one rank, its exact form.

        In as small parts as a small twin needs to have several.
        """
        return self

    @property
    def approximates(self) -> bool:
        """Whether what it computes has no like on one rank, so that :meth:`for_proof` is another thing."""
        return False

    @property
    def largest_share(self) -> float:
        """The share of each gradient's elements that it sends, the largest ones; 0 where it sends something else."""
        return 0.0

    def exact(self) -> Self:
        """The form that loses nothing of a gradient, for a comparison in float64: itself where it never does."""
        return self

    def routed_by_place(self) -> Self:
        """The same with what goes where fixed, whatever the data: rounding then changes figures and no ways."""
        return self

    @property
    def ranks_of(self) -> Mapping[str, int]:
        """Ranks along axes that no layout knows, because an option makes them."""
        return {}

    @abstractmethod
    def active(self, layout: ParallelLayout) -> bool:
        """Whether it does anything in this layout, with these options."""

    def concerned(self, layout: ParallelLayout, shape: ModelShape) -> bool:
        """Whether its options can change anything in this layout of this model."""
        return self.active(layout)

    def objection(self, job: TrainingJob) -> str | None:
        """Why this job cannot be shared this way, with the numbers; None when it can. Asked only when active."""
        return None

    def clash(self, job: TrainingJob, others: Sequence[Parallelism]) -> str | None:
        """Why it cannot go with what else is active; None when it can."""
        return None

    def hides_activations(self, job: TrainingJob) -> str:
        """Why what is kept for backward cannot be told: none is better than a wrong expectation. Empty where it can."""
        return ""

    def hides_total(self, job: TrainingJob) -> str:
        """Why the most that is held at one moment cannot be told though each category can; empty where it can."""
        return ""

    def needs_data(self, job: TrainingJob) -> str:
        """Why its step cannot be run on tensors without data; empty where it can."""
        return ""

    def without_data(self) -> tuple[Self, str]:
        """What stands in its place in a step on tensors without data, and what that means for the figures.

        Itself, and nothing, unless it says.
        """
        return self, ""

    def part(self, job: TrainingJob, pp_rank: int) -> TrainingJob:
        """The job of a rank at this place along pp, with the layers it has."""
        return job

    def twin(self, job: TrainingJob) -> Twin:
        """What a job's small twin needs at least."""
        return Twin()

    def positions(self, job: TrainingJob, cp_rank: int) -> Sequence[range] | None:
        """The positions of a sequence that a cp rank has, in its order; None where this is not its to say."""
        return None

    def weight(self, name: str, size: tuple[int, ...], job: TrainingJob) -> tuple[int, ...]:
        """What is left on one rank of a weight that has ``size`` before: on the fullest where it is not even."""
        return size

    def multiplied(self, name: str, size: tuple[int, ...], job: TrainingJob) -> tuple[int, ...]:
        """What one rank multiplies with of a weight that has ``size`` before: what it keeps, unless it says.

        Layouts that are alike :attr:`~clusterbench.layout.ParallelLayout.of_micro_batch` share the answer.
        """
        return self.weight(name, size, job)

    def in_float8(self, name: str) -> tuple[str, str] | None:
        """The kinds of the product with this weight and of those for its gradients, where it rounds them to float8."""
        return None

    def attention_heads(self, heads: int, job: TrainingJob) -> int:
        """For how many of some query heads one rank computes attention."""
        return heads

    def attention_blocks(self, job: TrainingJob, cp_rank: int) -> Sequence[AttentionBlock] | None:
        """What a cp rank computes in one forward of attention; None where this is not its to say."""
        return None

    def splits(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        """Axes over which it cuts a weight."""
        return ()

    def sums(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        """Axes over which it leaves a weight's gradient to be summed after the last backward."""
        return ()

    def states(self, states: dict[str, float], job: TrainingJob) -> dict[str, float]:
        """What it makes of the bytes of parameters, gradients and optimizer state that the rank's weights need."""
        return states

    def gathered(self, states: dict[str, float], job: TrainingJob, active: Sequence[Parallelism]) -> dict[str, float]:
        """The same at their peak, with what is there only for a while; ``active`` are all, this one among them."""
        return states

    def traffic_basis(self, job: TrainingJob) -> Mapping[str, str]:
        """Axis -> why the traffic counted there may differ from :meth:`traffic`; empty where it is exact."""
        return {}

    def joins_calls(self, job: TrainingJob) -> Iterable[Joined]:
        """Of what torch decides in how many calls the bytes of :meth:`traffic` go."""
        return ()

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        """What is left on one rank of the entries of :func:`clusterbench.job.activations`.

        Layouts that are alike :attr:`~clusterbench.layout.ParallelLayout.of_micro_batch` share the answer.
        """
        return held

    def moments(self, held: dict[str, float], job: TrainingJob, expert_parts: int) -> Iterable[dict[str, float]]:
        """What a micro-batch holds when its forward is through, and where backward makes some of it anew also then.

        ``expert_parts``: in how many it goes through the experts.
        """
        yield self.activations(held, job)

    def full_moments(
        self, job: TrainingJob, moments_of: Callable[[Chunk], Moments], parts: int
    ) -> Sequence[float] | None:
        """Bytes at every time at which a rank may hold most; None where this is not its to say.

        With another ``seq_len`` they are as many, and in the same order.
        """
        return None

    def kept_as_gradients(self, job: TrainingJob, behind_loss: bool) -> Sequence[str]:
        """Names among its activations that are the gradients of weights, and count as such.

        ``behind_loss``: in backward, when the loss has handed on its gradients.
        """
        return ()

    def parts(self, job: TrainingJob) -> int:
        """In how many parts a micro-batch goes through the experts."""
        return 1

    def slack(self, job: TrainingJob) -> Iterable[Slack]:
        """What torch may hold beyond the formulas of memory, or let go earlier, and why."""
        return ()

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        """What it sends in one step, exactly. Asked only when active."""
        return ()

    def forward_traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        """What of it is sent within the forwards of the layers, and sent again when they are computed again."""
        return ()

    def phases(self, layout: ParallelLayout, each: str) -> Iterable[PhaseWords]:
        """The phases of a step in which it sends, in words; ``each`` is ``every micro-batch``, or how many there are.

        Asked only when active.
        """
        return ()

    def remarks(self, layout: ParallelLayout) -> Iterable[Remark]:
        """What it is to others in this layout. Asked only when active."""
        return ()

    def keeps(self, layout: ParallelLayout) -> str:
        """Of what each rank of a group keeps a share only; empty where it keeps all."""
        return ""

    @abstractmethod
    def apply(self, assembly: Assembly) -> None:
        """Changes the model, or what surrounds it. Communicates nothing."""


def parallelisms() -> Mapping[str, type[Parallelism]]:
    """All parallelisms by name."""
    return things("clusterbench.parallel", Parallelism)


def as_told() -> list[type[Parallelism]]:
    """All parallelisms in the order in which they are explained: by axis, who owns it before who rides it."""
    return sorted(parallelisms().values(), key=lambda kind: (TOLD.index(kind.axis), not kind.meanings))


def from_options(values: Mapping[str, Any]) -> tuple[Parallelism, ...]:
    """Every parallelism, each with its own among ``values``."""
    names = tuple(name for name in _every_option() if name in values)
    return _with_options(names, *map(values.__getitem__, names))


@cache
def _every_option() -> tuple[str, ...]:
    return tuple(name for kind in parallelisms().values() for name in options_of(kind))


@lru_cache(maxsize=4096, typed=True)  # a report asks again for every case; typed, as 1 is not True
def _with_options(names: tuple[str, ...], *options: Any) -> tuple[Parallelism, ...]:
    values = dict(zip(names, options, strict=True))
    return tuple(
        kind(**{name: values[name] for name in options_of(kind) if name in values}) for kind in parallelisms().values()
    )


def active_in(layout: ParallelLayout, parallelisms: Iterable[Parallelism]) -> list[Parallelism]:
    """Those that do something in ``layout``, in the order in which they are applied."""
    return sorted(
        (parallelism for parallelism in parallelisms if parallelism.active(layout)),
        key=lambda parallelism: _TURN[parallelism.phase],
    )


@cache
def without(kind: type[Parallelism], layout: ParallelLayout) -> Sequence[Parallelism]:
    """All others that do something in ``layout``, without options: they say which weights one kind is given."""
    return tuple(active_in(layout, [other() for other in parallelisms().values() if other is not kind]))


Kind = TypeVar("Kind", bound=Parallelism)


def of_kind(kind: type[Kind], active: Iterable[Parallelism]) -> Kind | None:
    """The one of this kind among those active."""
    for parallelism in active:
        if type(parallelism) is kind:
            return parallelism
    return None


def stores_scores(active: Sequence[Parallelism], job: TrainingJob) -> bool:
    """Whether attention is made of plain products, which keep the scores, in place of one operator."""
    is_left_to_torch = not any(parallelism.attends for parallelism in active)
    return any(parallelism.stores_scores for parallelism in active) or (is_left_to_torch and job.has_plain_attention)


def objection_to(job: TrainingJob, active: Sequence[Parallelism]) -> str | None:
    """Why a job cannot be shared so: the first reason there is, of the batch, of one parallelism or of two together."""
    reasons = chain(
        (job.objection(),),
        (parallelism.objection(job) for parallelism in active),
        (parallelism.clash(job, active) for parallelism in active),
    )
    return next((reason for reason in reasons if reason), None)


def part_of(job: TrainingJob, active: Sequence[Parallelism], pp_rank: int) -> TrainingJob:
    """The job of a rank at this place along pp."""
    for parallelism in active:
        job = parallelism.part(job, pp_rank)
    return job


def local_weights(active: Sequence[Parallelism], job: TrainingJob) -> dict[str, tuple[int, ...]]:
    """The part of every weight that one rank holds, in the model's order."""
    weights = weight_shapes(job)
    for parallelism in with_own(active, "weight"):
        weights = {name: parallelism.weight(name, size, job) for name, size in weights.items()}
    return weights


def with_own(active: Iterable[Parallelism], *methods: str) -> tuple[Parallelism, ...]:
    """Those with such a method of their own: the others say nothing by it, and need not be asked for every weight."""
    has_own = _own(methods)
    return tuple([parallelism for parallelism in active if has_own[type(parallelism)]])


class _Own(dict[type[Parallelism], bool]):
    """Whether a kind has one of these methods of its own; looked up at first."""

    def __init__(self, methods: tuple[str, ...]) -> None:
        self.methods = methods

    def __missing__(self, kind: type[Parallelism]) -> bool:
        self[kind] = any(getattr(kind, method) is not getattr(Parallelism, method) for method in self.methods)
        return self[kind]


_own = cache(_Own)  # a plan asks a hundred thousand times


def split_over(active: Sequence[Parallelism], name: str, job: TrainingJob) -> tuple[str, ...]:
    """Axes over which a weight is cut."""
    return tuple(axis for parallelism in active for axis in parallelism.splits(name, job))


def summed_over(active: Sequence[Parallelism], name: str, job: TrainingJob) -> tuple[str, ...]:
    """Axes over which a weight's gradient is summed after the last backward, in order."""
    axes = {axis for parallelism in active for axis in parallelism.sums(name, job)}
    return tuple(axis for axis in SUM_ORDER if axis in axes)


class HeldWeight(NamedTuple):
    """A weight as one rank holds it: the size of its part, and the axes over which it is cut and its gradient summed.

    That of a layer has the name it has in the first one.
    """

    name: str
    size: tuple[int, ...]
    split_over: tuple[str, ...]
    summed_over: tuple[str, ...]


def held_weights(active: Sequence[Parallelism], job: TrainingJob) -> Sequence[tuple[HeldWeight, int]]:
    """One weight of each kind that a rank holds, and how many it holds of it; the same as :func:`local_weights`."""
    return _held(with_own(active, "weight", "splits", "sums"), job.shape, job.layout, job.kind)


@lru_cache(maxsize=256)  # a plan asks for every figure
def _held(
    active: tuple[Parallelism, ...], shape: ModelShape, layout: ParallelLayout, chunk: Chunk
) -> Sequence[tuple[HeldWeight, int]]:
    job = TrainingJob(shape, layout, 1, 1, 1, chunks=(chunk,))
    counted = ((weight, how_many(name, job)) for name, weight in _held_kinds(active, shape, layout).items())
    return [(weight, number) for weight, number in counted if number]


@lru_cache(maxsize=256)  # a plan asks for every stage
def _held_kinds(active: tuple[Parallelism, ...], shape: ModelShape, layout: ParallelLayout) -> Mapping[str, HeldWeight]:
    like, splitting, summing = one_of_each(shape, layout), with_own(active, "splits"), with_own(active, "sums")
    return {
        name: HeldWeight(name, size, split_over(splitting, name, like), summed_over(summing, name, like))
        for name, size in _kinds(with_own(active, "weight"), shape, layout).items()
    }


def held_sizes(active: Sequence[Parallelism], job: TrainingJob) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Name and size of one weight of each kind that a rank holds, and how many: as :func:`held_weights`."""
    for name, size in _kinds(with_own(active, "weight"), job.shape, job.layout).items():
        if number := how_many(name, job):
            yield name, size, number


@lru_cache(maxsize=4096)  # whoever cuts no weight is not among the cutting, so that all others share what these leave
def _kinds(
    cutting: tuple[Parallelism, ...], shape: ModelShape, layout: ParallelLayout
) -> Mapping[str, tuple[int, ...]]:
    return local_weights(cutting, one_of_each(shape, layout))


def expected_traffic(active: Sequence[Parallelism], job: TrainingJob) -> list[Traffic]:
    """All collectives of one step of a rank, one entry per axis and op."""
    totals: dict[tuple[str, str], tuple[int, int, int]] = {}
    for sent in traffic_of_step(active, job):
        count, size_bytes, _ = totals.get((sent.axis, sent.op), (0, 0, 0))
        totals[sent.axis, sent.op] = count + sent.count, size_bytes + sent.size_bytes, sent.ranks
    return [Traffic(axis, op, *total) for (axis, op), total in totals.items() if total[0]]


def traffic_of_step(active: Sequence[Parallelism], job: TrainingJob) -> Iterator[Traffic]:
    """All collectives of one step of a rank, each with the phase it belongs to; some may count 0."""
    repeats = {parallelism.repeats for parallelism in active}
    for parallelism in active:
        yield from parallelism.traffic(job)
        if "full" in repeats or ("selective" in repeats and parallelism.repeated_by_selective):
            yield from parallelism.forward_traffic(job)
    # What training/step.py does itself, after the last backward: gradients that are parts travel in one flat buffer for
    # each axis,
    each = kept_bytes("norm.weight", job)  # all of them are FSDP's, or none: experts that are not are summed nowhere
    for axis, numel in summed_elements(active, job).items():
        yield Traffic(axis, "all_reduce", 1, numel * each, during=f"sum_{axis}")
    # and of the weights that are split each rank adds up its own squares: a number for each way of being split.
    if job.max_grad_norm is not None:
        for axis, numbers in _ways_of_splitting(active, job).items():
            yield Traffic(axis, "all_reduce", 1, numbers * job.norm_bytes, _ranks(active, axis), during="norm")
        if job.layout.uses("pp"):
            yield Traffic("pp", "all_reduce", 1, job.norm_bytes, during="norm")


def summed_elements(active: Sequence[Parallelism], job: TrainingJob) -> Mapping[str, int]:
    """Axis -> elements of the gradients that a rank sums over it when backward is over, where there are any."""
    return _of_gradients(with_own(active, "weight", "splits", "sums"), job.shape, job.layout, job.kind)[0]


def _ways_of_splitting(active: Sequence[Parallelism], job: TrainingJob) -> Mapping[str, int]:
    """Axis -> in how many ways it takes part in splitting weights."""
    return _of_gradients(with_own(active, "weight", "splits", "sums"), job.shape, job.layout, job.kind)[1]


@lru_cache(maxsize=256)  # a plan asks for every figure and stage
def _of_gradients(
    active: tuple[Parallelism, ...], shape: ModelShape, layout: ParallelLayout, chunk: Chunk
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Axis -> elements of the gradients that are summed over it, and in how many ways it takes part in splitting."""
    weights = _held(active, shape, layout, chunk)
    parts = {
        axis: sum(number * prod(weight.size) for weight, number in weights if axis in weight.summed_over)
        for axis in SUM_ORDER
    }
    each_way = {weight.split_over for weight, _ in weights}
    ways = {axis: sum(axis in way for way in each_way) for axis in NORM_ORDER}
    return {axis: numel for axis, numel in parts.items() if numel}, {axis: of for axis, of in ways.items() if of}


def _ranks(active: Sequence[Parallelism], axis: str) -> int:
    """Ranks along an axis that only an option of a parallelism knows; 0 for the others."""
    return next((parallelism.ranks_of[axis] for parallelism in active if axis in parallelism.ranks_of), 0)


def expected_states(active: Sequence[Parallelism], job: TrainingJob) -> dict[str, float]:
    """Bytes on one rank of parameters, gradients and optimizer state, without what is gathered for a while."""
    acting = with_own(active, "weight", "splits", "sums", "states")  # whatever is computed again
    return _states(acting, job.shape, job.layout, job.dtypes, job.kind)


@lru_cache(maxsize=256)  # a plan asks for every figure and stage
def _states(
    active: tuple[Parallelism, ...],
    shape: ModelShape,
    layout: ParallelLayout,
    dtypes: Dtypes,
    chunk: Chunk,
) -> dict[str, float]:
    job = TrainingJob.of_chunk(shape, layout, chunk, dtypes)
    weights = held_weights(active, job)
    numel = copied = 0
    for weight, number in weights:
        of_kind = number * prod(weight.size)
        numel += of_kind
        copied += of_kind * has_copy(weight.name, job)
    states = {
        "parameters": float(numel * job.master_bytes + copied * job.compute_bytes),
        # as kept_bytes has it: of a copy its gradient is kept
        "gradients": float((numel - copied) * job.master_bytes + copied * job.gradient_bytes),
        # Adam's two moments, and a float32 step count for each tensor, which torch's own has
        "optimizer_state": float(2 * numel * job.moment_bytes + 4 * sum(number for _, number in weights)),
    }
    for parallelism in active:
        states = parallelism.states(states, job)
    return states


def expected_at_rest(active: Sequence[Parallelism], job: TrainingJob) -> dict[str, float]:
    """Bytes on one rank between steps of what is always there: parameters and optimizer state."""
    states = expected_states(active, job)
    return {name: states[name] for name in ("parameters", "optimizer_state")}


def expected_memory(active: Sequence[Parallelism], job: TrainingJob, load: float = 1.0) -> dict[str, float]:
    """Bytes on one rank by category: parameters, gradients and optimizer state exactly, activations by what is held.

    ``activations`` is what lives when the loss of a micro-batch has been computed, with the batch itself; or, with
    recomputation, when the last layer has been computed again, if that is more; or, with pipeline stages, when the
    schedule holds most.

    Parameters
    ----------
    load
        Rows that the experts of a rank get, as a multiple of an even share.
    """
    return peak_memory(active, job, expected_states(active, job), load)


def peak_memory(
    active: Sequence[Parallelism], job: TrainingJob, states: dict[str, float], load: float = 1.0
) -> dict[str, float]:
    """:func:`expected_memory` of a job of which :func:`expected_states` is known."""
    for parallelism in active:
        states = parallelism.gathered(states, job, active)
    return states | {"activations": max(held_activations(active, job, load))}


def expert_parts(active: Iterable[Parallelism], job: TrainingJob) -> int:
    """In how many parts a micro-batch goes through the experts."""
    return max((parallelism.parts(job) for parallelism in active), default=1)


def held_activations(active: Sequence[Parallelism], job: TrainingJob, load: float = 1.0) -> list[float]:
    """Bytes at every time at which most may be held, of which the largest are those of :func:`expected_memory`.

    Each grows along a line with the sequence: whatever the length, they are as many, in the same order.
    """
    moments_of = moments_by_chunk(active, job, load)
    parts = expert_parts(active, job)
    by_schedule = (parallelism.full_moments(job, moments_of, parts) for parallelism in active)
    held = next((moments for moments in by_schedule if moments is not None), None)
    if held is None:
        forward, *backward = moments_of(job.held[0])
        held = [_without(forward, _gradients_among(active, job, behind_loss=False))]
        held += [_without(moment, _gradients_among(active, job, behind_loss=True)) for moment in backward]
        held += [before_loss(job, forward, parts), at_last_norm(job, forward)]
    of_step = held_all_step(job)
    return [size_bytes + of_step for size_bytes in held]


def _without(held: Mapping[str, float], names: Collection[str]) -> float:
    """Bytes of all but these."""
    return sum([size for name, size in held.items() if name not in names])


def _gradients_among(active: Sequence[Parallelism], job: TrainingJob, behind_loss: bool) -> Collection[str]:
    return {name for parallelism in active for name in parallelism.kept_as_gradients(job, behind_loss)}


def held_all_step(job: TrainingJob) -> float:
    """Bytes of activations that are there from before the step to its end: the batch, and the rotary angles."""
    batch = 2 * job.gradient_accumulation_steps * job.local_tokens * 8  # tokens and labels, int64
    rope = 2 * job.seq_len // job.layout.cp * job.shape.head_dim * job.compute_bytes
    return float(batch + rope)


def moments_by_chunk(
    active: Sequence[Parallelism], job: TrainingJob, load: float = 1.0, messages: bool = False
) -> Callable[[Chunk], Moments]:
    """What says, of each chunk of a job, what one micro-batch holds of it; with ``messages`` what is kept of those."""
    of_any = (
        with_own(active, "activations", "moments"),
        job.shape,
        job.layout.of_micro_batch,
        job.seq_len,
        job.micro_batch_size,
        job.dtypes,
        job.device,
        load,
    )

    known: dict[Chunk, Moments] = {}

    def moments_of(chunk: Chunk) -> Moments:
        if chunk not in known:
            # a look-up keeps nothing: the first stage of several is like those behind it
            like = Chunk(0, range(len(chunk.layers)), chunk.first and chunk.last, chunk.last)
            known[chunk] = _moments(*of_any, like)[messages]
        return known[chunk]

    return moments_of


@lru_cache(maxsize=4096)  # layouts that differ in dp hold the same, and so do stages but the last
def _moments(
    active: tuple[Parallelism, ...],
    shape: ModelShape,
    layout: ParallelLayout,
    seq_len: int,
    micro_batch_size: int,
    dtypes: Dtypes,
    device: str,
    load: float,
    chunk: Chunk,
) -> tuple[Moments, Moments]:
    """What one micro-batch holds of these layers: without what is kept of messages, and with it."""
    job = TrainingJob.of_chunk(shape, layout, chunk, dtypes, seq_len, micro_batch_size, device)
    moments, parts = [activations(job, load)], expert_parts(active, job)
    for parallelism in active:
        moments = [after for held in moments for after in parallelism.moments(held, job, parts)]
    kept = [{name: size for name, size in held.items() if not name.startswith(RESULT)} for held in moments]
    return [{name: size for name, size in held.items() if SENT not in name} for held in kept], kept
