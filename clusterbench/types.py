"""The records that pass between the stages: suite -> plan -> observations -> rows -> report.

All are frozen, hold plain values, and are written as one line of JSON each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self, get_args

from clusterbench.cluster import Cluster

Value = str | int | float | bool | None
Point = Mapping[str, Any]
"""All that distinguishes one measurement from another: every option of the benchmark, resolved to one plain value."""

PROOF_TIME = "proof_time"
"""Among a rank's evidence: seconds in which it was proven what a step computes."""

WRONG_COUNTS = ("wrong_elements", "wrong_files", "early_ranks")
"""Among a rank's evidence: how much was compared and found wrong."""

VOID = "void: "
"""Begins the basis of a figure that is left out as the case's other figures, or what it ran on, speak against it."""

DRY_RUN = "dry run"
"""The ``source`` of figures that were worked out on tensors without data, and not measured."""

NOTHING_SENT = "nothing sent"
"""The ``source`` of figures of one rank that computed for real, alone: see ``benchmarks/rank_step.py``."""

SAMPLES = "samples"
"""The pass whose figures vary from repeat to repeat: ``{metric key: [value, ...]}`` on each rank."""

Status = Literal["ok", "wrong", "failed", "timeout", "out_of_memory", "skipped", "refused"]
"""How a case ended. ``skipped``: the machine lacks something it needs. ``refused``: the plan says why it cannot be."""

Blame = Literal["", "host", "link", "process", "program", "unknown"]
"""What an attempt that failed speaks against. ``host``: it is gone, with its agent. ``link``: hosts fell silent, and
only one is left that says so, whose own link may be cut. ``process``: one there, and not the others; the same program
may do so on any host. ``program``: ranks of all hosts failed alike. ``unknown``: no rank is known to have begun it.
Nothing: not recorded."""

Severity = Literal["error", "warning", "note"]
"""``error``: a figure is missing or void. ``warning``: likely a loss. ``note``: worth knowing."""

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The worst first."""

FAIL_ON = ("incomplete", "not-proven", "suspect", "not-judged", "unsteady")
"""What may make a run end with exit code 1 beside a wrong result, which always does; docs/verdict.md."""

FAIL_ON_BY_DEFAULT = ("incomplete", "suspect")

PHASES = ("spawned", "imported", "device", "rendezvous", "prepared", "checked", "warm", "timed", "done")
"""What a worker has behind it, in order."""


_IDENTITY = (
    "benchmark",
    "version",
    "point",
    "device",
    "num_nodes",
    "world_size",
    "iterations",
    "warmup",
    "layout",
    "rank_order",
    "environment",
)


@dataclass(frozen=True)
class Expected:
    """A value written down before the run, with the sentence that justifies it.

    ``is_upper_bound`` says that no device exceeds it, so that a larger figure is a mistake of the measurement. Plans
    recorded before there was the word have none.
    """

    value: float
    unit: str
    basis: str
    is_upper_bound: bool = False


ABOUT = "about; "
"""Begins the basis of what holds for an average only, so that a figure may differ from it."""

Side = Literal["at_least", "at_most"]


@dataclass(frozen=True)
class Floor:
    """What a suite asks of a figure of a case; one under ``at_most`` is met from below.

    Attributes
    ----------
    metric
        The figure's key.
    asked
        As the suite has it: ``0.7 of typical``, ``200 GB/s``.
    bound, unit
        What that comes to; None where it could not be told, and ``basis`` then says why.
    doubt
        How far the bound itself may be off: what it is a share of was measured, too.
    basis
        What it is a share of, and its source.
    best
        Whether it is asked of the best of the cases that do the same work on as many nodes, and not of each.
    """

    metric: str
    side: Side
    asked: str
    unit: str
    bound: float | None
    doubt: float = 0.0
    basis: str = ""
    best: bool = False

    @property
    def words(self) -> str:
        """``busbw at least 0.7 of typical``, ``best mfu at least 40 %``."""
        return f"{'best ' if self.best else ''}{self.metric} {self.side.replace('_', ' ')} {self.asked}"


@dataclass(frozen=True)
class Place:
    """Where cases may run: some nodes of the cluster and all of their ranks."""

    cluster: Cluster
    num_nodes: int

    @property
    def device(self) -> str:
        return self.cluster.device

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.cluster.ranks_per_node


@dataclass(frozen=True)
class Case:
    """One measurement to make: a benchmark at a point, on so many ranks.

    Examples
    --------
    ``id`` reads ``train_step/1n4/tp4+sp``: benchmark, nodes and ranks, and what the benchmark calls the point.
    """

    id: str
    benchmark: str
    version: int
    point: Point
    device: str
    num_nodes: int
    world_size: int
    iterations: int
    warmup: int
    time_limit_s: float
    layout: str | None = None
    rank_order: str = "megatron"
    own_start: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    repeats: int = 1
    expected: Mapping[str, Expected] = field(default_factory=dict)
    expected_outcomes: tuple[str, ...] = ()
    source: str = ""
    floors: tuple[Floor, ...] = ()

    def expected_of(self, metric: str) -> Sequence[str]:
        """The keys of what is expected of a metric."""
        return _by_metric(*self.expected).get(metric, ())

    @cached_property
    def hash(self) -> str:
        """Identity of what is measured, whatever it is called and wherever in the suite it stands.

        Two cases with one hash are the same measurement; ``--resume`` goes by it.
        """
        identity = {name: getattr(self, name) for name in _IDENTITY}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Refusal:
    """A point the plan does not run, and the sentence that says why."""

    id: str
    benchmark: str
    point: Point
    num_nodes: int
    reason: str
    source: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Replanned:
    """What a copy of the package that went on with a run expects of a case, where that is not what its plan has.

    ``copy`` are the digits by which its sources are known, see :func:`clusterbench.own_copy.digest`.
    """

    copy: str
    hash: str
    expected: Mapping[str, Expected]


MOST_REPEATS = 1000
"""Of a suite's list, asked for or run again and again for a time."""


