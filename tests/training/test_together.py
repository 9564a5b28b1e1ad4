"""Cases that share a start of ranks: whose failure it is when one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.training import jobs
from tests.training.jobs import Case, Together

WELL, WRONG, UNLUCKY = CASES = [("tp1", {}, {"seq_len": length}) for length in (16, 32, 64)]


def test_a_failure_is_that_of_its_own_case_and_a_death_that_is_not_repeated_of_none(monkeypatch):
    starts: list[int] = []

    def run_ranks(world_size: int, each: Callable[..., Any], of: Any, cases: Sequence[Case], **limits: Any) -> Any:
        starts.append(len(cases))
        if UNLUCKY in cases and len(cases) > 1:
            raise AssertionError("rank 0:\nended without a word, with -11")
        if WRONG in cases:
            raise AssertionError("rank 0:\nValueError: planted")
        return [[case[2]["seq_len"] for case in cases] for _ in range(world_size)]

    monkeypatch.setattr(jobs, "run_ranks", run_ranks)
    together = Together(jobs.memory_of, CASES)
    assert together(WELL) == [16]
    for _ in range(2):
        with pytest.raises(AssertionError, match="planted"):
            together(WRONG)
    assert together(UNLUCKY) == [64]
    assert starts == [3, 1, 1, 1]
