"""A run that one copy of the package began and another goes on with: two programs, each with what it expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from clusterbench.errors import SuiteError
from clusterbench.own_copy import version
from clusterbench.planning import make_plan
from clusterbench.run_folder import COPIES, RunFolder, noted
from clusterbench.run_folder.copies import copies_in_words
from clusterbench.suite import Suite
from clusterbench.terminal import tell
from clusterbench.types import Expected, Plan, Replanned
from clusterbench.words import few, plural


def this_copy(digest: str) -> Mapping[str, str]:
    """What environment.json says of the copy that runs."""
    return {digest: version()}


def as_this_copy_expects(directory: RunFolder, plan: Plan, suite: Suite, digest: str) -> Plan:
    """The plan of a run to go on with, with what the steps of this copy should show; said where another ran before.

    Benchmarks have a version each, and a run with another one is refused. Their sources may differ all the same, and
    so may what their steps send, hold and compute: a result is held against what its own copy expects.
    """
    if digest not in noted(directory.environment(), COPIES):
        known = {(again.copy, again.hash) for again in plan.replanned}  # where the last run was killed just here
        new = [again for again in _replanned(plan, suite, digest) if (again.copy, again.hash) not in known]
        directory.plan_anew(new)
        directory.note(COPIES, this_copy(digest))
        plan = replace(plan, replanned=(*plan.replanned, *new))
    ran_before = dict.fromkeys(ended.copy for ended in directory.outcomes() if ended.status in ("ok", "wrong"))
    if others := [copy for copy in ran_before if copy != digest]:
        tell(_said(directory, plan, others, digest))
    return replace(plan, cases=tuple(plan.case_of(case, digest) for case in plan.cases))


def _replanned(plan: Plan, suite: Suite, digest: str) -> Iterator[Replanned]:
    """Cases of which this copy expects something else; what it would refuse by now keeps what it was planned with."""
    why = ""
    try:
        today = {case.hash: case.expected for case in make_plan(suite, plan.cluster).cases}
    except SuiteError as error:
        today, why = {}, f": {str(error).splitlines()[0]}"
    if unplanned := [case.id for case in plan.cases if case.hash not in today]:
        tell(f"note: this clusterbench would not plan {few(unplanned)} any more, so what was expected stays{why}")
    for case in plan.cases:
        if today.get(case.hash, case.expected) != case.expected:
            yield Replanned(digest, case.hash, today[case.hash])


def _said(directory: RunFolder, plan: Plan, others: Sequence[str], digest: str) -> str:
    versions = noted(directory.environment(), COPIES)
    unlike = sum(_values(case.expected) != _values(plan.case_of(case, digest).expected) for case in plan.cases)
    expects = f"other figures of {plural(unlike, 'case')}" if unlike else "the same figures"
    return (
        f"note: {directory.path} has results of {copies_in_words(others, versions)}, and goes on with "
        f"{copies_in_words([digest], versions)}, which expects {expects}. Each result is held against what its own "
        "sources expect; where repeats of a case are of both, its time is of both."
    )


def _values(expected: Mapping[str, Expected]) -> Mapping[str, float]:
    return {key: of.value for key, of in expected.items()}
