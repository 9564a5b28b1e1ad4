"""What is alive while a micro-batch goes backward through the layers of a rank, moment by moment. No torch.

Backward makes gradients and lets go of what forward kept, operator by operator. Most is alive somewhere between: the
gradient of a product's input and that of its weight are there before what the product kept is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clusterbench.job import TrainingJob, has_copy
from clusterbench.job.layer_end import before_loss


class Operator(NamedTuple):
    """One operator's backward.

    Attributes
    ----------
    weights
        Those of which it makes the gradient.
    makes
        The activations of which it makes the gradient: each is as large as what is kept of it.
    frees
        Kept activations that nothing before it needs.
    drops
        Gradients of activations that it has used up.
    """

    weights: tuple[str, ...]
    makes: tuple[str, ...]
    frees: tuple[str, ...]
    drops: tuple[str, ...]


def _within(module: str, kept: str, *operators: Operator) -> tuple[Operator, ...]:
    """Operators of a module, with the names that weights and activations have in the model."""
    return tuple(
        Operator(
            tuple(f"layers.0.{module}.{name}" for name in operator.weights),
            *(tuple(f"layer.{kept}.{name}" for name in names) for names in operator[1:]),
        )
        for operator in operators
    )


_SWIGLU = (
    Operator(("down.weight",), ("product",), ("product",), ()),
    Operator((), ("silu", "up"), ("silu", "up"), ("product",)),
    Operator(("up.weight",), ("input",), (), ("up",)),
    Operator((), ("gate",), ("gate",), ("silu",)),
    Operator(("gate.weight",), ("input",), ("input",), ("gate", "input", "input")),
)
"""Of ``down(silu(gate(x)) * up(x))``. What comes behind it reads the residual stream's gradient, which stays."""

FEED_FORWARD = _within("feed_forward", "feed_forward", *_SWIGLU)
SHARED_EXPERTS = _within("feed_forward.shared", "shared", *_SWIGLU)
EXPERTS = _within(
    "feed_forward.experts",
    "experts",
    Operator((), ("output", "output"), ("output",), ("output",)),
    Operator(("down",), ("product",), ("product",), ("output",)),
    Operator((), ("silu", "up"), ("silu", "up"), ("product",)),
    Operator((), ("gate",), ("gate",), ("silu",)),
    Operator(("up",), ("input",), (), ("up",)),
    Operator(("gate",), ("input",), ("input",), ("gate", "input", "input")),
)
"""Of routed experts: first the rows, weighted and added up, then the same network."""

ATTENTION = _within(
    "attention",
    "attention",
    Operator(("output.weight",), ("output",), (), ()),
    Operator((), ("query", "key", "value"), ("output", "logsumexp", "query", "key", "value"), ("output",)),
    Operator(("value.weight",), ("input",), (), ("value",)),
    Operator(("key.weight",), ("input",), (), ("key", "input")),
    Operator(("query.weight",), ("input",), ("input",), ("query", "input", "input")),
)

IN_ORDER = (
    ("backward of shared experts", SHARED_EXPERTS),
    ("backward of a feed-forward", FEED_FORWARD),
    ("backward of attention", ATTENTION),
)
"""What follows the backward of routed experts, where a layer has it."""

OF_FORWARD = 6
"""How many of the moments of a micro-batch lie in its forward: the first ones."""

OF_THE_LOSS = (
    *("loss.logits_in_float32", "loss.log_softmax", "loss.shifted"),
    *("loss.parts", "loss.input_gradient", "loss.head_gradient"),
)
"""What there is of the logits beside themselves; in chunks all of it, and the gradients of their product."""


class Moment(NamedTuple):
    """A time at which most may be alive.

    Attributes
    ----------
    when
        In words.
    held
        Bytes beside what is there between steps: activations, gradients of both kinds, buffers.
    """

    when: str
    held: float


class Group(NamedTuple):
    """Bytes of weights that are gathered and reduced at once.

    Attributes
    ----------
    gathered
        What every rank has of them while they are used.
    gradients
        Of all of them, before they are reduced.
    packed
        The buffer in which they are reduced.
    reduced, share
        Of it, what one rank keeps: as it comes from the reduction, and in the dtype in which shares add up.
    last
        Of the gradients, that of the last weight, where FSDP lets go of it only when the group is reduced.
    """

    gathered: float
    gradients: float
    packed: float
    reduced: float
    share: float
    last: float


