"""What of a plan is left to do: which case when, how often it was tried, and what can share a start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from clusterbench.benchmarks import benchmarks
from clusterbench.launch.mpi_cases import in_agents
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import parallelisms
from clusterbench.run_folder.rounds import next_round
from clusterbench.types import Case, Outcome, Plan

MOST_LOSSES = 2
"""Attempts at a case that may each cost a host; after that it is not tried again."""

MOST_RECORDS = 2
"""Further attempts at a case that ended well, where its record was lost each time; a disk may damage all of them."""

FEWEST_OWN_STEPS, FEWEST_AT_ONCE = 20, 2
"""Steps of which each rank's own work is recorded in all cases and repeats of one benchmark on as many ranks, and in
each of them. With 20 a rank that is slower by half is named in 99 of 100 runs, see ``tests/diagnoses``."""


@dataclass(frozen=True)
class Execution:
    """One pass over a case: which repeat, and how often that has been tried before."""

    case: Case
    repeat: int
    attempt: int


def left_to_do(
    plan: Plan,
    outcomes: Sequence[Outcome],
    unrecorded: Collection[tuple[str, int]] = (),
    cheapest_first: bool = False,
) -> list[Execution]:
    """Every repeat of every case that has no outcome yet, repeats interleaved: the whole list, then the list again.

    What ended because a host went away is tried once more, and twice what ended well but is ``unrecorded``. With
    ``cheapest_first`` a run that is cut short has seen as many cases as it could, and each once before any of them
    twice.
    """
    tried = Counter((outcome.hash, outcome.repeat) for outcome in outcomes)
    lost = Counter((outcome.hash, outcome.repeat) for outcome in outcomes if outcome.lost_hosts)
    left = [
        Execution(case, repeat, 1 + tried[case.hash, repeat])
        for repeat in range(plan.repeats)
        for case in plan.cases
        if tried[case.hash, repeat] == lost[case.hash, repeat] < MOST_LOSSES
        or ((case.hash, repeat) in unrecorded and tried[case.hash, repeat] <= MOST_RECORDS)
    ]
    if cheapest_first:
        kinds = benchmarks()
        left.sort(
            key=lambda each: (each.repeat, each.case.num_nodes, kinds[each.case.benchmark].cost(each.case.point))
        )  # stable: among equals the suite's order stays
    return left


def again(plan: Plan, outcomes: Sequence[Outcome]) -> list[Execution]:
    """The list once more, where a plan that is run for a time has all its repeats and that time is not over."""
    repeat, cases = next_round(plan, outcomes)
    return [Execution(case, repeat, 1) for case in cases]


def own_steps(executions: Sequence[Execution]) -> dict[str, int]:
    """How many steps of a case have each rank's own work recorded when it is executed, by the hash of the case.

    Cases of one benchmark on the same ranks are judged together, so they share the steps that it takes.
    """

    def ranks_of(case: Case) -> object:
        return case.benchmark, case.device, case.num_nodes, case.world_size

    sharing = Counter(ranks_of(execution.case) for execution in executions)
    return {
        execution.case.hash: max(FEWEST_AT_ONCE, -(-FEWEST_OWN_STEPS // sharing[ranks_of(execution.case)]))
        for execution in executions
    }


def imported_ahead(executions: Sequence[Execution]) -> tuple[str, ...]:
    """Their benchmarks, and the parallelisms of their layouts for which workers need more than any benchmark says."""
    layouts = [ParallelLayout.parse(text) for text in {execution.case.layout for execution in executions} if text]
    needy = {name: kind() for name, kind in parallelisms().items() if kind.modules}
    used = {name for name, parallelism in needy.items() if any(map(parallelism.active, layouts))}
    return tuple(sorted({execution.case.benchmark for execution in executions} | used))


def batches(executions: Sequence[Execution]) -> Iterator[list[Execution]]:
    """Neighbours that can share a start: same ranks, same variables, and none that wants fresh processes."""

    def start_of(numbered: tuple[int, Execution]) -> object:
        number, execution = numbered
        case = execution.case
        alone = number if case.own_start else None
        variables = sorted(case.environment.items())
        return case.device, case.num_nodes, case.world_size, in_agents(case), variables, alone

    for _, batch in groupby(enumerate(executions), key=start_of):
        yield [execution for _, execution in batch]
