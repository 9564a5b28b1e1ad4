"""A plan as a person reads it before the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from clusterbench.cluster import Cluster, nodes_and_ranks
from clusterbench.types import Case, Plan, Refusal
from clusterbench.units import format_value
from clusterbench.words import aligned, comment, plural


def plan_text(plan: Plan) -> str:
    """Cases, what is expected of each and on what basis, and what is refused and why."""
    lines = [*_head(plan), "#", *_cases(plan.cases)]
    if any(case.expected for case in plan.cases):
        lines += ["#", *_expected(plan.cases)]
    if plan.refusals:
        lines += ["#", *_refused(plan.refusals)]
    return "\n".join(lines)


def _head(plan: Plan) -> list[str]:
    question = f": {plan.question}" if plan.question else ""
    counts = f"{plural(len(plan.cases), 'case')}, {plural(plan.repeats, 'repeat')}, {len(plan.refusals)} refused"
    return [*comment(f"{plan.suite}{question}"), *comment(f"{_machine(plan.cluster)}: {counts}")]


def _machine(cluster: Cluster) -> str:
    name = f" ({cluster.gpu_name})" if cluster.gpu_name else ""
    return nodes_and_ranks(cluster.num_nodes, cluster.ranks_per_node, cluster.device) + name


def _cases(cases: Iterable[Case]) -> list[str]:
    header = ["case", "nodes", "ranks", "iterations", "limit", "asked for by"]
    units = ["", "", "", "", "(s)", ""]
    rows = [
        [case.id, case.num_nodes, case.world_size, case.iterations, f"{case.time_limit_s:.0f}", case.source]
        for case in cases
    ]
    return aligned(header, rows, units)


def _expected(cases: Iterable[Case]) -> list[str]:
    """Every expected value; a basis is said once, however many values rest on it."""
    basis_number: dict[str, int] = {}
    rows = []
    for case in cases:
        for metric, expected in case.expected.items():
            number = basis_number.setdefault(expected.basis, len(basis_number) + 1)
            value = format_value(expected.value, expected.unit)
            rows.append([case.id, metric, value, f"[{number}]"])
    notes = [
        line
        for basis, number in basis_number.items()
        for line in comment(f"[{number}] {basis}", indent=" " * len(f"[{number}] "))
    ]
    return [*aligned(["case", "metric", "expected", "basis"], rows), *notes]


def _refused(refusals: Iterable[Refusal]) -> list[str]:
    alike: dict[tuple[str, str], list[Refusal]] = defaultdict(list)
    for refusal in refusals:
        alike[refusal.reason, refusal.hint].append(refusal)
    lines = []
    for (reason, hint), group in alike.items():
        lines += comment(f"refused: {reason}" + (f"\nhint: {hint}" if hint else ""))
        lines += [line.rstrip() for line in aligned(["", ""], [[member.id, member.source] for member in group])[1:]]
    return lines