@dataclass(frozen=True)
class Sharding:
    """How weights are gathered for the layers and gradients reduced behind them.

    Attributes
    ----------
    layer
        Groups of one layer, in the order in which they are gathered.
    root
        What is around the layers and in no other group, gathered first, and reduced when backward is over.
    embedding, head
        Empty where they are in the root. An embedding is let go of after its forward, and reduced behind the root.
    frees
        Whether a layer's weights are let go of after its forward and gathered again.
    holds_before
        Whether what came through a gather is there as it came until what comes through the next is taken apart, or goes
        before that.
    copies
        Whether a reduction works on a copy of its buffer, as Gloo's does.
    by_stage
        Whether a schedule gathers and reduces whole stages, and gradients add up between.
    in_parameters
        Whether those are in the dtype of the reduction as they come, and not behind their group.
    widens_table
        Whether the gradient that a loss in chunks makes of a tied table is in the dtype of the reduction at once.
    growth
        By how much the gradients grow when they are added up: in the dtype of the reduction.
    replicates
        Whether shares are summed over replicas, too: until backward is over torch holds what it summed.
    """

    layer: Sequence[Group]
    root: Group
    embedding: Group
    head: Group
    frees: bool
    holds_before: bool
    copies: bool
    by_stage: bool
    in_parameters: bool
    widens_table: bool
    growth: float
    replicates: bool = False


class Weight(NamedTuple):
    """Bytes of one weight of a layer, or around the layers, as a rank multiplies with it.

    Attributes
    ----------
    gradient, kept
        Its gradient as a product makes it, and in the dtype in which it adds up; the same where that is one.
    sharded
        Whether its gradient waits for its group, in the dtype in which it was made.
    waits
        Whether its gradient is added to what is there only when backward is over.
    rounded
        Whether it is a copy: those of all experts pass their gradients on at once.
    """

    gradient: float
    kept: float
    sharded: bool = False
    waits: bool = False
    rounded: bool = False


class Sized(NamedTuple):
    """An operator with bytes in place of names; what it makes with the gradients of its weights.

    ``buffers`` come and go with it.
    """

    when: str
    made: float
    freed: float
    dropped: float
    weights: Sequence[Weight]
    buffers: float = 0.0


def _sized(
    when: str, operator: Operator, sizes: Mapping[str, float], weights: Mapping[str, Weight], buffers: float = 0.0
) -> Sized:
    own = [weights[name] for name in operator.weights if name in weights]
    made = sum([sizes[name] for name in operator.makes if name in sizes])
    for weight in own:
        made += weight.gradient
    freed = sum([sizes[name] for name in operator.frees if name in sizes])
    dropped = sum([sizes[name] for name in operator.drops if name in sizes])
    return Sized(when, made, freed, dropped, own, buffers)


