"""No GPU hour meets a crash that could have been seen here: steps of the shipped suites, run dry.

So few that each two axes, options and stages that come together in any case do so in one of them; ``python -m
tests.dry_all`` runs all.
"""

from __future__ import annotations

import pytest

from clusterbench.dry.processes import DryRunFailed, dry_answers
from tests import share
from tests.dry.shipped import of_each_kind, pairwise, tasks_of_suites
from tests.share import some_of


@pytest.mark.in_turn
@pytest.mark.timeout(900)
def test_steps_in_which_each_two_things_come_together_run() -> None:
    first = tasks_of_suites()
    kinds = {few: first[task] for task, few in of_each_kind(first, smallest=True)}
    chosen = some_of(pairwise(list(kinds)), kinds.__getitem__)
    assert len(chosen) > 40 * share.share
    answers = dict(dry_answers(chosen))
    failed = {kinds[task]: str(answer) for task, answer in answers.items() if isinstance(answer, DryRunFailed)}
    assert failed == {}
    assert answers.keys() == set(chosen)
