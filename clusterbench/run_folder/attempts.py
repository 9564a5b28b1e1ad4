"""A case with its attempts, and a run as it was read."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from clusterbench.formulas.statistics import coefficient_of_variation, median
from clusterbench.run_folder.passes import OWN_SECONDS
from clusterbench.types import PROOF_TIME, SAMPLES, Case, Observation, Outcome, Plan, Timing

FAULTS = ("wrong", "failed", "timeout", "out_of_memory")
"""Ways to end that are a failure of the run, unless the suite expected them."""

WITHOUT_MACHINE = ("imported", "dry_step")
"""Benchmarks whose figures come from elsewhere than the machine of their run."""

_WEIGHT = {"ok": 1, "wrong": 2}
"""Of attempts at one repeat the heaviest decides; all others weigh nothing."""

NOT_RUN = "not_run"
"""The status of a case without any outcome yet."""

UNSTABLE_MAX_OVER_MEDIAN = 1.5  # nccl-tests' second threshold, beside a coefficient of variation of 5 %

SHORTEST_S, LONGEST_S = 1e-12, 1e9
"""No iteration is shorter (light travels a third of a millimetre) or longer (thirty years)."""


class Spread(NamedTuple):
    """How far the iterations of a case differ, all repeats together."""

    num_iterations: int
    median_s: float
    cv: float
    max_over_median: float


@dataclass(frozen=True)
class History:
    """One case with all its attempts, and the observations of those that ended ``ok``.

    Attributes
    ----------
    outcomes
        In order of time.
    observations
        At most one a repeat: of its last attempt that ended ``ok`` and left a whole record.
    """

    case: Case
    outcomes: tuple[Outcome, ...] = ()
    observations: tuple[Observation, ...] = ()

    @cached_property
    def deciding(self) -> tuple[Outcome, ...]:
        """One outcome a repeat: its last good attempt, or its last one; a wrong one in any case.

        A failed attempt never hides a good one, and no other hides that a result was wrong.
        """
        last: dict[int, Outcome] = {}
        for outcome in self.outcomes:
            before = last.get(outcome.repeat)
            if before is None or _WEIGHT.get(outcome.status, 0) >= _WEIGHT.get(before.status, 0):
                last[outcome.repeat] = outcome
        return tuple(last.values())

    @cached_property
    def outcome(self) -> Outcome | None:
        """Outcome of the case as a whole: of a good repeat if there is one, otherwise the last fault."""
        good = tuple(outcome for outcome in self.deciding if outcome.status == "ok")
        return (good or self.deciding or (None,))[-1]

    @cached_property
    def copies(self) -> Mapping[str, tuple[Observation, ...]]:
        """The observations of each copy of the package that made some; the one that made the latest is the last."""
        made_by = {(ended.repeat, ended.attempt): ended.copy for ended in self.outcomes}
        latest = {ended.copy: place for place, ended in enumerate(self.outcomes) if ended.status == "ok"}
        by_copy: dict[str, list[Observation]] = {}
        for seen in self.observations:
            by_copy.setdefault(made_by.get((seen.repeat, seen.attempt), ""), []).append(seen)
        return {copy: tuple(by_copy[copy]) for copy in sorted(by_copy, key=lambda copy: latest.get(copy, -1))}

    @property
    def ran_here(self) -> bool:
        """Whether the machine of the run did anything for it, of which something could be said."""
        return self.case.benchmark not in WITHOUT_MACHINE

    @property
    def status(self) -> str:
        return self.outcome.status if self.outcome else NOT_RUN

    def refuted(self, why: str) -> History:
        """The same with its good attempts found wrong afterwards: there is no figure of them."""
        outcomes = tuple(
            replace(outcome, status="wrong", reason=why) if outcome.status == "ok" else outcome
            for outcome in self.outcomes
        )
        return History(self.case, outcomes)

    @cached_property
    def faults(self) -> tuple[Outcome, ...]:
        """Repeats that ended badly, and for which the suite did not ask to."""
        return tuple(
            outcome
            for outcome in self.deciding
            if outcome.status in FAULTS and outcome.status not in self.case.expected_outcomes
        )

    @property
    def num_repeats(self) -> int:
        """How many were to be run, or more of a list that was run for a time."""
        return max(1, self.case.repeats, len(self.deciding))

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to run: each repeat was measured, or one ended as repeating it cannot change.

        Where some were measured, what another was skipped for can: it is of the host that took a place.
        """
        otherwise = {outcome.status for outcome in self.deciding} - {"ok"}
        if otherwise and not (otherwise == {"skipped"} and self.observations):
            return True
        return len(self.observations) >= max(1, self.case.repeats)

    @property
    def by_hosts(self) -> tuple[History, ...]:
        """The same once for each row of hosts that repeats ran on: of most repeats first, of as many the later.

        A host that is lost is replaced, and what ranks of one number did in two places is of two hosts.
        """
        return (self,) if len(self.observations) == 1 else self._by_several_hosts  # kept, it would hold itself for good

    @cached_property
    def _by_several_hosts(self) -> tuple[History, ...]:
        rows: dict[tuple[str, ...], list[Observation]] = {}
        for observation in self.observations:
            rows.setdefault(observation.hosts, []).append(observation)
        most_first = sorted(rows.values(), key=lambda same: (len(same), same[-1].repeat), reverse=True)
        return tuple(History(self.case, self.outcomes, tuple(same)) for same in most_first)

    @cached_property
    def pooled(self) -> Observation | None:
        """All good repeats on the first of :attr:`by_hosts` as one: samples one after the other.

        Ranks' seconds of own work are joined, as well. Evidence and other passes are those of the last repeat that has
        them, on whichever hosts: they are the same in every repeat, and taken once.
        """
        if len(self.observations) < 2:
            return self.observations[0] if self.observations else None
        joined = self.by_hosts[0].observations
        last = joined[-1]
        passes: dict[str, Sequence[Any]] = {}
        for observation in self.observations:
            passes.update(observation.passes)
        if SAMPLES in passes:
            passes[SAMPLES] = [self._samples_of(rank, joined) for rank in range(self.case.world_size)]
        if OWN_SECONDS.name in passes:
            passes[OWN_SECONDS.name] = self._own_seconds(joined)
        return Observation(
            case=last.case,
            hash=last.hash,
            repeat=last.repeat,
            attempt=last.attempt,
            hosts=last.hosts,
            seconds=[
                [second for observation in joined for second in observation.seconds[rank]]
                for rank in range(self.case.world_size)
            ],
            evidence=self._evidence(),
            passes=passes,
            telemetry=last.telemetry,
            timing=self._timing(joined),
        )

    @property
    def times_s(self) -> list[float]:
        """Seconds of each iteration that is pooled, repeat after repeat."""
        return iteration_times(self.pooled) if self.pooled else []

    @cached_property
    def spread(self) -> Spread | None:
        """None where nothing was measured."""
        times_s = self.times_s
        if not times_s:
            return None
        median_s = median(times_s)
        return Spread(len(times_s), median_s, coefficient_of_variation(times_s), max(times_s) / median_s)

    @staticmethod
    def _timing(repeats: Sequence[Observation]) -> Sequence[Timing]:
        """When the last repeat was timed, with the warm-up that settled least and the bursts of all; all or nothing."""
        if not all(observation.timing for observation in repeats):
            return []
        return [_joined(of_rank) for of_rank in zip(*(seen.timing for seen in repeats), strict=True)]

    def _evidence(self) -> Sequence[Mapping[str, float]]:
        """Of each kind that of the last repeat that has it; what proving took is of all of them."""
        proven = [observation.evidence for observation in self.observations if observation.evidence]
        pooled = [dict(ChainMap(*of_rank[::-1])) for of_rank in zip(*proven, strict=True)]
        for rank, own in enumerate(pooled):
            if PROOF_TIME in own:
                own[PROOF_TIME] = sum(of_repeat[rank].get(PROOF_TIME, 0.0) for of_repeat in proven)
        return pooled

    @staticmethod
    def _own_seconds(repeats: Sequence[Observation]) -> Sequence[Sequence[float]]:
        every = [seconds for seconds in map(OWN_SECONDS.readable, repeats) if seconds]
        return [[second for of_repeat in of_rank for second in of_repeat] for of_rank in zip(*every, strict=True)]

    def _samples_of(self, rank: int, repeats: Sequence[Observation]) -> dict[str, list[float]]:
        pooled: dict[str, list[float]] = {}
        for observation in repeats:
            for key, values in observation.passes.get(SAMPLES, ({},) * self.case.world_size)[rank].items():
                pooled.setdefault(key, []).extend(values)
        return pooled