@dataclass
class Backward:
    """One micro-batch going backward.

    Attributes
    ----------
    alive
        Bytes now.
    adds_up
        Whether gradients are there already, to which new ones are added, or stay as they come.
    when, held
        The times so far at which most was alive, in words, and how much that was.
    """

    alive: float
    adds_up: bool
    when: list[str] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    packed: float = 0.0
    freed: float = 0.0
    waiting: float = 0.0

    def mark(self, when: str, more: float = 0.0) -> None:
        self.when.append(when)
        self.held.append(self.alive + more)

    def operator(self, operator: Sized, casts: bool = True) -> None:
        """Lets an operator go backward; without ``casts`` the gradients of its weights are left as it made them."""
        when, made, freed, dropped, weights, buffers = operator
        self.alive += made
        self.mark(when, buffers)
        self.alive -= freed + dropped
        self.freed += freed
        for weight in weights if casts else ():
            self.cast(when, weight)

    def cast(self, when: str, weight: Weight) -> None:
        """The gradient of a weight is added to what is there as it is; the first is cast to its dtype."""
        if weight.sharded:
            return
        if self.adds_up:
            self.alive -= weight.gradient * (not weight.waits)
            self.waiting += weight.gradient * weight.waits
        elif weight.gradient != weight.kept:
            self.alive += weight.kept
            self.mark(when)
            self.alive -= weight.gradient

    def reduce(self, when: str, group: Group, sharding: Sharding) -> None:
        """Packs the gradients of a group and keeps this rank's share; the buffer stays until the next.

        Or, in a pipeline, adds them to those of the micro-batches before.
        """
        if sharding.by_stage:
            if sharding.in_parameters:
                return
            self.alive += group.gradients * ((0.0 if self.adds_up else sharding.growth) - 1)
            return
        self.alive -= group.gathered + self.packed
        self.mark(when, group.packed)
        self.alive += group.packed + group.share - group.gradients
        under_way = group.packed * sharding.copies + group.reduced - group.share
        behind = group.reduced * (group.reduced != group.share)  # beside the same in another dtype
        self.mark(when, max(under_way, behind) + group.last)
        is_another = self.adds_up or group.reduced != group.share  # than the gradient that stays
        self.packed = group.packed
        self.alive += group.reduced * (sharding.replicates and is_another)
        if self.adds_up:
            self.alive -= group.share


def moments_of_backward(
    job: TrainingJob,
    forward: Mapping[str, float],
    again: Mapping[str, float],
    weights: Mapping[str, Weight],
    sharding: Sharding | None,
    adds_up: bool,
    expert_parts: int = 1,
    attention_buffers: float = 0.0,
) -> tuple[Sequence[str], Sequence[float]]:
    """The times of a micro-batch, from the end of its forward on, at which most may be alive on a rank.

    Each in words, and how much that is.

    Parameters
    ----------
    job
        With the layers that one forward goes through.
    forward
        What is held when the forward is through, by what it is: of all layers.
    again
        The same when the last layer has been computed again; empty where none is.
    weights
        By the names of :func:`clusterbench.job.one_of_each`.
    adds_up
        Whether gradients are there already.
    expert_parts
        In how many parts the micro-batch goes through the experts.
    attention_buffers
        Bytes that come and go with the backward of one attention.
    """
    walk = Backward(sum(forward.values()), adds_up)
    residual = float(job.residual_tokens * job.shape.hidden_size * job.compute_bytes)
    of_layers, widened, in_chunks = 0.0, 0.0, "loss.parts" in forward
    if sharding is not None:
        if in_chunks and sharding.widens_table:
            widened = weights["embedding.weight"].gradient * sharding.growth
        walk.alive += sharding.root.gathered
        of_layers = job.num_layers * sum(group.gathered for group in sharding.layer)
        walk.alive += 0.0 if sharding.frees else of_layers
    without_loss = _gathered_logits(job, forward) - sum(forward.get(name, 0.0) for name in OF_THE_LOSS)
    head = sharding.head.gathered if sharding is not None else 0.0
    walk.mark("the loss", head)
    walk.mark("the end of forward", _gathered_at_end(sharding, forward) + without_loss)
    walk.mark("the gather of the head", _at_gather_of_head(job, sharding, forward) + without_loss)
    walk.mark("the last gather", _at_last_gather(job, sharding, forward))
    coming = head * in_chunks  # behind the last layer
    walk.mark("the end of the last layer", coming + _at_end_of_layers(job, sharding, forward, expert_parts))
    beside = without_loss if sharding is None else _at_last_product(job, sharding, forward, again)
    walk.mark("the last product of a layer", coming + beside)  # of plain weights computing it again takes more
    if sharding is not None and sharding.frees and sharding.by_stage and adds_up:
        walk.alive += of_layers  # the backwards before have gathered them
    walk.alive += head
    in_norm = _in_last_norm(job, residual) + _fetched(walk, sharding)
    if in_chunks:
        _loss_in_chunks(walk, forward, weights, sharding, in_norm, widened)
    elif job.has_head:
        _loss_and_head(walk, job, forward, weights, sharding, in_norm)
    walk.alive += residual if job.has_head else 0.0  # else it came in a buffer that is there all the time
    _layers(walk, job, _one_layer(job, forward, again, weights, expert_parts, attention_buffers), sharding)
    if job.embeds:
        _embedding(walk, job, weights["embedding.weight"], residual)
        if _is_shared(job):
            _both_gradients(walk, job, weights["embedding.weight"], in_chunks, widened)
    if sharding is not None and sharding.by_stage:
        walk.alive += 0.0 if sharding.in_parameters else sharding.root.gradients * (sharding.growth - 1)
    elif sharding is not None and sharding.root.packed:
        walk.alive -= residual
        root = _with_wide_table(sharding.root, weights["embedding.weight"], widened) if widened else sharding.root
        walk.reduce("the reduction of what is around the layers", root, sharding)
        if sharding.embedding.packed:
            walk.reduce("the reduction of the embedding", sharding.embedding._replace(gathered=0.0), sharding)
    return walk.when, walk.held


