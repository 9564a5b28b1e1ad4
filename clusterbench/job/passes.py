"""What a rank records of a training step in steps that are not timed. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clusterbench.run_folder.passes import Pass

AT_REST = " at rest"
"""Follows a category of :data:`MEMORY` for what is there between steps."""

RETRIES = "num_alloc_retries"
"""Stands among :data:`MEMORY` where CUDA's allocator counts how often it emptied its cache: no bytes."""

STATES = ("parameters", "gradients", "optimizer_state")
"""The categories of memory that are there between steps."""

CATEGORIES = (*STATES, "activations", "communication", "temporary")
"""What memory of a step is for, as figures stack it."""


@dataclass(frozen=True)
class Moved:
    """Collectives of one kind along one axis; ``traffic_bytes`` is size times bus factor, None where none is known."""

    axis: str
    op: str
    count: int
    size_bytes: int
    traffic_bytes: float | None


@dataclass(frozen=True)
class TracedLine:
    """The transfers of a traced step along one line of ranks, in their order.

    Attributes
    ----------
    first
        Global rank of the first member of the group.
    way
        Of the messages: which of the two ends this rank is, or a collective.
    exposed_s, duration_s
        Seconds that each transfer showed, and lasted.
    """

    axis: str
    first: int
    way: str
    exposed_s: Sequence[float]
    duration_s: Sequence[float]


@dataclass(frozen=True)
class TracedStep:
    """One traced step; the seconds are those of :class:`clusterbench.engine.trace.Exposure`.

    ``transfers`` is None in runs recorded before there were any.
    """

    communication_s: float
    compute_s: float
    exposed_s: float
    overlap_fraction: float | None
    step_s: float
    transfers: Sequence[TracedLine] | None = None


class Computed(NamedTuple):
    """One action of one pipeline rank as it was seen; seconds since the step began on this rank."""

    kind: str
    stage: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class ExpertLoad:
    """The experts of one rank in one step.

    Attributes
    ----------
    seconds
        By part (dispatch, experts, combine), of the forward passes of all layers.
    imbalance
        Rows of the fullest of this rank's experts over their mean, in the layer where it is largest.
    rows, expert_rows
        By layer: rows of all of this rank's experts together, and of each of them. Runs recorded earlier have none.
    """

    seconds: Mapping[str, float]
    imbalance: float
    rows: Sequence[int] = ()
    expert_rows: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Executed:
    """All calls of one operator that multiplies matrices, in forward or in backward.

    ``kind`` and ``during`` are names of :mod:`clusterbench.job.flops`; an operator of unknown kind counts no FLOPs.
    """

    operator: str
    kind: str
    during: str
    count: int
    flops: int


MEMORY: Pass[Mapping[str, int]] = Pass("memory", Mapping[str, int])
"""Peak bytes by category of :mod:`clusterbench.engine.memory`, their ``total``, and what is there between steps."""

TRAFFIC: Pass[Sequence[Moved]] = Pass("traffic", Sequence[Moved])
EXECUTED: Pass[Sequence[Executed]] = Pass("executed", Sequence[Executed])
TRACE: Pass[TracedStep] = Pass("exposed", TracedStep)
TIMELINE: Pass[Sequence[Computed]] = Pass("timeline", Sequence[Computed])
ATTENTION: Pass[float | None] = Pass("attention", float | None)
"""Seconds in the attention operators; None where they cannot be told apart."""

EXPERTS: Pass[ExpertLoad] = Pass("experts", ExpertLoad)

ON_ONE_RANK: Pass[Mapping[str, float]] = Pass("on_one_rank", Mapping[str, float])
"""What the job shows on one rank, by the names of evidence, with the ``seconds`` it took; empty on all ranks but 0."""

LATE_STEP: Pass[Mapping[str, float]] = Pass("late_step", Mapping[str, float])
"""A step behind the timed ones, and the same from its weights on one rank: ``loss`` and ``norm``, each with :data:`DUE`
behind it that of one rank; behind :data:`GRADIENT_OF` for each kind of weight how far its gradients are apart;
``num_updates`` before it, and ``seconds``. Empty on all ranks but 0, and where nothing can be concluded from it."""

DUE, GRADIENT_OF = " on one rank", "gradient of "


TOKEN_WAIT, TOKEN_READ = "token_wait", "token_read"
"""Among the samples of a step whose tokens are read while it is timed: seconds, call by call."""


def most_updates(num_layers: int, dtype: str) -> int:
    """After how many updates steps that compute the same may still be held against each other.

    What one update rounds the next ones go on from, and differences grow: by up to e with each update, where a model
    learns few tokens by heart. Of tp2+sp and one rank (128 tokens; models of 2 to 128 layers, 32 to 256 wide, dense,
    with experts and in float8) losses and norms in bfloat16 were at half of what is allowed after 9 updates of 4 layers
    and 5 of 8, and beyond it after 7 of these; of 16 to 128 layers at half after 4, and in float32 after 24.

    >>> most_updates(4, "bfloat16"), most_updates(80, "bfloat16"), most_updates(80, "float32")
    (8, 3, 16)
    """
    fewest, of_layers = {"float64": (_MOST, _MOST), "float32": (16, 128), "bfloat16": (3, 32)}[dtype]
    return min(_MOST, max(fewest, of_layers // num_layers))


_MOST = 32
"""Of more, how far rounding goes was not measured."""


def between(update: int, statistic: str) -> str:
    """How evidence is named of a step between the first and the last.

    >>> between(2, "loss")
    'update_2_loss'
    """
    return f"update_{update}_{statistic}"


def updates_between(name: str) -> int:
    """Of which step a name of :func:`between` speaks; 0 for other names.

    >>> updates_between("update_2_loss"), updates_between("update_bias"), updates_between("first_loss")
    (2, 0, 0)
    """
    found = _BETWEEN.fullmatch(name)
    return int(found[1]) if found else 0


PROJECTIONS = 8
"""Of the gradient of each kind of weight. Their root mean square is off by a quarter, one in three times."""


FIRST, LAST = "first", "last"
"""Of the gradients that are projected: those of the first step, and what the last one left of all in the means."""


def projection(kind: str, index: int, of: str = FIRST) -> str:
    """How evidence is named of a gradient of a kind of weight: its norm, then its projections.

    >>> projection("attention.key", 0), projection("attention.key", 2, LAST)
    ('first_gradient_of_attention.key_norm', 'last_gradient_of_attention.key_2')
    """
    return f"{of}_gradient_of_{kind}_{index or 'norm'}"


def kind_of_projection(name: str, of: str = "") -> str:
    """Of which kind of weight a name of :func:`projection` speaks; empty for other names, or those of another step.

    >>> kind_of_projection("first_gradient_of_attention.key_2"), kind_of_projection("first_norm")
    ('attention.key', '')
    """
    found = _PROJECTION.fullmatch(name)
    return found[2] if found and found[1].startswith(of) else ""


_PROJECTION = re.compile(rf"({FIRST}|{LAST})_gradient_of_(.+)_(?:norm|\d+)")
_BETWEEN = re.compile(r"update_(\d+)_(?:loss|norm)")
