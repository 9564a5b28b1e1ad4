"""``clusterbench list``: benchmarks, parallelisms, shapes, suites and what else there is."""

from __future__ import annotations

import click

from clusterbench.cli.output import say


@click.command(name="list", short_help="Show benchmarks, parallelisms, shapes, suites ...")
@click.argument("kind", required=False)
@click.argument("name", required=False)
def list_things(kind: str | None, name: str | None) -> None:
    """Show what there is: benchmarks, parallelisms, shapes, cards, suites, charts ...

    With KIND, one line each. With KIND and NAME, all about one: a benchmark's options and metrics, for instance.
    """
    from clusterbench.catalogue import about, kinds, listing

    if kind is None:
        say("\n\n".join(listing(each) for each in kinds()))
    elif name is None:
        say(listing(kind))
    else:
        say(about(kind, name))