def _gathered_last(sharding: Sharding | None) -> float:
    """What came last through a gather is there twice until forward is over: as it came, and taken apart."""
    if sharding is None or not sharding.layer:
        return 0.0
    kept = sum(group.gathered for group in sharding.layer) if sharding.frees else 0.0
    return kept + sharding.layer[-1].gathered


def _gathered_at_end(sharding: Sharding | None, forward: Mapping[str, float]) -> float:
    """What came last through a gather: a head that is a group of its own.

    Where that computes the loss it is taken apart before, and the last layer is there as it came.
    """
    if sharding is None or not sharding.head.gathered:
        return _gathered_last(sharding)
    return 2 * sharding.head.gathered + sharding.layer[-1].gathered * ("loss.logits" not in forward)


def _at_gather_of_head(job: TrainingJob, sharding: Sharding | None, forward: Mapping[str, float]) -> float:
    """A head that is a group of its own: as it is taken apart the last layer is there as it came, but no logits.

    With +sp the head's input is gathered over tp behind it.
    """
    if sharding is None or not sharding.head.gathered or "loss.logits" not in forward:
        return 0.0
    to_come = forward["loss.logits"] + _gathered_logits(job, forward)
    to_come += forward["head.input"] * (1 - 1 / job.layout.tp) * job.layout.sp
    return sharding.head.gathered + _beside_before(sharding, sharding.head, sharding.layer[-1]) - to_come


def _gathered_logits(job: TrainingJob, forward: Mapping[str, float]) -> float:
    """Where the loss is not computed on split logits: as they came and in order, and a rank's part of them."""
    logits, is_split = forward.get("loss.logits", 0.0), "loss.shifted" in forward
    return logits * (1 + 1 / job.layout.tp) if job.layout.uses("tp") and not is_split else 0.0


def _at_last_gather(job: TrainingJob, sharding: Sharding | None, forward: Mapping[str, float]) -> float:
    """What came through the gather before is there as it came with the last, but no last layer yet."""
    if sharding is None or not sharding.layer:
        return 0.0
    first = sharding.embedding if sharding.embedding.gathered else sharding.root
    before = sharding.layer[-2:-1] or ([first] if job.num_layers == 1 else sharding.layer)
    to_come = sum([size / (job.num_layers if name.startswith("layer.") else 1) for name, size in forward.items()])
    last = sharding.layer[-1]
    return _gathered_last(sharding) - last.gathered + _beside_before(sharding, last, before[0]) - to_come


def _beside_before(sharding: Sharding, gathered: Group, before: Group) -> float:
    """What a gather brought as it came, and of the one before as well: that goes when this is taken apart, or first."""
    both = gathered.gathered, before.gathered
    return sum(both) if sharding.holds_before else max(both)


def _at_end_of_layers(
    job: TrainingJob, sharding: Sharding | None, forward: Mapping[str, float], expert_parts: int
) -> float:
    """What is beside all that is kept, less what comes behind the layers; of a stage without a head nothing does."""
    there = before_loss(job, forward, expert_parts, messages=True) - sum(forward.values())
    return _gathered_last(sharding) + there * job.has_head


