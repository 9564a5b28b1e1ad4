"""``clusterbench price``: what training steps cost, from a table of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterbench.cli.inputs import known_cluster, steps_of
from clusterbench.cli.options import WholeRange, accept_option, of_table_options, profile_option
from clusterbench.cli.output import add_remark, expect_others, write
from clusterbench.garbage import uncollected


@click.command(short_help="Tell what training steps cost, from a table of them.")
@click.argument("table", type=click.Path(path_type=Path))
@profile_option
@of_table_options
@click.option("--rates", type=click.Path(path_type=Path), help="Measured rates in place of typical ones.")
@accept_option
@click.option("--scale-from", type=WholeRange(2), metavar="LINE", help="Set all times by this line's measured one.")
@click.option("--out", type=click.Path(path_type=Path), help="The CSV.  [default: stdout]")
@uncollected(to_the_end=True)
def price(
    table: Path,
    profile: str,
    gpu: str | None,
    gpus_per_node: int | None,
    nics: str | None,
    cluster: Path | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Print the step time of every row of TABLE, a CSV of layouts or a run: its interval, its parts and its memory.

    Without --rates all of it is worked out from datasheets and what healthy machines reach of them, and says so first.
    Where rows have a measured time, too, it is said how good the ranking is.
    """
    from clusterbench.pricing.verb import as_csv, price_table

    expect_others({"--out": out}, {"TABLE": table, "--cluster": cluster, "--rates": options["rates"]})
    of = known_cluster(cluster).but(gpu=gpu, gpus_per_node=gpus_per_node, nics=nics)
    priced = price_table(steps_of(table, of), profile, of.gpu, of.nics, **options)
    for remark in priced.remarks:
        add_remark(remark, err=True)
    write(as_csv(priced), out)
