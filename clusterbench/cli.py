"""The command line: parses and prints, decides nothing.

What a verb needs is imported when it runs, so that ``--help`` answers at once and nothing here loads torch or pandas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from clusterbench.errors import ClusterbenchError

if TYPE_CHECKING:
    from clusterbench.plan import Plan

Command = TypeVar("Command", bound=Callable[..., Any])


class _Commands(click.Group):
    """Prints what a user can do something about without a traceback; anything else is a bug and may show one."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClusterbenchError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="clusterbench", message="%(prog)s %(version)s")
def main() -> None:
    """Benchmarks and diagnoses clusters that train large models.

    Data goes to stdout, talk to stderr. Exit code 0: all that should have been measured was; 1: something failed, was
    wrong or was found faulty; 2: the suite or the command line is mistaken.
    """


def cluster_options(command: Command) -> Command:
    """The options that say which machine is meant, spelled alike in every verb."""
    for decorate in (
        click.option("--gpus-per-node", type=click.IntRange(1, 1024), help="GPUs of each node.  [default: those found]"),
        click.option("--num-nodes", type=click.IntRange(1, 100_000), help="Nodes of the allocation.  [default: 1]"),
        click.option(
            "--num-ranks", type=click.IntRange(1, 4096), help="CPU ranks of each node.  [default: the suite's, or 2]"
        ),
        click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cuda where there are GPUs]"),
    ):
        command = decorate(command)
    return command


@main.command()
@click.argument("suite", type=click.Path())
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def plan(
    suite: str,
    device: str | None,
    num_ranks: int | None,
    num_nodes: int | None,
    gpus_per_node: int | None,
    as_json: bool,
) -> None:
    """Show the cases of SUITE, what is expected of each, and what is refused and why. Runs nothing."""
    from clusterbench.plan import describe_cluster, make_plan
    from clusterbench.suite import load_suite

    asked = load_suite(suite)
    made = make_plan(asked, describe_cluster(asked, device, num_ranks, num_nodes, gpus_per_node))
    if as_json:
        click.echo(_plan_as_json(made))
    else:
        from clusterbench.tables import plan_text

        click.echo(plan_text(made))


def _plan_as_json(plan: Plan) -> str:
    import json

    cases = [{"hash": case.hash, **vars(case)} for case in plan.cases]
    return json.dumps({**vars(plan), "cases": cases}, default=vars, indent=1)


@main.command(name="list")
@click.argument("kind", required=False)
@click.argument("name", required=False)
def list_things(kind: str | None, name: str | None) -> None:
    """Show what there is: benchmarks, parallelisms, shapes, suites, charts, diagnoses.

    With KIND, one line each. With KIND and NAME, all about one: a benchmark's options, for instance.
    """
    from clusterbench.catalogue import about, kinds, listing

    if kind is None:
        click.echo("\n\n".join(listing(each) for each in kinds()))
    elif name is None:
        click.echo(listing(kind))
    else:
        click.echo(about(kind, name))


if __name__ == "__main__":
    main()