def _at_last_product(
    job: TrainingJob, sharding: Sharding, forward: Mapping[str, float], again: Mapping[str, float]
) -> float:
    """What the last feed-forward multiplies, and what that was made of, less what comes behind the layers.

    Of a layer that will be computed again nothing else has it; what was gathered last is there twice only now.
    """
    residual = job.residual_tokens * job.shape.hidden_size * job.compute_bytes
    passing = residual + sum(
        again.get(f"layer.feed_forward.{name}", 0.0) * (f"layer.feed_forward.{name}" not in forward)
        for name in ("input", "silu", "up", "product")
    )
    behind = sum(size for name, size in forward.items() if not name.startswith("layer."))
    return _gathered_last(sharding) + passing - behind


def _embedding(walk: Backward, job: TrainingJob, table: Weight, residual: float) -> None:
    """DTensor makes the gradient of a table that is cut over tp as if it were whole, and then takes its part."""
    when, whole = "backward of embedding", job.layout.tp * table.gradient
    if table.waits:
        walk.mark(when, whole)
        # the stream's gradient is through, and those that waited are added up before the table's part is taken
        walk.mark(when, whole + table.gradient - residual - walk.waiting)
        walk.alive += whole
        return
    walk.mark(when, whole + table.gradient * job.layout.uses("tp"))
    walk.alive += table.gradient
    if not _is_shared(job):
        walk.cast(when, table)


def _is_shared(job: TrainingJob) -> bool:
    """Whether one micro-batch uses a table at both ends: it has two gradients."""
    return job.shape.tied_embeddings and job.embeds and job.has_head


def _with_wide_table(root: Group, table: Weight, widened: float) -> Group:
    """What is around the layers, where the gradient of the table is in the dtype of the reduction already."""
    return root._replace(gradients=root.gradients + widened - table.gradient)


def _waits(job: TrainingJob, adds_up: bool) -> bool:
    """Whether the head's gradient of such a table waits for that of the look-up: autograd adds up the two first.

    A copy of the table adds what it gets to the gradient that is there (``_Rounded`` in ``model/rounded.py``).
    """
    return _is_shared(job) and not (adds_up and has_copy("embedding.weight", job))


def _widened(walk: Backward, when: str, weight: Weight) -> None:
    """The gradient of one use of a weight, cast on its way to where it is added to that of the other."""
    if not weight.sharded and weight.gradient != weight.kept:
        walk.alive += weight.kept
        walk.mark(when)
        walk.alive -= weight.gradient


def _both_gradients(walk: Backward, job: TrainingJob, table: Weight, in_chunks: bool, widened: float) -> None:
    """The sum of a shared table's two gradients, beside both of them."""
    if widened:
        walk.mark("backward of embedding", widened)
        walk.alive -= table.gradient
        return
    when, one = "backward of embedding", table.gradient if table.sharded else table.kept
    if table.waits:
        walk.mark(when, 2 * one)
        return
    if _waits(job, walk.adds_up):
        _widened(walk, when, table)
        walk.mark(when, one)
        walk.alive -= one * (1 + (walk.adds_up and not table.sharded))
        return
    if in_chunks:
        walk.mark(when, one)
        walk.alive -= one
    walk.cast(when, table)


def _fetched(walk: Backward, sharding: Sharding | None) -> float:
    """The last layer's weights on their way, which FSDP gathers again when backward begins."""
    if sharding is None or not sharding.frees or (sharding.by_stage and walk.adds_up):
        return 0.0
    return sum(group.gathered for group in sharding.layer)


def _loss_and_head(
    walk: Backward,
    job: TrainingJob,
    forward: Mapping[str, float],
    weights: Mapping[str, Weight],
    sharding: Sharding | None,
    in_norm: float,
) -> None:
    softmax, logits = forward["loss.log_softmax"], forward["loss.logits"]
    is_split = "loss.shifted" in forward
    keeps_output = job.layout.uses("pp")
    walk.alive -= forward["loss.logits_in_float32"] + forward.get("loss.shifted", 0.0) + logits * (not keeps_output)
    # of the loss with respect to the softmax, and to the logits; over split logits the exponentials are there, too
    walk.mark("backward of the loss", (3 if is_split else 2) * softmax)
    walk.alive += logits - softmax
    inside = Operator(("head.weight",), ("head.input",), ("head.input",), ("logits", "head.input"))
    sizes = {"head.input": forward["head.input"], "logits": logits}
    head = weights.get("head.weight") or weights["embedding.weight"]
    walk.operator(_sized("backward of head", inside, sizes, {"head.weight": head}), casts=not _waits(job, walk.adds_up))
    if _waits(job, walk.adds_up):
        _widened(walk, "backward of head", head)
    if sharding is not None and sharding.head.packed:
        _reduce_head(walk, sharding, beside=forward["head.input"] + _fetched(walk, sharding))
    walk.mark("backward of the norm", in_norm)
    walk.alive -= forward["norm.input"] + forward["norm.rstd"]


