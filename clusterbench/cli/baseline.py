"""``clusterbench baseline``: records what a healthy machine reaches."""

from __future__ import annotations

from pathlib import Path

import click

from clusterbench.cli.output import add_remark


@click.command(short_help="Record what a healthy machine reaches.")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file; it must not be there.")
def baseline(folders: tuple[Path, ...], out: Path) -> None:
    """Write every figure of RUN... with its median and interval, machine by machine, into a file.

    'compare FILE RUN' and floors '0.95 of baseline' hold later runs against it. Cases that failed, were wrong or whose
    iterations differ too much are left out, and named.
    """
    from clusterbench.derive.baseline import write_baseline

    for remark in write_baseline(folders, out):
        add_remark(remark, err=True)
    click.echo(out)
