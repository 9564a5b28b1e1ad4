"""What one asks of a run that was read: its cases, which belong together, which is the fastest, how they are called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from clusterbench.cases.matrices import Matrix, matrices
from clusterbench.cases.trained import Trained, trained
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from clusterbench.types import Plan


@dataclass(frozen=True)
class Reading:
    """A run as it was read from disk: the plan, what happened, and every row that follows from it.

    ``problems`` are sentences about what could not be read.
    """

    run: str
    plan: Plan
    histories: tuple[History, ...]
    rows: list[Row]
    environment: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @cached_property
    def trained(self) -> list[Trained]:
        """Training cases with all their figures, each once; those without a figure too, and refusals."""
        return trained(self.rows)

    @property
    def is_imported(self) -> bool:
        """Whether all cases are figures of another tool."""
        return bool(self.histories) and all(history.case.benchmark == "imported" for history in self.histories)

    def trained_with(self, *metrics: str) -> list[Trained]:
        """Those with a figure of one of these metrics, or without any figure."""
        cases = {row.case for metric in metrics for row in self.rows_of(metric)}
        return [case for case in self.trained if not case.figures or case.row.case in cases]

    @cached_property
    def _by_metric(self) -> dict[str, list[Row]]:
        by_metric: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            by_metric[row.metric].append(row)
        return by_metric

    @cached_property
    def matrices(self) -> list[Matrix]:
        """Every matrix of pairs."""
        return matrices(self.rows)

    @cached_property
    def _measured(self) -> dict[str, set[str]]:
        metrics: dict[str, set[str]] = defaultdict(set)
        for row in self.rows:
            if row.value is not None:
                metrics[row.case].add(row.metric)
        return metrics

    def has_figure(self, case: str, prefix: str) -> bool:
        """Whether a case has a figure of a metric whose name begins so."""
        return any(metric.startswith(prefix) for metric in self._measured.get(case, ()))

    def rows_of(self, metric: str) -> list[Row]:
        """The rows of one metric."""
        return self._by_metric.get(metric, [])