def _reduce_head(walk: Backward, sharding: Sharding, beside: float) -> None:
    walk.alive += beside
    walk.reduce("the reduction of the head", sharding.head, sharding)
    walk.alive -= beside


def _loss_in_chunks(
    walk: Backward,
    forward: Mapping[str, float],
    weights: Mapping[str, Weight],
    sharding: Sharding | None,
    in_norm: float,
    widened: float,
) -> None:
    """Its gradients are there with the loss; those of the weight and of what the norm gave it are only scaled."""
    head = weights.get("head.weight") or weights["embedding.weight"]
    made = forward["loss.head_gradient"]
    walk.alive -= forward["loss.parts"] + forward["head.input"]
    becomes = head.gradient if head.sharded else head.kept  # another tensor only where it has another dtype
    walk.mark("backward of the loss", becomes * (becomes != made) + widened)
    becomes = widened or becomes
    # that of a table that is the head's, too, is added to the look-up's gradient, when that is there
    stays = head.sharded or not walk.adds_up or "head.weight" not in weights
    walk.alive += becomes * stays - made
    if sharding is not None and sharding.head.packed:
        _reduce_head(walk, sharding, beside=0.0)
    walk.mark("backward of the norm", forward["head.input"])
    walk.alive -= forward["loss.input_gradient"]
    walk.mark("backward of the norm", in_norm)
    walk.alive -= forward["norm.input"] + forward["norm.rstd"]


def _layers(walk: Backward, job: TrainingJob, layer: _OneLayer, sharding: Sharding | None) -> None:
    """The first on the way back, the second, the one before the last, and the last.

    Only behind the first there is a buffer of a reduction, and only before the last a layer that is fetched. Between
    them as much comes and goes with each, so that most is there with the second or, where more comes than goes, with
    the one before the last.
    """
    if sharding is None:
        _alike(walk, job.num_layers, layer)
        return
    behind = min(job.num_layers, 3)
    for at in range(behind):
        start, before = walk.alive, len(walk.held)
        _layer(walk, layer, sharding, is_last=at == behind - 1)
        if at == 1 and job.num_layers > behind:
            _once_more(walk, before, (job.num_layers - behind) * (walk.alive - start))


def _alike(walk: Backward, num_layers: int, layer: _OneLayer) -> None:
    """Layers of which the last is as the first, but for what has come and gone before it."""
    start, before = walk.alive, len(walk.held)
    _layer(walk, layer, None, is_last=True)
    if num_layers > 1:
        _once_more(walk, before, (num_layers - 1) * (walk.alive - start))


def _once_more(walk: Backward, before: int, gone: float) -> None:
    """The moments since then again, when so much more has come, or gone."""
    walk.when += walk.when[before:]
    walk.held += [held + gone for held in walk.held[before:]]
    walk.alive += gone


class _OneLayer(NamedTuple):
    """One layer on its way back.

    Attributes
    ----------
    kept, used, again, unkept
        Bytes of all that is kept of it, of what of that is used up when the layer has been computed again, of all that
        is computed again, and of what of the latter is gone when its backward begins.
    experts
        Operators of one part of the micro-batch, where there are any.
    operators
        All others, in order.
    """

    kept: float
    used: float
    again: float
    unkept: float
    experts: Sequence[Sized]
    operators: Sequence[Sized]
    expert_parts: int


