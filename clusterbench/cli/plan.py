"""``clusterbench plan``: what a suite will run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterbench.cli.options import (
    accept_option,
    baseline_option,
    device_option,
    gpus_per_node_option,
    num_nodes_option,
    num_ranks_option,
    ranks_per_gpu_option,
)
from clusterbench.cli.output import say
from clusterbench.garbage import uncollected

if TYPE_CHECKING:
    from clusterbench.types import Plan


@click.command(short_help="Show what a suite will run, and what is expected.")
@click.argument("suite", type=click.Path())
@click.option("--gpu", help="Card of a machine elsewhere, such as 'NVIDIA H200'; in its usual server, unless said.")
@device_option
@num_ranks_option
@num_nodes_option("Nodes of the allocation.  [default: 1; elsewhere the fewest that the suite asks for]")
@gpus_per_node_option("GPUs of each node.  [default: those found]")
@ranks_per_gpu_option
@baseline_option
@accept_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@uncollected(to_the_end=True)
def plan(suite: str, baseline: Path | None, accepted: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Show the cases of SUITE, what is expected of each, and what is refused and why. Runs nothing.

    SUITE is a file, or a name that 'list suites' shows.
    """
    from clusterbench.cluster import MachineOptions
    from clusterbench.planning.text import plan_text
    from clusterbench.planning.verb import asked_plan

    made = asked_plan(suite, MachineOptions(**options), baseline, accepted)
    if as_json:
        click.echo(_plan_as_json(made))
    else:
        say(plan_text(made))


def _plan_as_json(plan: Plan) -> str:
    import json

    cases = [{"hash": case.hash, **vars(case)} for case in plan.cases]
    return json.dumps({**vars(plan), "cases": cases}, default=vars)