@dataclass(frozen=True)
class Plan:
    """All cases in the order they run within one repeat, and what was refused.

    ``fail_on`` are conditions of :data:`FAIL_ON` that the suite adds to those by default. The list is run ``repeats``
    times, and then again until all cases together have taken ``for_s`` seconds. ``replanned`` is what other copies of
    the package that went on with the run expect.
    """

    suite: str
    question: str
    cluster: Cluster
    repeats: int
    cases: tuple[Case, ...]
    refusals: tuple[Refusal, ...]
    fail_on: tuple[str, ...] = ()
    for_s: float = 0.0
    replanned: tuple[Replanned, ...] = ()

    def case_of(self, case: Case, copy: str) -> Case:
        """A case of this plan with what this copy of the package expects of it."""
        expected = self._expected_by.get((copy, case.hash))
        if expected is None:
            return case
        of_copy = replace(case, expected=expected)
        of_copy.__dict__["hash"] = case.hash  # by which its records are found, also where a secret was taken out of it
        return of_copy

    @cached_property
    def _expected_by(self) -> Mapping[tuple[str, str], Mapping[str, Expected]]:
        return {(again.copy, again.hash): again.expected for again in self.replanned}


@dataclass(frozen=True)
class Step:
    """What a benchmark hands the worker that times it.

    Attributes
    ----------
    run
        One iteration. Called ``warmup + iterations`` times, back to back; reads no clock.
    check
        Communicates once and proves the result: returns the evidence by name (a deviation, a count), or raises
        :class:`~clusterbench.errors.WrongResult`. Called before anything is timed.
    begin
        Makes ready what is neither memory nor proof, as a file that is read: called in every repeat, on all ranks at
        once, behind ``check`` and before anything is timed. May communicate.
    passes
        Measurements that must not share an iteration with the clock (memory, traffic, a trace), by name. Each runs
        after timing, on all ranks in the same order, and returns what JSON can hold. The bytes of a repeat are those of
        the one before, so they run once; only ``samples``, figures by metric key with their values in a list, is taken
        in every repeat.
    confirm
        Looks once, behind the clock, at what the last timed iteration left: returns evidence or raises as ``check``
        does, on every rank. Called with whether this is the case's first repeat: what cannot differ in the others need
        not be looked at again.
    """

    run: Callable[[], object]
    check: Callable[[], Mapping[str, float]]
    passes: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    confirm: Callable[[bool], Mapping[str, float]] = lambda is_first: {}
    begin: Callable[[], object] = lambda: None

    @classmethod
    def proven(
        cls, run: Callable[[], object], forget: Callable[[], object], verify: Callable[[], Mapping[str, float]]
    ) -> Self:
        """A step proven by what ``run`` leaves: of a call before the clock, of the timed ones, and of a call behind it.

        Parameters
        ----------
        forget
            Leaves nothing of an earlier call where ``run`` writes.
        verify
            Waits for what was begun and compares every element: returns the evidence or raises as ``check`` does.
        """

        def once() -> Mapping[str, float]:
            forget()
            run()
            return verify()

        def check() -> Mapping[str, float]:
            evidence = once()
            forget()
            return evidence

        def confirm(is_first: bool) -> Mapping[str, float]:
            if not is_first:
                return {}
            try:
                verify()
            finally:  # also where that was wrong: in this call other ranks may wait for this one
                evidence = once()
            return evidence

        return cls(run=run, check=check, confirm=confirm)


@dataclass(frozen=True)
class WarmUp:
    """How a rank was warmed up that had to settle before it was timed.

    Attributes
    ----------
    is_settled, drift
        Whether the last two stretches agreed, and how far they are apart, as a share of the shorter. By the slowest
        rank, so the same on every one.
    seconds
        Of all stretches.
    calls
        Iterations of which each sample is the mean.
    burst_s
        Seconds of the first iterations, before clocks came down.
    """

    is_settled: bool
    drift: float
    seconds: float
    calls: int
    burst_s: Sequence[float]


