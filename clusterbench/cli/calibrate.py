"""``clusterbench calibrate``: a machine's rates from a few measured steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterbench.cli.inputs import known_cluster, steps_of
from clusterbench.cli.options import accept_option, of_table_options, profile_option
from clusterbench.cli.output import add_remark, expect_others, write


@click.command(short_help="Learn a machine's rates from a few measured steps.")
@click.argument("table", type=click.Path(path_type=Path))
@profile_option
@of_table_options
@click.option("--rates", type=click.Path(path_type=Path), help="What is known already, such as a probed network.")
@accept_option
@click.option(
    "--lines",
    metavar="A,B",
    callback=lambda _, __, text: _line_numbers(text),
    help="Take the rows in these lines.  [default: eight, chosen by their configurations]",
)
@click.option("--out", type=click.Path(path_type=Path), help="The file.  [default: stdout]")
def calibrate(
    table: Path,
    profile: str,
    gpu: str | None,
    gpus_per_node: int | None,
    nics: str | None,
    cluster: Path | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Print a file for 'price --rates': the rates that measured steps of TABLE, a CSV or a run, determine.

    Of a table five rows on one node and three on two are chosen, by what their configurations are and not by what was
    measured; of a run all cases are taken.
    """
    from clusterbench.pricing.rates_file import rates_text
    from clusterbench.pricing.verb import calibrate_table

    expect_others({"--out": out}, {"TABLE": table, "--cluster": cluster, "--rates": options["rates"]})
    of = known_cluster(cluster).but(gpu=gpu, gpus_per_node=gpus_per_node, nics=nics)
    found, remarks = calibrate_table(steps_of(table, of), profile, of.gpu, of.nics, **options)
    for remark in remarks:
        add_remark(remark, err=True)
    write(rates_text(found), out)


def _line_numbers(text: str | None) -> tuple[int, ...]:
    """``2,5,9``."""
    numbers = (text or "").split(",") if text else []
    if not all(number.strip().isdecimal() for number in numbers):
        raise click.BadParameter(f"must be line numbers with commas between, as 2,5,9, not {text!r}")
    return tuple(map(int, numbers))
