"""Several runs as one reading, for one page of them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clusterbench.cases import Reading
from clusterbench.derive import Part, read_part, refusal_rows, with_what_follows
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import History
from clusterbench.types import Plan, Point


def read_several(runs: Sequence[RunFolder]) -> Reading:
    """Several runs as one, see :func:`as_one`."""
    return as_one([read_part(run) for run in runs])


def as_one(every: Sequence[Part]) -> Reading:
    """Several runs as one, each case named by its run.

    Runs that have no case in common are parts of one experiment, such as one run for each number of nodes: what follows
    from several cases then follows from all of theirs. Where a case is in two runs, they stand side by side, and every
    row's point says its ``run``.
    """
    hashes = [history.case.hash for one in every for history in one.histories]
    are_alike = len(set(hashes)) < len(hashes)
    parts = [_named(one, name, are_alike) for one, name in zip(every, _names(every), strict=True)]
    plan = Plan(
        suite=" and ".join(dict.fromkeys(one.plan.suite for one in parts)),
        question=" ".join(dict.fromkeys(one.plan.question for one in parts if one.plan.question)),
        cluster=max(
            (one.plan.cluster for one in parts), key=lambda cluster: cluster.num_nodes * cluster.ranks_per_node
        ),
        repeats=max(one.plan.repeats for one in parts),
        cases=tuple(case for one in parts for case in one.plan.cases),
        refusals=tuple(refusal for one in parts for refusal in one.plan.refusals),
    )
    if are_alike:
        rows = [row for one in parts for row in with_what_follows(one.rows, one.plan)]
    else:
        rows = with_what_follows([row for one in parts for row in one.rows], plan)
    return Reading(
        run=", ".join(one.run for one in parts),
        plan=plan,
        histories=tuple(history for one in parts for history in one.histories),
        rows=[*rows, *(row for one in parts for row in refusal_rows(one))],
        environment=_environments(parts),
        problems=tuple(f"{one.run}: {problem}" for one in parts for problem in one.problems),
    )


def _names(parts: Sequence[Part]) -> list[str]:
    """The names of their folders, numbered where two have the same."""
    count = Counter(part.run for part in parts)
    number = {name: iter(range(1, many + 1)) for name, many in count.items()}
    return [part.run if count[part.run] == 1 else f"{part.run} ({next(number[part.run])})" for part in parts]


def _named(part: Part, name: str, in_points: bool) -> Part:
    """The same run, with its name before that of each case, and where asked in the point of each row."""

    def own(text: str) -> str:
        return f"{name}: {text}"

    points: dict[int, Point] = {}  # rows of a case share one point object, and go on doing so

    def with_run(point: Point) -> Point:
        return points.setdefault(id(point), {**point, "run": name}) if in_points else point

    histories = tuple(
        History(
            replace(history.case, id=own(history.case.id)),
            tuple(replace(outcome, case=own(outcome.case)) for outcome in history.outcomes),
            tuple(replace(observation, case=own(observation.case)) for observation in history.observations),
        )
        for history in part.histories
    )
    refusals = tuple(replace(one, id=own(one.id), point=with_run(one.point)) for one in part.plan.refusals)
    plan = replace(part.plan, cases=tuple(history.case for history in histories), refusals=refusals)
    rows = [row._replace(run=name, case=own(row.case), point=with_run(row.point)) for row in part.rows]
    return Part(name, plan, histories, rows, part.environment, part.problems)


def _environments(parts: Sequence[Part]) -> dict[str, Any]:
    """Each host once where it said the same in every run, else once a run; the rest stays with its run."""
    hosts: dict[str, Any] = {}
    for part in parts:
        for host, told in (part.environment.get("hosts") or {}).items():
            is_known = host in hosts and hosts[host] != told
            hosts[f"{host}, {part.run}" if is_known else host] = told
    rest = {part.run: {name: told for name, told in part.environment.items() if name != "hosts"} for part in parts}
    return {**rest, **({"hosts": hosts} if hosts else {})}