def _joined(repeats: Sequence[Timing]) -> Timing:
    """Of one rank."""
    warm_ups = [timing.warm_up for timing in repeats if timing.warm_up is not None]
    if len(warm_ups) < len(repeats):
        return replace(repeats[-1], warm_up=None)
    worst = max(warm_ups, key=lambda own: (not own.is_settled, own.drift))
    burst_s = [second for warm_up in warm_ups for second in warm_up.burst_s]
    return replace(repeats[-1], warm_up=replace(worst, burst_s=burst_s))


def unrecorded(plan: Plan, outcomes: Iterable[Outcome], observations: Iterable[Observation]) -> set[tuple[str, int]]:
    """The repeats that ended well and of which no record can be used, each by its case's hash and its number."""
    cases = {case.hash: case for case in plan.cases}
    ended = {(good.hash, good.repeat, good.attempt) for good in outcomes if good.status == "ok" and good.hash in cases}
    recorded = {
        (seen.hash, seen.repeat)
        for seen in observations
        if (seen.hash, seen.repeat, seen.attempt) in ended and not why_unusable(cases[seen.hash], seen)
    }
    return {(hash, repeat) for hash, repeat, _ in ended} - recorded


def why_unusable(case: Case, observation: Observation) -> str:
    """Why a record cannot be used; empty when all ranks left the same number of plausible samples.

    A case passed if every rank's record is whole, whatever an exit code said.
    """
    lengths = {len(samples) for samples in observation.seconds}
    if len(observation.seconds) != case.world_size:
        return f"the record holds {len(observation.seconds)} ranks, but the case ran on {case.world_size}"
    if len(lengths) != 1 or 0 in lengths:
        return (
            f"ranks left {min(lengths, default=0)} to {max(lengths, default=0)} samples each; every rank must leave as "
            "many, and at least one"
        )
    for samples in observation.seconds:
        for second in samples:
            if not SHORTEST_S <= second <= LONGEST_S:
                return "the record holds a time that is not a positive number" + _beyond(second)
    if not observation.hosts:
        return "the record does not say on which hosts the case ran"
    for name, ranks in {"evidence": observation.evidence, "timing": observation.timing, **observation.passes}.items():
        if ranks and len(ranks) != case.world_size:
            return f"the record holds '{name}' of {len(ranks)} ranks, but the case ran on {case.world_size}"
    for of_rank in observation.passes.get(SAMPLES, ()):
        if not isinstance(of_rank, Mapping) or not all(map(_are_figures, of_rank.values())):
            return f"the record holds {of_rank!r:.60} as samples; they are lists of numbers by name"
    for gpu in (gpu for gpus in observation.telemetry.values() for gpu in gpus.values()):
        reasons = gpu.get("throttle_reasons") or {}
        if not isinstance(reasons, Mapping) or not all(isinstance(share, (int, float)) for share in reasons.values()):
            return f"the record holds {reasons!r:.60} as the reasons for lowered clocks"
        grown = gpu.get("grown") or {}
        if not isinstance(grown, Mapping) or not all(isinstance(count, int) for count in grown.values()):
            return f"the record holds {grown!r:.60} as what counters of a GPU grew by"
    return ""


def _are_figures(values: object) -> bool:
    if not isinstance(values, list) or not values:
        return False
    return all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)


def _beyond(second: float) -> str:
    """What the number is, where it is one."""
    return f" between {SHORTEST_S:g} and {LONGEST_S:g} s, but {second:g}" if 0 < second < math.inf else ""


def host_of(observation: Observation, rank: int) -> str:
    """The host a rank ran on. ``hosts`` names one host per rank, or each host once, filled in order."""
    if not observation.hosts:
        return ""
    return observation.hosts[rank * len(observation.hosts) // len(observation.seconds)]


def iteration_times(observation: Observation) -> list[float]:
    """Seconds of each iteration: it takes as long as its slowest rank."""
    return [max(samples) for samples in zip(*observation.seconds, strict=True)]