def _one_layer(
    job: TrainingJob,
    forward: Mapping[str, float],
    again: Mapping[str, float],
    weights: Mapping[str, Weight],
    expert_parts: int,
    attention_buffers: float,
) -> _OneLayer:
    kept = {name: size / job.num_layers for name, size in forward.items() if name.startswith("layer.")}
    repeated = {name: size for name, size in again.items() if name not in forward}
    unkept = sum(size for name, size in repeated.items() if name.startswith("again."))
    used = sum(forward[name] - size for name, size in again.items() if size < forward.get(name, 0.0))
    sizes = {name.removeprefix("sent."): size for name, size in repeated.items()} | kept
    of_part = {name: size / expert_parts for name, size in sizes.items() if name.startswith("layer.experts.")}
    experts = EXPERTS if EXPERTS[1].weights[0] in weights else ()
    return _OneLayer(
        kept=sum(kept.values()),
        used=used,
        again=sum(repeated.values()),
        unkept=unkept,
        experts=[
            _sized("backward of experts", operator, of_part, weights, _one_by_one(job, operator, weights))
            for operator in experts
        ],
        operators=[
            sized
            for when, operators in IN_ORDER
            if operators[0].weights[0] in weights
            for sized in (
                *(_sized(when, each, sizes, weights, attention_buffers * (each is ATTENTION[1])) for each in operators),
                Sized("backward of a norm", 0.0, 0.0, 0.0, (), _in_norm(job)),
            )
        ],
        expert_parts=expert_parts,
    )


def _one_by_one(job: TrainingJob, operator: Operator, weights: Mapping[str, Weight]) -> float:
    """The gradients of single experts, beside that of all: torch has no grouped product in float64."""
    is_alone = job.compute_bytes == 8
    return sum([weights[name].gradient for name in operator.weights if name in weights]) if is_alone else 0.0


def _in_norm(job: TrainingJob) -> float:
    """Bytes that a norm has in backward beside its input and its output's gradient: on a CPU it is no one kernel.

    They are in float32; where the arithmetic is not, the gradient is in it once more.
    """
    streams = 3 + (job.compute_bytes < 4) if job.device == "cpu" else 0
    return float(streams * job.residual_tokens * job.shape.hidden_size * max(4, job.compute_bytes))


def _in_last_norm(job: TrainingJob, residual: float) -> float:
    """The same of the norm behind the layers, where no gradient of the stream is there yet: with that which comes."""
    return _in_norm(job) + residual * (job.device == "cpu" and job.compute_bytes >= 4)


def _layer(walk: Backward, layer: _OneLayer, sharding: Sharding | None, is_last: bool) -> None:
    ahead = 0.0
    if sharding is not None and sharding.frees and not (sharding.by_stage and walk.adds_up):
        walk.mark("the gather of a layer", _gathered_last(sharding))
        ahead = 0.0 if is_last else sharding.layer[0].gathered
        walk.alive += sum(group.gathered for group in sharding.layer) + ahead
    walk.alive += layer.again - layer.used
    walk.mark("the last operator of a layer that is computed again" if layer.again else "backward of a layer")
    walk.alive -= layer.unkept
    walk.freed = layer.unkept + layer.used
    if layer.experts:
        _experts(walk, layer)
        if sharding is not None and len(sharding.layer) > 1:
            walk.reduce("the reduction of experts", sharding.layer[1], sharding)
    for operator in layer.operators:
        walk.operator(operator)
    walk.alive -= layer.kept + layer.again - walk.freed
    if sharding is not None:
        walk.reduce("the reduction of a layer", sharding.layer[0], sharding)
    walk.alive -= ahead


def _experts(walk: Backward, layer: _OneLayer) -> None:
    """Part by part; the gradients of all parts of a weight are added up before they are cast."""
    for part in range(layer.expert_parts):
        is_last = part == layer.expert_parts - 1
        for operator in layer.experts:
            walk.operator(operator, casts=False)
            for weight in operator.weights if part else ():
                walk.mark(operator.when, weight.gradient)
                walk.alive -= weight.gradient
            for weight in operator.weights if is_last else ():
                if not weight.rounded:
                    walk.cast(operator.when, weight)
    for operator in layer.experts:  # those that are rounded are rounded in one place for all
        for weight in operator.weights:
            if weight.rounded:
                walk.cast(operator.when, weight)
