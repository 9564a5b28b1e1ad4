"""Several runs as one reading, for one page of them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterbench.cases import Reading
from clusterbench.cases.prices import Prices
from clusterbench.derive import SingleRun, read_single, rows_across_cases
from clusterbench.derive.rows_of_cases import refusal_rows
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import History
from clusterbench.shape import OWN_SHAPE
from clusterbench.types import Plan, Point


def read_several(runs: Sequence[RunFolder]) -> Reading:
    """Several runs as one, see :func:`as_one`."""
    return as_one([read_single(run) for run in runs])


def as_one(runs: Sequence[SingleRun]) -> Reading:
    """Several runs as one, each case named by its run.

    Runs that have no case in common are parts of one experiment, such as one run for each number of nodes: what follows
    from several cases then follows from all of theirs. Where a case is in two runs, one ran on another kind of device,
    or two models have one name, they stand side by side, and every row's point says its ``run``.
    """
    hashes = [history.case.hash for run in runs for history in run.histories]
    models = {_model(history.case.point) for run in runs for history in run.histories}
    has_two_of_a_name = len({name for name, _ in models}) < len(models)
    stand_apart = len(set(hashes)) < len(hashes) or len({_device(run) for run in runs}) > 1 or has_two_of_a_name
    named_runs = [_named(run, name, stand_apart) for run, name in zip(runs, names_of(runs), strict=True)]
    plan = Plan(
        suite=" and ".join(dict.fromkeys(run.plan.suite for run in named_runs)),
        question="\n".join(dict.fromkeys(run.plan.question for run in named_runs if run.plan.question)),
        cluster=max(
            (run.plan.cluster for run in named_runs), key=lambda cluster: cluster.num_nodes * cluster.ranks_per_node
        ),
        repeats=max(run.plan.repeats for run in named_runs),
        cases=tuple(case for run in named_runs for case in run.plan.cases),
        refusals=tuple(refusal for run in named_runs for refusal in run.plan.refusals),
        for_s=max(run.plan.for_s for run in named_runs),
        fail_on=tuple(dict.fromkeys(name for run in named_runs for name in run.plan.fail_on)),
    )
    hosts, named_twice = _hosts(named_runs)
    if stand_apart:
        rows = [row for run in named_runs for row in rows_across_cases(run.rows, run.plan)]
    else:
        rows = rows_across_cases([row for run in named_runs for row in run.rows], plan)
    return Reading(
        run=", ".join(run.name for run in named_runs),
        plan=plan,
        histories=tuple(history for run in named_runs for history in run.histories),
        rows=[*rows, *(row for run in named_runs for row in refusal_rows(run.name, run.plan))],
        environment=_environments(named_runs, hosts),
        problems=tuple(f"{run.name}: {problem}" for run in named_runs for problem in run.problems),
        prices=Prices(
            {case: priced for run in named_runs for case, priced in run.prices.by_case.items()},
            {case: reason for run in named_runs for case, reason in run.prices.reasons.items()},
            tuple(f"{run.name}: {why}" for run in named_runs for why in run.prices.unused),
        ),
        cut_short=tuple(f"{run.name}: {lacking}" for run in named_runs for lacking in run.cut_short),
        hosts_of_runs=tuple(map(tuple, hosts)) if stand_apart else (),
        named_twice=named_twice,
    )


def _device(run: SingleRun) -> tuple[str, str | None]:
    """What a scaling over several runs has to be of: the GPUs, or where there are none the CPUs."""
    cluster = run.plan.cluster
    return cluster.device, cluster.gpu_name if cluster.device == "cuda" else cluster.cpu_name


def _model(point: Point) -> tuple[object, object]:
    """What a case trains, if anything: charts tell models by their names."""
    return point.get("shape"), point.get(OWN_SHAPE)


def names_of(runs: Sequence[SingleRun]) -> list[str]:
    """The names of their folders, numbered where two have the same."""
    count = Counter(run.name for run in runs)
    number = {name: iter(range(1, many + 1)) for name, many in count.items()}
    return [run.name if count[run.name] == 1 else f"{run.name} ({next(number[run.name])})" for run in runs]


def _named(run: SingleRun, name: str, in_points: bool) -> SingleRun:
    """The same run, with its name before that of each case, and where asked in the point of each row."""

    def prefixed(text: str) -> str:
        return f"{name}: {text}"

    points: dict[int, Point] = {}  # rows of a case share one point object, and go on doing so

    def with_run(point: Point) -> Point:
        return points.setdefault(id(point), {**point, "run": name}) if in_points else point

    histories = tuple(
        History(
            replace(history.case, id=prefixed(history.case.id)),
            tuple(replace(outcome, case=prefixed(outcome.case)) for outcome in history.outcomes),
            tuple(replace(observation, case=prefixed(observation.case)) for observation in history.observations),
        )
        for history in run.histories
    )
    refusals = tuple(
        replace(refusal, id=prefixed(refusal.id), point=with_run(refusal.point)) for refusal in run.plan.refusals
    )
    plan = replace(run.plan, cases=tuple(history.case for history in histories), refusals=refusals)
    rows = [row._replace(run=name, case=prefixed(row.case), point=with_run(row.point)) for row in run.rows]
    prices = Prices(
        {prefixed(case): priced for case, priced in run.prices.by_case.items()},
        {prefixed(case): reason for case, reason in run.prices.reasons.items()},
        run.prices.unused,
    )
    return SingleRun(name, plan, histories, rows, run.environment, run.problems, prices, run.cut_short)


def _hosts(runs: Sequence[SingleRun]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The hosts of each run by name; one that said something else in an earlier run has the run in its name.

    Beside them those with a run in their name, each with its own.
    """
    known: dict[str, Any] = {}
    of_runs, named_twice = [], {}
    for run in runs:
        named = {}
        for host, description in (run.environment.get("hosts") or {}).items():
            name = host
            if known.get(host, description) != description:
                name = f"{host} in {run.name}"
                named_twice[name] = host
            named[name] = description
        known |= named
        of_runs.append(named)
    return of_runs, named_twice


def _environments(runs: Sequence[SingleRun], hosts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each host once where it said the same in every run, else once a run; the rest stays with its run."""
    rest = {
        run.name: {name: description for name, description in run.environment.items() if name != "hosts"}
        for run in runs
    }
    every = {host: description for of_run in hosts for host, description in of_run.items()}
    return {**rest, **({"hosts": every} if every else {})}
