"""How ranks share one training step: degrees of parallelism, what rides on them, and which rank sits where.

A layout is written ``pp2-dp4-tp8+sp+zero1``: axes in the order pp, dp, cp, tp, then riders after a plus in the order
sp, ep, zero. There is one spelling per layout, so that a row, a log and a suite can be joined by the text alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, prod
from typing import Any, Literal

from clusterbench.errors import LayoutError, nearest
from clusterbench.units import divisors, quotient
from clusterbench.words import short

AXES = ("pp", "dp", "cp", "tp")
"""Directions of the mesh, in the order in which a layout writes them."""

VIEWS = (
    "dp_cp",  # ranks with the same dense weights, where dp and cp are both in use
    "ep",  # ranks that share one set of experts
    "edp",  # ranks that hold copies of the same experts
    "ends",  # first and last stage of one pipeline; ranks of stages between them are in no such group
)
"""Groups of a layout's ranks that are no axis."""

SHARD, REPLICA = "shard", "replica"
"""Within a group of the data axis: ranks that share one copy of the weights, ranks with the same share of each copy."""

WORLD, UNKNOWN = "world", "?"
"""All ranks of a case, where the group is no axis of its layout; a group of which nothing is known."""

GROUPS = (*AXES, *VIEWS, SHARD, REPLICA, WORLD, UNKNOWN)
"""Every name under which the groups of a step are recorded."""

MOST_RANKS = 1_000_000

RANK_ORDERS: dict[str, tuple[str, ...]] = {
    # Inner to outer: ranks that differ in the first axis only are neighbours. Axes a framework lacks stand where they
    # leave its own order unchanged.
    # NVIDIA/Megatron-LM, megatron/core/parallel_state.py, initialize_model_parallel(order="tp-cp-ep-dp-pp").
    "megatron": ("tp", "cp", "dp", "pp"),
    # pytorch/torchtitan, torchtitan/distributed/parallel_dims.py: tp, cp, dp_shard, dp_replicate, pp.
    "torchtitan": ("tp", "cp", "dp", "pp"),
    # deepspeedai/DeepSpeed, deepspeed/runtime/pipe/topology.py, axes=["pipe", "data", "model"].
    "deepspeed": ("tp", "cp", "dp", "pp"),
    # huggingface/nanotron, src/nanotron/parallel/context.py, arange.reshape(ep, pp, dp, cp, tp).
    "nanotron": ("tp", "cp", "dp", "pp"),
    # huggingface/picotron, picotron/process_group_manager.py, view(dp, pp, cp, tp).
    "picotron": ("tp", "cp", "pp", "dp"),
    # Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2 and figure 5: "[TP, CP, PP, DP]".
    "llama3": ("tp", "cp", "pp", "dp"),
    # calculon-ai/calculon, calculon/llm/llm.py, Llm.Execution.get_peers_json: tp, pp, dp.
    "calculon": ("tp", "cp", "pp", "dp"),
}

_SEPARATORS = re.compile(r"[\s+,;/_-]+")
_PIECE = re.compile(r"([a-z]+)\s*[=:]?\s*([0-9]+|\*)?")


@dataclass(frozen=True)
class Rider:
    """A word behind the plus of a layout: ``sp`` alone, ``ep4`` and ``zero1`` with a number.

    Attributes
    ----------
    idle
        The value of a layout without it: False for a word that stands alone, otherwise a number.
    over, does
        Of a word that stands alone: the axis over whose ranks it goes, and what it does there.
    most, refusal
        The largest number, and what is said of others, with ``{}`` for the number.
    objection
        Why a layout cannot have it; None where it can. Asked where it is active.
    tried
        Its values in :func:`every_layout`, by the layout with the riders before it and the number of experts of the
        model.
    in_every_point
        Whether each point of a training case names it. The points of cases that are on record do; another rider is
        named where it is active, so that theirs keep their hash.
    """

    idle: bool | int
    over: str = ""
    does: str = ""
    most: int = MOST_RANKS
    refusal: str = ""
    objection: Callable[[ParallelLayout], str | None] = lambda layout: None
    tried: Callable[[ParallelLayout, int], Iterable[bool | int]] | None = None
    in_every_point: bool = False

    @property
    def stands_alone(self) -> bool:
        return self.idle is False

    def objection_to(self, name: str, layout: ParallelLayout) -> str | None:
        """Why a layout cannot have it where it is active, by what it needs or by :attr:`objection`."""
        if self.over and layout.degree(self.over) == 1:
            where = f"{self.does} over {self.over} ranks, but {self.over} is 1"
            return f"has +{name}, which {where}. Write {self.over}2 or more."
        return self.objection(layout)


