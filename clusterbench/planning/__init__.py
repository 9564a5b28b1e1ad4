"""The plan of a suite on a cluster: cases with their expectations, and refusals with their reasons.

Pure: no device is touched, no clock read, torch is not imported.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from math import prod
from typing import Any

from clusterbench.baseline import Baseline
from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.cluster import Cluster, have_other_peaks, nodes_and_ranks
from clusterbench.errors import SuiteError
from clusterbench.fingerprint import OPTION, UNKNOWN, Fingerprint, named_gpu
from clusterbench.floors import floors_of
from clusterbench.garbage import uncollected
from clusterbench.layout import ParallelLayout
from clusterbench.planning.names import tidy, unique_names
from clusterbench.planning.typical import typical_of
from clusterbench.recorded import Recorded
from clusterbench.suite import Item, Settings, Suite, Written
from clusterbench.types import Case, Floor, Place, Plan, Point, Refusal
from clusterbench.words import plural

MOST_CASES = 100_000
ROOMY_NODES, ROOMY_RANKS = 8, 16
"""A cluster with room for every case that is possible at all."""


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
    _expect_something([answer.planned for answer in answers])
    # Stable: within a node count the suite's order stays.
    answers.sort(key=lambda answer: answer.request.place.num_nodes)
    _expect_unique([answer.planned for answer in answers if isinstance(answer.planned, Case)])
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
class _Request:
    """One point of an item at one place.

    ``swept`` are the written values that were chosen for it, ``elements`` those of its lists that bring it about;
    ``objection`` says why it can never be.
    """

    benchmark: Benchmark
    point: Point
    place: Place
    environment: Mapping[str, str]
    swept: tuple[Written, ...]
    elements: tuple[Written, ...]
    objection: str

    @cached_property
    def by(self) -> tuple[Written, ...]:
        """All values that ask for it, the most specific first: what is in a list, what was swept last, variables."""
        last_first = self.swept[::-1]
        return (*self.elements, *sorted(last_first, key=lambda written: written.name in self.environment))

    def features(self) -> dict[str, Any]:
        """All values in which it may differ from another point of the same label; swept ones first."""
        options = {
            name: getattr(self.benchmark, name, option.default if option.is_later else None)
            for name, option in self.benchmark.options().items()
            if not option.is_list
        }
        values = {**options, **self.point, **self.environment}
        return {**{written.name: values[written.name] for written in self.swept if written.name in values}, **values}


@dataclass(frozen=True)
class _Answer:
    request: _Request
    planned: Case | Refusal


def _answers(suite: Suite, item: Item, places: Sequence[Place], room: int) -> list[_Answer]:
    """Every point of one item at all places, each with its case or refusal."""
    _expect_reasonable(suite, item, len(places), room)
    requests: list[_Request] = []
    for request in _requests(suite, item, places):
        requests.append(request)
        if len(requests) > room:
            raise _too_many(suite, item, f"more than {MOST_CASES}")
    _expect_effect(suite, item, places)
    _expect_sound_values(suite, item, requests)
    if not requests:
        raise suite.mistake(item.line, f"benchmark '{item.benchmark}' has nothing to measure here.")
    return [_Answer(request, _case_or_refusal(suite, item, request)) for request in requests]


# Requests


def _requests(suite: Suite, item: Item, places: Sequence[Place]) -> Iterator[_Request]:
    """Every point at every place, for every combination of swept options and variables."""
    for place in places:
        earlier: set[object] = set()
        for values, swept in _combinations(item.settings):
            benchmark, points = _points(suite, item, values, swept, place)
            points = _new(benchmark, points, earlier)
            elements = _elements(item, values, place, points)
            objections = [_sentence(benchmark.objection(point, place) or "") for point in points]
            for variables, swept_variables in _combinations(item.environment):
                chosen = (*swept, *swept_variables)
                for point, by, objection in zip(points, elements, objections, strict=True):
                    yield _Request(benchmark, point, place, variables, chosen, by, objection)


def _new(benchmark: Benchmark, points: Sequence[Point], earlier: set[object]) -> list[Point]:
    """Points no earlier combination had: an option that does not concern a layout gives it once, not once a value."""
    common = tuple(getattr(benchmark, name) for name in Benchmark.options())
    keys = [(common, _key(point)) for point in points]
    new = [point for key, point in zip(keys, points, strict=True) if key not in earlier]
    earlier.update(keys)
    return new


def _combinations(settings: Settings) -> Iterator[tuple[dict[str, Any], tuple[Written, ...]]]:
    """One value for each setting, in all combinations, and which of them were swept; the last key varies fastest."""
    lists = {
        name: tuple(written.value for written in setting.values)
        for name, setting in settings.items()
        if setting.is_list
    }
    single = [setting for setting in settings.values() if not setting.is_list]
    for chosen in product(*(setting.values for setting in single)):
        swept = tuple(written for written, setting in zip(chosen, single, strict=True) if len(setting.values) > 1)
        yield {**lists, **{written.name: written.value for written in chosen}}, swept


def _points(
    suite: Suite, item: Item, values: Mapping[str, Any], swept: Sequence[Written], place: Place
) -> tuple[Benchmark, list[Point]]:
    """The benchmark with these values and all it measures at ``place``; what it cannot read is a mistake."""
    try:
        benchmark = item.kind.from_options(values)
        return benchmark, _all_points(benchmark, place)
    except SuiteError as error:
        unreadable = [element for element, points in _one_by_one(item, values, place) if points is None]
        named = [setting.line for name, setting in item.settings.items() if re.search(rf"\b{name}\b", str(error))]
        lines = [*(written.line for written in (*unreadable, *swept)), *named, item.line]
        raise suite.mistake(lines[0], error) from None


def _elements(
    item: Item, values: Mapping[str, Any], place: Place, points: Sequence[Point]
) -> list[tuple[Written, ...]]:
    """For each point the elements of the item's lists that bring it about: those that do so alone."""
    if len(listed := list(_listed(item))) == 1:
        return [tuple(listed)] * len(points)
    bringing: dict[Any, list[Written]] = defaultdict(list)
    for element, brought in _one_by_one(item, values, place):
        for point in brought or ():
            bringing[_key(point)].append(element)
    times: Counter[Any] = Counter()
    elements_of_points = []
    for point in points:
        elements = bringing.get(_key(point), [])
        elements_of_points.append(
            tuple(elements[times[_key(point)] :])
        )  # of 'dp2, dp*' the second asks for the second dp2
        times[_key(point)] += 1
    return elements_of_points


