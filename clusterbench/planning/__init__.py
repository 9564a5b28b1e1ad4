"""The plan of a suite on a cluster: cases with their expectations, and refusals with their reasons.

Pure: no device is touched, no clock read, torch is not imported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterbench.baseline import Baseline
from clusterbench.benchmarks import benchmarks
from clusterbench.cluster import Cluster, have_other_peaks, nodes_and_ranks
from clusterbench.errors import SuiteError
from clusterbench.fingerprint import OPTION, UNKNOWN, Fingerprint, named_gpu
from clusterbench.floors import floors_of
from clusterbench.garbage import uncollected
from clusterbench.layout import ParallelLayout
from clusterbench.planning.mistakes import (
    expect_effect,
    expect_reasonable,
    expect_something,
    expect_sound_values,
    expect_unique,
    too_many,
)
from clusterbench.planning.names import tidy, unique_names
from clusterbench.planning.requests import MOST_CASES, Request, requests_of
from clusterbench.planning.typical import typical_of
from clusterbench.recorded import Recorded
from clusterbench.suite import Item, Suite
from clusterbench.types import Case, Floor, Place, Plan, Point, Refusal
from clusterbench.words import plural

SLOWEST_BYTES_PER_S: Mapping[str, float] = {"cpu": 50e6, "cuda": 1e9}
"""A link that carries less counts as hanging: half of 1 Gbit/s between hosts without GPUs, 8 Gbit/s between GPUs."""


SECONDS_TO_SETTLE = 15.0
"""For clocks to come down and two seconds to be timed, where a case is timed so (``engine/settling.py``)."""


SECONDS_TO_COMPILE = 120.0
"""For C++ or Triton kernels that no earlier case left behind: on two busy cores more than 60 s were seen."""


def default_time_limit_s(world_size: int, iterations: int, size_bytes: int = 0, device: str = "cpu") -> float:
    """Seconds a case may take when its suite does not say.

    One minute to start, two seconds a rank for groups and stores to form, five seconds an iteration up to ten minutes
    (where iterations are many, each is short), and what ``size_bytes`` in every iteration take on the slowest link that
    still counts as one. A case that is slower for a good reason sets ``time_limit_s``.

    >>> default_time_limit_s(world_size=4, iterations=20)
    168.0
    >>> default_time_limit_s(world_size=4, iterations=20, size_bytes=10**9)
    568.0
    """
    to_move = iterations * size_bytes / SLOWEST_BYTES_PER_S[device]
    return 60.0 + 2.0 * world_size + min(5.0 * iterations, 600.0) + to_move


@uncollected()
def make_plan(
    suite: Suite, cluster: Cluster, machine: Fingerprint | None = None, accepted: Collection[str] = ()
) -> Plan:
    """All that ``suite`` asks for on ``cluster``: fewer nodes first, otherwise in the suite's order.

    A point that does not fit here is a :class:`Refusal`; one that fits nowhere is a mistake.

    Parameters
    ----------
    machine, accepted
        Which of the machines of its baseline this is, by default one with these GPUs, and the fields in which that may
        be another.

    Raises
    ------
    SuiteError
        For a written value of which nothing can ever run, a suite of which nothing runs here, an option without
        effect, one case asked for twice, more than ``MOST_CASES`` cases, and a baseline of another machine.
    """
    suite = suite.on(cluster.device)
    suite = replace(suite, baseline=_baseline(suite, cluster, machine, accepted))
    all_nodes = {cluster.num_nodes} if suite.all_nodes or not suite.num_nodes else set()
    places = [Place(cluster, num_nodes) for num_nodes in sorted({*suite.num_nodes, *all_nodes})]
    answers: list[_Answer] = []
    for item in suite.items:
        answers += _answers(suite, item, places, room=MOST_CASES - len(answers))
    expect_something([answer.planned for answer in answers])
    # Stable: within a node count the suite's order stays.
    answers.sort(key=lambda answer: answer.request.place.num_nodes)
    expect_unique([answer.planned for answer in answers if isinstance(answer.planned, Case)])
    names = unique_names([answer.planned.id for answer in answers], lambda index: answers[index].request.features())
    named = [_named(answer.planned, name) for answer, name in zip(answers, names, strict=True)]
    return Plan(
        suite=suite.name,
        question=suite.question,
        cluster=cluster,
        repeats=suite.repeats,
        cases=tuple(planned for planned in named if isinstance(planned, Case)),
        refusals=tuple(planned for planned in named if isinstance(planned, Refusal)),
        fail_on=suite.fail_on,
        for_s=suite.for_s,
    )


def _baseline(
    suite: Suite, cluster: Cluster, machine: Fingerprint | None, accepted: Collection[str]
) -> Baseline | None:
    """That of this machine alone; None where no floor here is a share of it."""
    if suite.baseline is None or all(floor.of != "baseline" for item in suite.items for floor in item.floors.values()):
        if accepted:
            raise SuiteError(f"{OPTION} has no effect on {suite.path}: no floor of it here is 'of baseline'.")
        return None
    if machine is None:
        machine = Fingerprint(gpu=named_gpu(cluster.gpu_name)) if cluster.gpu_name else UNKNOWN
    return Baseline(suite.baseline.name, (suite.baseline.of(machine, accepted),))


def _named(planned: Case | Refusal, name: str) -> Case | Refusal:
    return planned if planned.id == name else replace(planned, id=name)


@dataclass(frozen=True)
class _Answer:
    request: Request
    planned: Case | Refusal


def _answers(suite: Suite, item: Item, places: Sequence[Place], room: int) -> list[_Answer]:
    """Every point of one item at all places, each with its case or refusal."""
    expect_reasonable(suite, item, len(places), room)
    requests: list[Request] = []
    for request in requests_of(suite, item, places):
        requests.append(request)
        if len(requests) > room:
            raise too_many(suite, item, f"more than {MOST_CASES}")
    expect_effect(suite, item, places)
    expect_sound_values(suite, item, requests)
    if not requests:
        raise suite.mistake(item.line, f"benchmark '{item.benchmark}' has nothing to measure here.")
    return [_Answer(request, _case_or_refusal(suite, item, request)) for request in requests]


def _case_or_refusal(suite: Suite, item: Item, request: Request) -> Case | Refusal:
    benchmark, point, place = request.benchmark, request.point, request.place
    world_size, other = benchmark.world_size(point, place), benchmark.kind_of_case(point)
    kind = other or item.benchmark
    name = f"{kind}/{place.num_nodes}n{world_size}/{tidy(benchmark.label(point))}"
    source = suite.where(request.by[0].line if request.by else item.line)
    reason, hint = (request.objection, "") if request.objection else _misfit(item, request, world_size)
    if reason:
        return Refusal(name, kind, point, place.num_nodes, reason, source, hint)
    case = Case(
        id=name,
        benchmark=kind,
        version=benchmarks()[other].version if other else benchmark.version,
        point=point,
        device="cpu" if benchmark.on_host else place.device,
        num_nodes=place.num_nodes,
        world_size=world_size,
        iterations=benchmark.iterations,
        warmup=benchmark.warmup,
        time_limit_s=benchmark.time_limit_s
        or default_time_limit_s(world_size, benchmark.iterations, benchmark.size_bytes(point), place.device)
        + (SECONDS_TO_SETTLE if benchmark.settles(point) and place.device == "cuda" else 0.0)
        + (SECONDS_TO_COMPILE if benchmark.compiles(point) else 0.0),
        layout=benchmark.layout(point),
        rank_order=str(point.get("rank_order", "megatron")),
        own_start=benchmark.own_start,
        environment={**benchmark.variables, **request.environment},
        repeats=suite.repeats,
        expected=benchmark.predict(point, place),
        expected_outcomes=benchmark.expect,
        source=source,
    )
    return replace(case, floors=tuple(_floors(suite, item, case, place))) if item.floors else case


def _floors(suite: Suite, item: Item, case: Case, place: Place) -> Iterator[Floor]:
    """What is asked of a case's figures, with the bounds that are known here."""
    typical = typical_of(*_published_as(item, case, place)) if item.floors else {}
    baseline: Mapping[str, Recorded] = {}
    name, has_other_peak = "", False
    if suite.baseline is not None:
        (recorded,), name = suite.baseline.machines, suite.baseline.name
        baseline, has_other_peak = recorded.figures.get(case.hash, {}), _has_other_peak(recorded.machine, place.cluster)
    for asked in item.floors.values():
        yield from floors_of(asked, case.expected, typical, baseline, name, _machine(place), has_other_peak)


