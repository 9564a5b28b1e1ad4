"""The same measurement on another number of nodes, as its suite would plan it there."""

from __future__ import annotations

import re
from dataclasses import replace

from clusterbench.cluster import Cluster
from clusterbench.errors import SuiteError
from clusterbench.planning import make_plan
from clusterbench.suite import Suite
from clusterbench.types import Case


def on_cluster(suite: Suite, case: Case, cluster: Cluster) -> Case | None:
    """The case of the same name that ``suite`` has on all of ``cluster``; None where it has none.

    A size in a layout may differ only for data parallelism, which takes the ranks that are left: ``dp4`` on four hosts
    is ``dp2`` on two, and ``tp4`` on two is nothing.
    """
    asked = replace(
        suite,
        num_nodes=(cluster.num_nodes,),
        items=tuple(item for item in suite.items if item.benchmark == case.benchmark),
        cpu=replace(suite.cpu, num_nodes=None),
        gpu=replace(suite.gpu, num_nodes=None),
    )
    try:
        plan = make_plan(asked, cluster)
    except SuiteError:  # nothing of it can be there
        return None
    return next((other for other in plan.cases if _measures(other) == _measures(case)), None)


def _measures(case: Case) -> tuple[object, ...]:
    """What tells a case from the others of its suite, whatever the number of nodes."""
    label = case.id.split("/", 2)[-1]
    if case.layout is not None:
        label = re.sub(r"\bdp\d+", "dp*", label)
    return case.benchmark, label, case.iterations, case.warmup
