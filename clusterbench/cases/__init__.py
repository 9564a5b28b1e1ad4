"""What one asks of a run that was read: its cases, which belong together, which is the fastest, how they are called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from clusterbench.cases.heatmaps import Heatmap, heatmaps
from clusterbench.cases.matrices import CELLS, Matrix, matrices
from clusterbench.cases.prices import Prices
from clusterbench.cases.proven import unproven_steps
from clusterbench.cases.ranking import METRICS
from clusterbench.cases.steadiness import DRIFT, MEASURES, TOO_FEW, is_unsettled, is_unsteady
from clusterbench.cases.trained import Trained, trained
from clusterbench.measured.nodes import NODE_STEP
from clusterbench.measured.speed import LONE_RANK
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from clusterbench.types import Plan


@dataclass(frozen=True)
class Reading:
    """A run as it was read from disk: the plan, what happened, and every row that follows from it.

    ``problems`` are sentences about what could not be read; ``prices`` are there where rates of the machine were known.
    ``cut_short`` says of a run that was to last a time how much of it is over, where that is not all.
    ``hosts_of_runs`` are the names of the hosts of each of several runs that stand side by side, to be compared.
    ``named_twice`` are hosts that said something else of themselves in another of several runs, each with its own name.
    """

    run: str
    plan: Plan
    histories: tuple[History, ...]
    rows: list[Row]
    environment: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    prices: Prices = field(default_factory=Prices)
    cut_short: tuple[str, ...] = ()
    hosts_of_runs: tuple[tuple[str, ...], ...] = ()
    named_twice: Mapping[str, str] = field(default_factory=dict)

    def own_hosts(self, names: Iterable[str]) -> tuple[str, ...]:
        """Hosts by their own names, each once."""
        return tuple(dict.fromkeys(self.named_twice.get(name, name) for name in names))

    @cached_property
    def trained(self) -> list[Trained]:
        """Training cases with all their figures, each once; those without a figure too, and refusals.

        None that were dry, and no rank or node alone: none is a step of its layout on all ranks. Nor are collectives
        along a layout's axis, which have a size.
        """
        others = "dry_step", LONE_RANK, NODE_STEP
        return trained(row for row in self.rows if row.benchmark not in others and "size_bytes" not in row.point)

    @property
    def lone_ranks(self) -> list[History]:
        """Cases of one rank that computed alone, with nothing sent."""
        return [history for history in self.histories if history.case.benchmark == LONE_RANK]

    @property
    def is_imported(self) -> bool:
        """Whether all cases are figures of another tool."""
        return bool(self.histories) and all(history.case.benchmark == "imported" for history in self.histories)

    @property
    def is_dry(self) -> bool:
        """Whether all cases were worked out on tensors without data."""
        return bool(self.histories) and all(history.case.benchmark == "dry_step" for history in self.histories)

    @property
    def shares_gpus(self) -> bool:
        """Whether several ranks had each GPU, so that no time says anything."""
        return self.plan.cluster.ranks_per_gpu > 1

    @property
    def ran_here(self) -> bool:
        """Whether a machine was used, of which something could be said."""
        if self.shares_gpus:
            return False
        return not self.histories or any(history.ran_here for history in self.histories)

    def run_of(self, history: History) -> str:
        """Of which of several runs a case is; nothing where there is one."""
        return self.by_case[history.case.id][0].run if self._has_several_runs else ""

    @cached_property
    def _has_several_runs(self) -> bool:
        return len({row.run for row in self.rows}) > 1

    @cached_property
    def has_several_hosts(self) -> bool:
        """Whether there is a host to hold another against."""
        observed = {host for history in self.histories for seen in history.observations for host in seen.hosts}
        return self.plan.cluster.num_nodes > 1 or len(observed) > 1

    @cached_property
    def history_of(self) -> dict[str, History]:
        """By the id of its case."""
        return {history.case.id: history for history in self.histories}

    @cached_property
    def unproven(self) -> dict[str, str]:
        """Training cases that were measured and not wholly held against one rank, with why."""
        return unproven_steps(self.histories, self.by_metric)

    def trained_with(self, *metrics: str) -> list[Trained]:
        """Those with a figure of one of these metrics, or without any figure."""
        cases = set().union(*(self.cases_with(metric) for metric in metrics))
        return [case for case in self.trained if not case.figures or case.row.case in cases]

    @cached_property
    def by_case(self) -> dict[str, list[Row]]:
        """The rows of each case, and of each refusal."""
        by_case: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            by_case[row.case].append(row)
        return by_case

    @cached_property
    def measured(self) -> list[Row]:
        """Of each case that has a figure the first row with one."""
        firsts = (next((row for row in rows if row.value is not None), None) for rows in self.by_case.values())
        return [row for row in firsts if row is not None]

    @cached_property
    def by_metric(self) -> dict[str, list[Row]]:
        """The rows of each metric; those of cases without a figure have none."""
        by_metric: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            by_metric[row.metric].append(row)
        return dict(by_metric)

    def rows_of(self, *metrics: str) -> list[Row]:
        """The rows of these metrics, in the order of all rows."""
        found = [self.by_metric[metric] for metric in metrics if metric in self.by_metric]
        if len(found) > 1:
            return [row for row in self.rows if row.metric in metrics]
        return found[0] if found else []

    def cases_with(self, metric: str) -> set[str]:
        """Cases with a row of this metric."""
        if metric not in self._cases_with:
            self._cases_with[metric] = {row.case for row in self.rows_of(metric)}
        return self._cases_with[metric]

    @cached_property
    def _cases_with(self) -> dict[str, set[str]]:
        return {}

    @cached_property
    def unsteady(self) -> set[str]:
        """Cases whose iterations differ too much."""
        return {row.case for metric in MEASURES for row in self.rows_of(metric) if is_unsteady(row)}

    @cached_property
    def too_short(self) -> set[str]:
        """Cases that ran on a machine, with too few iterations to tell how steady they are."""
        return {
            history.case.id
            for history in self.histories
            if self.ran_here and history.ran_here and history.pooled and len(history.pooled.seconds[0]) <= TOO_FEW
        }

    @cached_property
    def unsettled(self) -> set[str]:
        """Cases that were timed before their clocks had settled."""
        return {row.case for row in self.rows_of(DRIFT) if is_unsettled(row)}

    @cached_property
    def matrices(self) -> list[Matrix]:
        """Every matrix of pairs."""
        return matrices(self.rows_of(*CELLS))

    @cached_property
    def heatmaps(self) -> list[Heatmap]:
        """Every workload that was a choice between configurations."""
        return heatmaps(self.trained_with(*METRICS), self.history_of)