def _published_as(item: Item, case: Case, place: Place) -> tuple[str, Point, Place]:
    """What a published figure is of: one node, where every node does the same by itself."""
    if case.benchmark != item.benchmark and benchmarks()[case.benchmark].world_is_node:
        return item.benchmark, case.point, replace(place, num_nodes=1)
    return case.benchmark, case.point, place


def _has_other_peak(recorded: Fingerprint, cluster: Cluster) -> bool:
    """Whether a machine that was accepted is known to be of another GPU, or of another CPU where that computes."""
    if cluster.device == "cuda":
        return bool(recorded.gpu and cluster.gpu_name) and have_other_peaks(recorded.gpu, cluster.gpu_name)
    return bool(recorded.cpu and cluster.cpu_name) and recorded.cpu != cluster.cpu_name


def _machine(place: Place) -> str:
    """``2 nodes x 8 GPUs (NVIDIA L40S)``."""
    name = f" ({place.cluster.gpu_name or 'unknown GPU'})" if place.device == "cuda" else ""
    return nodes_and_ranks(place.num_nodes, place.cluster.ranks_per_node, place.device) + name


def _misfit(item: Item, request: Request, world_size: int) -> tuple[str, str]:
    """Why a sound point does not fit its place, and what to do about it; two empty texts when it fits."""
    place = request.place
    cluster = place.cluster
    layout = request.benchmark.layout(request.point)
    subject = f"layout '{layout}'" if layout else f"'{request.benchmark.label(request.point)}'"
    fits_on = -(-world_size // cluster.ranks_per_node)
    stretch = "write 'dp*' to let data parallelism take the ranks that are left" if _stretches(layout, place) else ""
    if place.num_nodes > cluster.num_nodes:
        return (
            f"'{item.benchmark}' needs {plural(place.num_nodes, 'node')}, but the allocation has {cluster.num_nodes}.",
            f"run it on {plural(place.num_nodes, 'node')}, or take {place.num_nodes} out of num_nodes",
        )
    if world_size > place.world_size:
        more = f"ask for {plural(fits_on, 'node')}"
        if cluster.device == "cpu" and place.num_nodes == 1:
            more = f"give it more CPU ranks with '--num-ranks {world_size}'"
        return (
            f"{subject} needs {world_size} ranks, but {_supply(place)}.",
            f"{stretch}, or {more}" if stretch else more,
        )
    if fits_on < place.num_nodes:
        idle = f"{place.num_nodes - fits_on} of {plural(place.num_nodes, 'node')} idle"
        return f"{subject} leaves {idle}: {plural(world_size, 'rank')} fit on {plural(fits_on, 'node')}.", stretch
    return "", ""


def _stretches(layout: str | None, place: Place) -> bool:
    """Whether ``dp*`` in place of the layout's own dp would fill the place."""
    if layout is None:
        return False
    parsed = ParallelLayout.parse(layout)
    return place.world_size % (parsed.world_size // parsed.dp) == 0


def _supply(place: Place) -> str:
    """``8 nodes x 8 GPUs give 64``."""
    ranks_per_node = place.cluster.ranks_per_node
    gives = "gives" if place.num_nodes == ranks_per_node == 1 else "give"
    return f"{nodes_and_ranks(place.num_nodes, ranks_per_node, place.device)} {gives} {place.world_size}"
