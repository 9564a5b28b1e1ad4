"""What the formulas say of the ranks of one step: worked out once for all cases that differ in their seed alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from clusterbench.expected.flops import Work, executed_by_all, executed_by_rank, routed_kind
from clusterbench.expected.memory import held_memory, not_predicted
from clusterbench.job import TrainingJob, kept_bytes
from clusterbench.parallel import Parallelism, Traffic, active_in, expected_traffic, held_weights, of_kind, part_of
from clusterbench.parallel.fsdp import FullySharded
from clusterbench.types import Case, Expected, split_key


@dataclass(frozen=True)
class StepFormulas:
    """One step: ``parallelisms`` are all, with their options, of which those count that are active in the job's layout.

    Each figure is worked out when it is asked for. ``predict`` gives what a plan of today expects of the step.
    """

    job: TrainingJob
    parallelisms: tuple[Parallelism, ...]
    rank_order: str = "megatron"
    predict: Callable[[], Mapping[str, Expected]] = field(default=dict, compare=False)

    def are_of_another_step(self, case: Case, *metrics: str) -> bool:
        """Whether the plan of a case expects other figures than these: another version planned it, and ran its step.

        What is worked out here for single ranks says nothing of that step then; the plan's own figures do.
        """
        planned, today = (
            {key: of.value for key, of in expected.items() if split_key(key)[0] in metrics}
            for expected in (case.expected, self._predicted)
        )
        return bool(today) and planned != today

    @cached_property
    def _predicted(self) -> Mapping[str, Expected]:
        return self.predict()

    @cached_property
    def active(self) -> tuple[Parallelism, ...]:
        """The parallelisms that do something, in the order in which they are applied."""
        return tuple(active_in(self.job.layout, self.parallelisms))

    @cached_property
    def parts(self) -> Sequence[TrainingJob]:
        """The job of the ranks of each stage."""
        return [part_of(self.job, self.active, pp_rank) for pp_rank in range(self.job.layout.pp)]

    @cached_property
    def places(self) -> Sequence[tuple[int, int]]:
        """Where each rank sits along pp and cp."""
        layout = self.job.layout
        coordinates = (layout.coordinates(rank, self.rank_order) for rank in range(layout.world_size))
        return [(at["pp"], at["cp"]) for at in coordinates]

    @cached_property
    def ranks_of_stages(self) -> Sequence[Sequence[int]]:
        """The ranks of each stage."""
        return [
            [rank for rank, (pp_rank, _) in enumerate(self.places) if pp_rank == stage]
            for stage in range(self.job.layout.pp)
        ]

    @cached_property
    def executed(self) -> Sequence[Mapping[Work, int]]:
        """FLOPs of each rank by kind of operators."""
        of_place = {
            (pp_rank, cp_rank): dict(executed_by_rank(self.active, self.parts[pp_rank], cp_rank))
            for pp_rank, cp_rank in dict.fromkeys(self.places)
        }
        return [of_place[place] for place in self.places]

    @cached_property
    def executed_by_all(self) -> Mapping[Work, int]:
        """FLOPs of all ranks together, from the whole model's shape."""
        return dict(executed_by_all(self.active, self.job))

    @cached_property
    def routed_kind(self) -> str:
        """The kind of operators of which a router decides how much a rank executes; empty where it is known."""
        return routed_kind(self.active, self.job)

    @cached_property
    def multiplies_by_itself(self) -> bool:
        """Whether a parallelism multiplies batches of matrices of its own, of which no counter sees all."""
        return any(parallelism.multiplies for parallelism in self.active)

    @cached_property
    def sent(self) -> Sequence[Mapping[str, float]]:
        """Bytes times bus factor along each axis of the first ranks of each stage."""
        stages = []
        for part in self.parts:
            sizes: dict[str, float] = {}
            for sent in expected_traffic(self.active, part):
                sizes[sent.axis] = sizes.get(sent.axis, 0.0) + sent.bytes_on_link(self.job.layout)
            stages.append(sizes)
        return stages

    @cached_property
    def less_sent(self) -> Sequence[Mapping[str, float]]:
        """Bytes times bus factor along each axis that a rank sends less of than the first ones of its stage.

        FSDP leaves the last of the ranks that share a weight fewer rows of it, or none, where these do not come out
        even: of gradients that are summed when backward is over they have less.
        """
        layout, sharded = self.job.layout, of_kind(FullySharded, self.active)
        if sharded is None:
            return [{}] * layout.world_size
        others = [each for each in self.active if each is not sharded]
        held = [held_weights(others, part) for part in self.parts]

        @cache
        def of_place(stage: int, place: int) -> Mapping[str, float]:
            less = Counter[str]()
            for weight, number in held[stage]:
                for axis in weight.summed_over:
                    less[axis] += number * sharded.lacking(weight.size, self.job, place)
            each = kept_bytes("norm.weight", self.job)
            of_axes = (Traffic(axis, "all_reduce", 1, numel * each) for axis, numel in less.items())
            return {sent.axis: sent.bytes_on_link(layout) for sent in of_axes}

        at = (layout.coordinates(rank, self.rank_order) for rank in range(layout.world_size))
        return [of_place(place["pp"], place["dp"] * layout.cp + place["cp"]) for place in at]

    @cached_property
    def calls(self) -> Sequence[Mapping[tuple[str, str], int]]:
        """Collectives by axis and kind of a rank of each stage."""
        return [
            {(sent.axis, sent.op): sent.count for sent in expected_traffic(self.active, part)} for part in self.parts
        ]

    @cached_property
    def routed_axes(self) -> frozenset[str]:
        """Axes along which a router decides how much is sent."""
        return frozenset(axis for parallelism in self.active for axis in parallelism.traffic_basis(self.job))

    @cached_property
    def joined_calls(self) -> Mapping[tuple[str, str], tuple[float, float]]:
        """By axis and kind of collectives of which torch decides how many carry the bytes: how many fewer, and more."""
        may = dict[tuple[str, str], tuple[float, float]]()
        for joined in (joined for parallelism in self.active for joined in parallelism.joins_calls(self.job)):
            fewer, more = may.get(joined[:2], (0.0, 0.0))
            may[joined[:2]] = max(fewer, joined.fewer), max(more, joined.more)
        return may

    @cached_property
    def held(self) -> Sequence[Mapping[str, float]]:
        """Bytes on the fullest rank of each stage by category, and in all."""
        return [held_memory(self.active, part) for part in self.parts]

    @cached_property
    def not_predicted(self) -> Mapping[str, str]:
        """Categories of memory of which nothing is predicted, each with the reason."""
        return not_predicted(self.job, self.active)