def _one_by_one(
    item: Item, values: Mapping[str, Any], place: Place
) -> Iterator[tuple[Written, Sequence[Point] | None]]:
    """Each element of each list, and the points it has alone in its list; None where it cannot be read alone."""
    for element in _listed(item):
        try:
            alone = item.kind.from_options({**values, element.name: (element.value,)})
            points: Sequence[Point] | None = _all_points(alone, place)
        except SuiteError:
            points = None
        yield element, points


def _listed(item: Item) -> Iterator[Written]:
    """The elements of the item's lists, but of those that all benchmarks share: they bring no points."""
    for setting in item.settings.values():
        if setting.is_list and setting.name not in Benchmark.options():
            yield from setting.values


def _all_points(benchmark: Benchmark, place: Place) -> list[Point]:
    return list(islice(benchmark.points(place), MOST_CASES + 1))  # one too many is enough to see


def _key(point: Point) -> frozenset[tuple[str, Any]]:
    return frozenset(point.items())


# Cases and refusals


def _case_or_refusal(suite: Suite, item: Item, request: _Request) -> Case | Refusal:
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


def _misfit(item: Item, request: _Request, world_size: int) -> tuple[str, str]:
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


# Mistakes of a suite


def _too_many(suite: Suite, item: Item, number: str) -> SuiteError:
    return suite.mistake(
        item.line, f"with benchmark '{item.benchmark}' the suite asks for {number} cases; {MOST_CASES} are the most."
    )


def _expect_reasonable(suite: Suite, item: Item, num_places: int, room: int) -> None:
    """Counts combinations before any is made: a few lines of YAML can ask for more than there is memory."""
    axes = [setting for setting in (*item.settings.values(), *item.environment.values()) if not setting.is_list]
    number = num_places * prod(len(setting.values) for setting in axes)
    if number > room:
        raise _too_many(suite, item, f"{MOST_CASES - room + number} or more")


def _expect_sound_values(suite: Suite, item: Item, requests: Sequence[_Request]) -> None:
    """A value that is objected to everywhere and in every combination was a mistake to write.

    One that is objected to here only, because nodes or ranks are few, is refused.
    """
    hopeless = _hopeless_values(requests)
    if hopeless:
        cluster = replace(requests[0].place.cluster, num_nodes=ROOMY_NODES, ranks_per_node=ROOMY_RANKS, hosts=())
        elsewhere = _hopeless_values(list(_requests(suite, item, [Place(cluster, ROOMY_NODES)])))
        for written, reason in hopeless.items():
            if written in elsewhere:
                raise suite.mistake(written.line, reason)


def _hopeless_values(requests: Sequence[_Request]) -> dict[Written, str]:
    """Values of which nothing can be at these places, each with the first objection."""
    objections: dict[Written, list[str]] = defaultdict(list)
    for request in requests:
        for written in request.by:
            objections[written].append(request.objection)
    return {written: reasons[0] for written, reasons in objections.items() if all(reasons)}


def _expect_effect(suite: Suite, item: Item, places: Sequence[Place]) -> None:
    """An option that changes nothing, whatever is combined with it, was a mistake to write."""
    without_effect = [
        dict(item.kind.from_options(values).ineffective(item.own_settings, place))
        for place in places
        for values, _ in _combinations(item.settings)
    ]
    for name in without_effect[0]:
        if name in item.settings and all(name in reasons for reasons in without_effect):
            why = _sentence(without_effect[0][name])
            what = f"benchmark '{item.benchmark}': option '{name}' has no effect: {why}"
            raise suite.mistake(item.settings[name].line, what)


def _expect_something(planned: Sequence[Case | Refusal]) -> None:
    """A suite of which nothing runs here is a mistake; where something does, the rest is refused and listed."""
    first = planned[0] if planned else None
    if isinstance(first, Refusal) and not any(isinstance(answer, Case) for answer in planned):
        raise SuiteError(f"{first.source}: {first.reason}" + (f"\nhint: {first.hint}" if first.hint else ""))


def _expect_unique(cases: Iterable[Case]) -> None:
    first: dict[str, Case] = {}
    for case in cases:
        before = first.setdefault(case.hash, case)
        if before is not case:
            raise SuiteError(f"{case.source}: {case.id} is asked for twice, first at {before.source}.")


def _sentence(text: str) -> str:
    """Benchmarks say why in their own way; what is printed ends with a period."""
    return text if not text or text.endswith((".", "?")) else f"{text}."