@dataclass(frozen=True)
class Timing:
    """When a rank was timed: seconds since 1970 by the clock of its host, which samples of its GPUs have, too.

    ``warm_up`` is None where its iterations were counted.
    """

    began_s: float
    ended_s: float
    warm_up: WarmUp | None = None


@dataclass(frozen=True)
class HostCounters:
    """What the counters of a host did while a case ran on it, its preparation and its passes included.

    Attributes
    ----------
    over_s
        Seconds between the two readings.
    read
        How many places were read both times, by kind: ``port``, ``interface``, ``PCIe device``.
    grown
        By how much each counter grew, by place (``mlx5_3 port 1``); only those that did.
    unread
        Why nothing was read; empty where something was.
    """

    over_s: float
    read: Mapping[str, int] = field(default_factory=dict)
    grown: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unread: str = ""


@dataclass(frozen=True)
class Observation:
    """What was seen of one case: every rank's every sample, and each pass's record per rank.

    ``seconds[rank][iteration]``; ``evidence[rank]`` is what the check proved; ``passes[name][rank]``;
    ``telemetry[host][uuid]`` is what became of a GPU meanwhile. ``proof`` is the key of what the check proved, and
    ``proven_by`` names the case and repeat whose check it was, where that is another one. ``timing[rank]`` is when it
    was timed; empty where that was not recorded. ``counters`` are by host, those that were asked. ``repeat`` counts
    from 0 here and in files, and from 1 where people read it.
    """

    case: str
    hash: str
    repeat: int
    attempt: int
    hosts: tuple[str, ...]
    seconds: Sequence[Sequence[float]]
    evidence: Sequence[Mapping[str, float]] = ()
    passes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    telemetry: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    proof: str = ""
    proven_by: str = ""
    timing: Sequence[Timing] = field(default_factory=list)
    counters: Mapping[str, HostCounters] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How one attempt at a case ended; ``rank`` and ``host`` name the culprit where there is one.

    ``lost_hosts`` are those that went away meanwhile: such an attempt says little about the case. ``blame`` is what it
    says of the culprit, which is ``lost_hosts`` where there are any. ``copy`` tells the sources of the package that
    made it from others; empty in records of before 2026-11-30.
    """

    case: str
    hash: str
    repeat: int
    attempt: int
    status: Status
    reason: str = ""
    phase: str = ""
    rank: int | None = None
    host: str = ""
    started: str = ""
    elapsed_s: float = 0.0
    log: str = ""
    lost_hosts: tuple[str, ...] = ()
    blame: Blame = ""
    copy: str = ""


NO_DETAIL: Mapping[str, str] = MappingProxyType({})
"""Of a figure that is the only one of its name."""


@dataclass(frozen=True)
class MetricKind:
    """A metric that a benchmark declares: its unit, which direction is better, and what it means.

    ``exact`` is what is counted and not timed, and so the same in every repeat: bytes, collectives, devices. Nor is a
    deviation timed, for which the plan has a limit; it needs no mark.
    """

    name: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    meaning: str
    exact: bool = False


class Metric(NamedTuple):
    """One derived figure of a case. ``detail`` tells figures of one name apart, e.g. ``{"axis": "tp"}``.

    A tuple, as a row is: of a large run half a million are made.
    """

    name: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    iterations: int = 1
    detail: Mapping[str, str] = NO_DETAIL
    expected: float | None = None
    basis: str = ""

    @property
    def key(self) -> str:
        return _key(self.name, *self.detail.items())


@dataclass(frozen=True)
class Agreement:
    """How a case agrees with others that compute the same: figures, and what is wrong; empty where nothing is."""

    metrics: tuple[Metric, ...]
    wrong: str = ""


def metric_key(name: str, **detail: str) -> str:
    """How a figure is named in a plan's ``expected``.

    >>> metric_key("traffic_bytes", axis="tp")
    'traffic_bytes[axis=tp]'
    """
    return _key(name, *detail.items())


@lru_cache(maxsize=2**16)  # a large run has a million figures of a hundred names
def _key(name: str, *detail: tuple[str, str]) -> str:
    inner = ",".join(f"{key}={value}" for key, value in sorted(detail))
    return f"{name}[{inner}]" if inner else name


@lru_cache(maxsize=2**12)  # cases of a sweep expect the same figures
def _by_metric(*keys: str) -> Mapping[str, Sequence[str]]:
    by_metric: dict[str, list[str]] = {}
    for key in keys:
        by_metric.setdefault(key.partition("[")[0], []).append(key)
    return by_metric


@lru_cache(maxsize=2**16)
def split_key(key: str) -> tuple[str, Mapping[str, str]]:
    """A metric's key taken apart again; its detail is one object for all figures of that key.

    >>> split_key("traffic_bytes[axis=tp]")
    ('traffic_bytes', mappingproxy({'axis': 'tp'}))
    """
    name, _, inner = key.removesuffix("]").partition("[")
    return name, MappingProxyType(dict(pair.split("=", 1) for pair in inner.split(",") if pair))
