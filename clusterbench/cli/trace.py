"""``clusterbench trace``: the traced step of a case as a Chrome trace."""

from __future__ import annotations

from pathlib import Path

import click

from clusterbench.cli.output import write


@click.command(short_help="Write a traced step for ui.perfetto.dev.")
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--case", "asked", metavar="ID", help="Its case, as rows.csv names it.  [default: the only one]")
@click.option("--out", type=click.Path(path_type=Path), help="The file of JSON.  [default: stdout]")
def trace(run_folder: Path, asked: str | None, out: Path | None) -> None:
    """Write what ran when in a training step of the run in folder RUN, to zoom into: for ui.perfetto.dev.

    A process is a rank; its threads are what it computed, what it communicated along each axis, what of that showed,
    and the actions of its pipeline. Of many ranks some are kept.
    """
    from clusterbench.report.step_trace import step_trace
    from clusterbench.run_folder import RunFolder

    run = RunFolder.open(run_folder)
    made = step_trace(run, asked)
    write("".join(made.pieces()), out)
    if out is not None:
        of = made.about
        click.echo(f"{of['case']}: {made.num_events:,} events of {of['of']}; open {out} at ui.perfetto.dev", err=True)
