"""Why nothing is known of whether a training step computed what one rank computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from clusterbench.measured.agreement import disputed_cases
from clusterbench.measured.nodes import NODE_STEP
from clusterbench.measured.speed import LONE_RANK
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History

STEPS = ("train_step", NODE_STEP, LONE_RANK)
"""Benchmarks that train."""


def unproven_steps(histories: Iterable[History], by_metric: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """Those that were measured and not wholly held against one rank, by id, with why."""
    disputed = disputed_cases(by_metric.get("agreement", ()))
    checked = {
        row.case
        for metric, rows in by_metric.items()
        if metric.startswith("parity_")
        for row in rows
        if row.value is not None
    }
    trained = [history for history in histories if history.case.benchmark in STEPS and history.observations]
    return {history.case.id: why for history in trained if (why := _why_not_proven(history, checked, disputed))}


def _why_not_proven(history: History, checked: Set[str], disputed: Set[str]) -> str:
    """Why nothing is known of whether a case computed what one rank computes; empty where it was checked."""
    if history.case.benchmark == LONE_RANK:
        return "with communication: fake (one rank alone, nothing sent)"
    if not history.case.point.get("parity", True):
        return "with parity: false"
    if history.case.id not in checked:
        return "without a record of the check"
    if not _is_wholly_checked(history):
        return "of whose check a rank or a comparison is not in the record"
    if history.case.id in disputed:
        return "whose loss or norm differs from a case that should compute the same, and no case on one rank decides"
    return ""


def _is_wholly_checked(history: History) -> bool:
    """Whether each rank has every comparison that the plan gives a tolerance: all of them get one answer."""
    asked = [key for key in history.case.expected if key.startswith("parity_")]
    evidence = history.pooled.evidence if history.pooled else ()
    return not asked or (bool(evidence) and all(key in of_rank for of_rank in evidence for key in asked))