def _rider(idle: bool | int, **more: Any) -> Any:
    """A field of a layout that is written behind the plus, by the name of the field."""
    return field(default=idle, metadata={"rider": Rider(idle, **more)})


def _objection_to_experts(layout: ParallelLayout) -> str | None:
    if (layout.dp * layout.cp * layout.tp) % layout.ep:
        stage = layout._equation(("dp", "cp", "tp"))
        return f"has ep{layout.ep}, which does not divide {stage} ranks of one pipeline stage."
    if layout.tp > 1 and not layout.sp:
        return f"has ep{layout.ep} with tp{layout.tp}; experts over tp ranks need '+sp': each token must be once."
    return None


def _powers_that_divide(number: int) -> list[int]:
    powers = (2**exponent for exponent in range(number.bit_length()))
    return [power for power in powers if number % power == 0]


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0


@dataclass(frozen=True)
class ParallelLayout:
    """Degrees of the four axes and the riders on them; always a legal one. A rider is added as a field.

    Parameters
    ----------
    pp, dp, cp, tp
        Ranks along the axis; their product is :attr:`world_size`.
    sp
        Megatron's sequence parallelism: norms and residuals split over the sequence within ``tp``.
    ep
        Ranks that share one set of experts. A second view of the ranks of one pipeline stage, so it multiplies nothing.
    zero
        ZeRO stage, 0 to 3.

    Raises
    ------
    LayoutError
        If a degree or a combination of riders is not possible.

    Examples
    --------
    >>> layout = ParallelLayout.parse("pp2-dp2-tp4+sp")
    >>> layout.world_size, layout.tp, layout.riders
    (16, 4, ('sp',))
    >>> str(ParallelLayout.parse("dp*-tp4", world_size=16))
    'dp4-tp4'
    """

    pp: int = 1
    dp: int = 1
    cp: int = 1
    tp: int = 1
    sp: bool = _rider(
        False,
        over="tp",
        does="splits the sequence",
        tried=lambda layout, num_experts: [layout.tp > 1] if _is_power(layout.tp) else [True, False],
        in_every_point=True,
    )
    ep: int = _rider(
        1,
        refusal=f"gives ep the degree {{}}; allowed are 1 to {MOST_RANKS}.",
        objection=_objection_to_experts,
        tried=lambda layout, num_experts: divisors(
            gcd(layout.dp * layout.cp * layout.tp, num_experts) if num_experts and layout.sp == (layout.tp > 1) else 1
        ),
        in_every_point=True,
    )
    zero: int = _rider(
        0,
        most=3,
        refusal="asks for ZeRO stage {}; allowed are zero1 (optimizer states), zero2 (and gradients), zero3 (and "
        "parameters), or none.",
        tried=lambda layout, num_experts: [0, 1, 3] if layout.dp * layout.cp > 1 else [0],
        in_every_point=True,
    )

    def __post_init__(self) -> None:
        for axis in AXES:
            degree = getattr(self, axis)
            if not 1 <= degree <= MOST_RANKS:
                raise self._error(f"gives {axis} the degree {short(str(degree))}; allowed are 1 to {MOST_RANKS}.")
        if self.world_size > MOST_RANKS:
            raise self._error(f"needs {self._equation(AXES)} ranks; allowed are at most {MOST_RANKS}.")
        for name, rider in RIDERS.items():
            if not rider.idle <= getattr(self, name) <= rider.most:
                raise self._error(rider.refusal.format(short(str(getattr(self, name)))))
        for name in self.riders:
            if (objection := RIDERS[name].objection_to(name, self)) is not None:
                raise self._error(objection)

    @classmethod
    def parse(cls, text: str, world_size: int | None = None) -> ParallelLayout:
        """The layout that ``text`` names.

        Parameters
        ----------
        text
            The canonical spelling; ``dp*`` stands for all ranks that the other axes leave.
        world_size
            Ranks there are. Read by ``dp*`` only: whether a layout without it fits the ranks is for the planner, which
            may leave some idle.

        Raises
        ------
        LayoutError
            If the text is not a layout, is one in another spelling, or has a ``dp*`` that does not come out even.

        Examples
        --------
        >>> ParallelLayout.parse("tp2-dp2")
        Traceback (most recent call last):
        ...
        clusterbench.errors.LayoutError: layout 'tp2-dp2' is written 'dp2-tp2'.
        """
        return _parsed(text, world_size)

    @classmethod
    def fitting(cls, text: str, world_size: int) -> ParallelLayout:
        """The layout on so many ranks; where ``dp*`` does not come out even, on the next number on which it does.

        For plans: that a layout needs more ranks than there are is then said of it as of any other.

        Examples
        --------
        >>> str(ParallelLayout.fitting("dp*-tp4", world_size=2)), str(ParallelLayout.fitting("dp*-tp4", world_size=6))
        ('tp4', 'dp2-tp4')
        """
        said = _degrees(text)
        others = prod(said.get(axis) or 1 for axis in ("pp", "cp", "tp"))
        # ep divides the ranks of a pipeline stage, so dp brings the factors of it that cp and tp lack
        ep, stage = said.get("ep") or 1, others // (said.get("pp") or 1)
        step = others * ep // gcd(ep, stage)
        return cls.parse(text, -(-world_size // step) * step)

    def __str__(self) -> str:
        return self._canonical

    def __hash__(self) -> int:
        return hash(self._canonical)

    @cached_property
    def _canonical(self) -> str:
        return self._text(dp=self.dp)

    def _text(self, dp: int | Literal["*"]) -> str:
        degrees = {"pp": self.pp, "dp": dp, "cp": self.cp, "tp": self.tp}
        axes = [f"{axis}{degree}" for axis, degree in degrees.items() if degree != 1] or ["tp1"]
        riders = (name if RIDERS[name].stands_alone else f"{name}{getattr(self, name)}" for name in self.riders)
        return "+".join(["-".join(axes), *riders])

    def _with(self, rider: str, value: bool | int) -> ParallelLayout:
        if value == getattr(self, rider):
            return self
        changed: dict[str, Any] = {rider: value}
        return replace(self, **changed)

    def _error(self, what: str) -> LayoutError:
        return LayoutError(f"layout '{short(str(self))}' {what}")

    def _equation(self, axes: tuple[str, ...]) -> str:
        return _equation({axis: self.degree(axis) for axis in axes})

    @property
    def world_size(self) -> int:
        """Ranks the layout needs."""
        return self.pp * self.dp * self.cp * self.tp

    @cached_property
    def riders(self) -> tuple[str, ...]:
        """Names of the active riders, in the order they are written."""
        return tuple(name for name, rider in RIDERS.items() if getattr(self, name) != rider.idle)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Those of more than one rank, in the order of ``AXES``.

        >>> ParallelLayout.parse("dp2-tp2+sp+ep2").axes
        ('dp', 'tp')
        """
        return tuple(axis for axis in AXES if self.uses(axis))

    @cached_property
    def columns(self) -> Mapping[str, bool | int]:
        """Degrees and riders by name, as a point of a training case has them.

        >>> ParallelLayout.parse("dp2+zero1").columns
        {'pp': 1, 'dp': 2, 'cp': 1, 'tp': 1, 'sp': False, 'ep': 1, 'zero': 1}
        """
        riders = (name for name, rider in RIDERS.items() if rider.in_every_point or name in self.riders)
        return {name: getattr(self, name) for name in (*AXES, *riders)}

    def apart_from(self, *names: str) -> tuple[object, ...]:
        """All axes and riders but the named ones: alike in two layouts that differ in those only.

        >>> layout = ParallelLayout.parse("dp2-tp4+sp")
        >>> layout.apart_from("tp", "sp") == ParallelLayout.parse("dp2-tp8").apart_from("tp", "sp")
        True
        """
        return tuple(getattr(self, name) for name in _MEMBERS if name not in names)

    @cached_property
    def sequence_parts(self) -> int:
        """Into how many parts tp ranks cut the sequence between the regions of split weights; 1 where each has all."""
        return self.tp if self.sp else 1

    @cached_property
    def spreads_experts(self) -> bool:
        """Whether the experts of a layer lie on several ranks."""
        return self.ep > 1

    @cached_property
    def shards_gradients(self) -> bool:
        """Whether ranks with the same weights keep a share of the gradients each, and so gather weights to compute."""
        return self.zero >= 2

    @property
    def shards_parameters(self) -> bool:
        """Whether they keep no more than that share of the weights beside computing, either."""
        return self.zero == 3

    @cached_property
    def of_micro_batch(self) -> ParallelLayout:
        """What of it decides what a rank computes of a micro-batch, and which activations that leaves.

        Not how states are shared, and not how many copies of the model there are, but as many as its experts are spread
        over.

        >>> str(ParallelLayout.parse("pp2-dp4-tp2+sp+zero3").of_micro_batch)
        'pp2-tp2+sp'
        >>> str(ParallelLayout.parse("pp2-dp8-tp2+sp+ep4+zero1").of_micro_batch)
        'pp2-dp2-tp2+sp+ep4'
        """
        return replace(self, dp=self.ep // gcd(self.ep, self.cp * self.tp), zero=0)

    @property
    def data_axis(self) -> str:
        """The axis along which ranks hold the same dense weights and see other tokens: dp, cp, or both as ``dp_cp``."""
        return "dp" if self.cp == 1 else "cp" if self.dp == 1 else "dp_cp"

    @cached_property
    def views(self) -> tuple[str, ...]:
        """Groups in use that are no axis: ``dp_cp``; the expert grid ``ep`` and ``edp`` (ranks with the same experts);
        ``ends``, the first and the last pipeline stage.

        >>> ParallelLayout.parse("pp2-dp2-cp2-tp2+sp+ep2").views
        ('dp_cp', 'ep', 'edp', 'ends')
        """
        used = {
            "dp_cp": self.dp > 1 and self.cp > 1,
            "ep": self.ep > 1,
            "edp": self.ep > 1 and self.degree("edp") > 1,
            "ends": self.pp > 1,
        }
        return tuple(view for view in VIEWS if used[view])

    def degree(self, axis: str) -> int:
        """Ranks along one axis, or in one group of a view.

        >>> ParallelLayout.parse("dp4-tp2+sp+ep4").degree("edp")
        2
        """
        if axis not in self._degrees:
            raise LayoutError(f"'{axis}' is not an axis of a layout.{nearest(axis, AXES)} Allowed: {', '.join(AXES)}.")
        return self._degrees[axis]

    @cached_property
    def _degrees(self) -> Mapping[str, int]:
        """Kept: a plan asks for them of each weight of each case, a million times for ``suites/top_configs.yaml``."""
        return {
            "pp": self.pp,
            "dp": self.dp,
            "cp": self.cp,
            "tp": self.tp,
            "dp_cp": self.dp * self.cp,
            "ep": self.ep,
            "edp": self.world_size // self.pp // self.ep,
            "ends": min(self.pp, 2),
        }

    def uses(self, name: str) -> bool:
        """Whether an axis has more than one rank, or a rider is active.

        >>> ParallelLayout.parse("dp2-tp2+sp").uses("sp"), ParallelLayout.parse("dp2-tp2+sp").uses("cp")
        (True, False)
        """
        return name in self.riders if name in RIDERS else self.degree(name) > 1

    def coordinates(self, rank: int, rank_order: str = "megatron") -> dict[str, int]:
        """Where a rank sits on each axis.

        >>> ParallelLayout(pp=4, dp=2, tp=2).coordinates(6)
        {'pp': 1, 'dp': 1, 'cp': 0, 'tp': 0}
        """
        if not 0 <= rank < self.world_size:
            raise self._error(f"has ranks 0 to {self.world_size - 1}, not {rank}.")
        coordinates = dict.fromkeys(AXES, 0)
        for axis in _order(rank_order):
            rank, coordinates[axis] = divmod(rank, getattr(self, axis))
        return coordinates

    def rank_of(self, coordinates: Mapping[str, int], rank_order: str = "megatron") -> int:
        """The rank at a place of the mesh; an axis that is left out is at 0.

        >>> ParallelLayout(pp=4, dp=2, tp=2).rank_of({"pp": 1, "dp": 1})
        6
        """
        for axis, coordinate in coordinates.items():
            if not 0 <= coordinate < self.degree(axis):
                raise self._error(f"has {axis} coordinates 0 to {self.degree(axis) - 1}, not {coordinate}.")
        strides = zip(AXES, self._strides(rank_order), strict=True)
        return sum(stride * coordinates.get(axis, 0) for axis, stride in strides)

    def groups(self, axis: str, rank_order: str = "megatron") -> list[list[int]]:
        """Ranks that share all coordinates but one, each group in the order of that axis, groups by their first rank.

        Of a view (:attr:`views`), its groups.

        >>> ParallelLayout(pp=4, dp=2, tp=2).groups("pp")
        [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
        >>> ParallelLayout.parse("dp4-tp2+sp+ep4").groups("edp")
        [[0, 4], [1, 5], [2, 6], [3, 7]]
        """
        if axis == "ep":
            return self.expert_groups(rank_order)
        if axis == "edp":
            stages: dict[int, list[list[int]]] = {}
            for group in self.expert_groups(rank_order):
                stages.setdefault(self.coordinates(group[0], rank_order)["pp"], []).append(group)
            return sorted(list(copies) for groups in stages.values() for copies in zip(*groups, strict=True))
        if axis == "ends":
            return sorted([pipeline[0], pipeline[-1]] for pipeline in self.groups("pp", rank_order))
        if axis == "dp_cp":
            of_pp, of_dp, of_cp, of_tp = self._strides(rank_order)
            first = [dp * of_dp + cp * of_cp for dp, cp in product(range(self.dp), range(self.cp))]
            return sorted(
                [rank + pp * of_pp + tp * of_tp for rank in first] for pp, tp in product(range(self.pp), range(self.tp))
            )
        degree = self.degree(axis)
        stride = 1
        for inner in _order(rank_order):
            if inner == axis:
                break
            stride *= self.degree(inner)
        firsts = (rank for rank in range(self.world_size) if rank // stride % degree == 0)
        return [[first + stride * place for place in range(degree)] for first in firsts]

    def members(self, axis: str, rank_order: str = "megatron") -> Sequence[int]:
        """The group of rank 0 along an axis or a view, without working out the others.

        >>> ParallelLayout(pp=4, dp=2, tp=2).members("pp")
        range(0, 16, 4)
        >>> ParallelLayout.parse("dp4-tp2+sp+ep4").members("edp")
        [0, 4]
        """
        strides = dict(zip(AXES, self._strides(rank_order), strict=True))
        if axis in AXES:
            return range(0, strides[axis] * self.degree(axis), strides[axis])
        if axis == "ends":
            return [0, strides["pp"] * (self.pp - 1)]
        cut = {"dp_cp": ("dp", "cp")}.get(axis, ("dp", "cp", "tp"))
        places = product(*(range(self.degree(name)) for name in cut))
        ranks = [sum(strides[name] * at for name, at in zip(cut, place, strict=True)) for place in places]
        if axis == "dp_cp":
            return sorted(ranks)
        return ranks[: self.ep] if axis == "ep" else ranks[:: self.ep]

    def expert_groups(self, rank_order: str = "megatron") -> list[list[int]]:
        """Ranks that share one set of experts: ``ep`` consecutive ones of a pipeline stage, in the order tp, cp, dp.

        Notes
        -----
        As in Megatron-Core with expert-tp 1, this is a second view of the same ranks, and not a factor of the dense
        mesh. nanotron makes ep the outermost axis instead; that arrangement cannot be expressed here.

        >>> ParallelLayout.parse("pp2-dp2-tp2+sp+ep4").expert_groups()
        [[0, 1, 2, 3], [4, 5, 6, 7]]
        """
        groups = []
        of_pp, of_dp, of_cp, of_tp = self._strides(rank_order)
        for stage in range(self.pp):
            places = product(range(self.dp), range(self.cp), range(self.tp))
            ranks = [stage * of_pp + dp * of_dp + cp * of_cp + tp * of_tp for dp, cp, tp in places]
            groups += [ranks[start : start + self.ep] for start in range(0, len(ranks), self.ep)]
        return sorted(groups)

    def mesh_ranks(self, rank_order: str = "megatron") -> list[list[list[list[int]]]]:
        """Ranks as a nested list indexed ``[pp][dp][cp][tp]``, as a DeviceMesh takes them.

        >>> ParallelLayout(pp=2, tp=2).mesh_ranks()
        [[[[0, 1]]], [[[2, 3]]]]
        """
        of_pp, of_dp, of_cp, of_tp = self._strides(rank_order)

        def along_tp(first: int) -> list[int]:
            return [first + tp * of_tp for tp in range(self.tp)]

        return [
            [[along_tp(pp * of_pp + dp * of_dp + cp * of_cp) for cp in range(self.cp)] for dp in range(self.dp)]
            for pp in range(self.pp)
        ]

    def _strides(self, rank_order: str) -> tuple[int, ...]:
        """How far ranks are apart that are neighbours on each of ``AXES``."""
        strides, stride = {}, 1
        for axis in _order(rank_order):
            strides[axis] = stride
            stride *= self.degree(axis)
        return tuple(strides[axis] for axis in AXES)


_MEMBERS = tuple(each.name for each in fields(ParallelLayout))

RIDERS: Mapping[str, Rider] = {
    each.name: each.metadata["rider"] for each in fields(ParallelLayout) if "rider" in each.metadata
}
"""By name, in the order in which they are written."""

FOLLOWS_LAYOUT = frozenset(("layout", "gradient_accumulation_steps", "num_microbatches", *AXES, *RIDERS))
"""What a point says of its layout once more, or what follows from it, so that it does not tell two workloads apart."""

_WORDS = ", ".join(f"+{name}{'' if rider.stands_alone else 'N'}" for name, rider in RIDERS.items())
_ALLOWED = f"Allowed are the axes {', '.join(AXES)} with a degree, then {_WORDS}: 'pp2-dp4-tp8+sp+zero1'."


@lru_cache(maxsize=64)  # a plan asks for every shape
def every_layout(
    world_size: int, num_experts: int = 0, ranks_per_node: int = 1, seq_len: int = 0
) -> Sequence[ParallelLayout]:
    """All layouts on exactly so many ranks of the degrees with which models are trained.

    On a power of two of ranks these are powers of two. Other numbers have pp of every divisor, as layers need not come
    out even over stages, and tp of those of a node, too; cp stays a power of two, as lengths of sequences are; dp takes
    what is left.

    With tp there is +sp, which costs nothing and saves memory; a tp that is no power of two comes without it as well,
    as it may divide no sequence. Ranks that hold the same weights share them as ZeRO 0, 1 and 3 say; experts are on
    every rank of a stage, or spread over as many ranks as divide their number. Those with fewer pipeline stages and
    fewer ranks of cp and tp come first. Where ``seq_len`` is said, a tp that does not divide it comes without +sp.

    >>> [str(layout) for layout in every_layout(2)]
    ['dp2', 'dp2+zero1', 'dp2+zero3', 'tp2+sp', 'cp2', 'cp2+zero1', 'cp2+zero3', 'pp2']
    >>> [str(layout) for layout in every_layout(2, num_experts=8) if layout.ep > 1]
    ['dp2+ep2', 'dp2+ep2+zero1', 'dp2+ep2+zero3', 'tp2+sp+ep2', 'cp2+ep2', 'cp2+ep2+zero1', 'cp2+ep2+zero3']
    >>> [str(layout) for layout in every_layout(3)], str(every_layout(3, ranks_per_node=3)[3])
    (['dp3', 'dp3+zero1', 'dp3+zero3', 'pp3'], 'tp3+sp')
    >>> [str(layout) for layout in every_layout(2, seq_len=1001) if layout.tp > 1]
    ['tp2+sp', 'tp2']
    """
    layouts: list[ParallelLayout] = []
    for pp, cp, tp in product(
        divisors(world_size), _powers_that_divide(world_size), _of_tp(world_size, ranks_per_node)
    ):
        if world_size % (pp * cp * tp) == 0:
            ridden = [ParallelLayout(pp=pp, dp=world_size // (pp * cp * tp), cp=cp, tp=tp)]
            for name, rider in RIDERS.items():
                if rider.tried:
                    ridden = [each._with(name, value) for each in ridden for value in rider.tried(each, num_experts)]
            if seq_len % (cp * tp):
                ridden += [each._with("sp", False) for each in ridden if each.sp and each.ep == 1]
            layouts += dict.fromkeys(ridden)
    return tuple(layouts)


def _of_tp(world_size: int, ranks_per_node: int) -> list[int]:
    """Powers of two, and what cuts a node evenly: between nodes tp is slow.

    >>> _of_tp(24, 6), _of_tp(24, 8)
    ([1, 2, 3, 4, 6, 8], [1, 2, 4, 8])
    """
    return sorted({*_powers_that_divide(world_size), *divisors(gcd(world_size, ranks_per_node))})


@lru_cache(maxsize=2**16)  # plans and reports ask again for every case and figure
def _parsed(text: str, world_size: int | None) -> ParallelLayout:
    said = _degrees(text)
    takes_rest = "dp" in said and said["dp"] is None
    degrees: dict[str, Any] = {
        name: _ranks_left(text, said, world_size) if degree is None else degree for name, degree in said.items()
    }
    layout = ParallelLayout(**degrees)
    canonical = layout._text(dp="*" if takes_rest else layout.dp)
    if text != canonical:
        raise LayoutError(f"layout '{text}' is written '{canonical}'.")
    return layout


def _degrees(text: str) -> dict[str, int | None]:
    """What each piece of a layout's text says, in whatever order it is written; None stands for ``dp*``."""
    degrees: dict[str, int | None] = {}
    for piece in filter(None, _SEPARATORS.split(text.strip().lower())):
        name, degree = _piece(text, piece)
        if name in degrees:
            raise LayoutError(f"layout '{short(text)}' says {name} twice.")
        degrees[name] = degree
    if not degrees:
        raise LayoutError(f"layout '{short(text)}' is empty; one rank alone is written 'tp1'. {_ALLOWED}")
    return degrees


def _piece(text: str, piece: str) -> tuple[str, int | None]:
    where = f"layout '{short(text)}': "
    match = _PIECE.fullmatch(piece)
    if match is None:
        raise LayoutError(f"{where}'{short(piece)}' cannot be read. {_ALLOWED}")
    name, number = match.groups()
    if name not in AXES and name not in RIDERS:
        raise LayoutError(f"{where}unknown name '{short(name)}'.{nearest(name, (*AXES, *RIDERS))} {_ALLOWED}")
    if number == "*":
        if name != "dp":
            raise LayoutError(f"{where}'{piece}' is not possible; only 'dp*' takes the ranks that are left.")
        return name, None
    if name in RIDERS and RIDERS[name].stands_alone:
        if number is not None:
            goes = f"{name} goes over all {RIDERS[name].over} ranks"
            raise LayoutError(f"{where}'{short(piece)}' has a number, but {goes}. Write '+{name}'.")
        return name, True
    if number is None:
        raise LayoutError(f"{where}'{name}' lacks its number, as in '{name}2'.")
    if len(number.lstrip("0")) > len(str(MOST_RANKS)):  # int() of thousands of digits raises an error of its own
        raise LayoutError(f"{where}'{short(piece)}' is too large; allowed are at most {MOST_RANKS} ranks.")
    return name, int(number)


def _ranks_left(text: str, degrees: Mapping[str, int | None], world_size: int | None) -> int:
    if world_size is None:
        raise LayoutError(
            f"layout '{text}' takes the ranks that are left, but how many ranks there are is not known here."
        )
    others = {axis: degrees.get(axis, 1) or 0 for axis in ("pp", "cp", "tp")}
    ranks = prod(others.values())
    if ranks == 0:
        return 1  # a degree of 0 is refused with its own message
    if world_size < ranks or world_size % ranks:
        raise LayoutError(
            f"layout '{short(text)}' leaves no whole number of ranks to dp: "
            f"{world_size} ranks / ({_equation(others)}) = {quotient(world_size, ranks)}."
        )
    return world_size // ranks


def _equation(degrees: Mapping[str, int]) -> str:
    """``pp2 x tp4 = 8``; axes of degree 1 are left out."""
    factors = [f"{axis}{degree}" for axis, degree in degrees.items() if degree != 1]
    return f"{' x '.join(factors) or 'tp1'} = {prod(degrees.values())}"


def _order(rank_order: str) -> tuple[str, ...]:
    if rank_order not in RANK_ORDERS:
        allowed = ", ".join(RANK_ORDERS)
        raise LayoutError(f"unknown rank order '{rank_order}'.{nearest(rank_order, RANK_ORDERS)} Allowed: {allowed}.")
    return RANK_ORDERS[rank_order]
