"""``clusterbench bundle``: one file of a run, to send."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Make one file of a run, to send.")
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The archive.  [default: RUN.clusterbench.tar.gz]")
def bundle(run_folder: Path, out: Path | None) -> None:
    """Make one archive of the run in RUN, with checksums and without secrets; 'clusterbench report' opens it."""
    import os

    from clusterbench.run_folder.bundle import write_bundle

    archive, replaced = write_bundle(run_folder, out, os.environ)
    click.echo(archive)
    if replaced:
        click.echo(f"what looked like a secret was replaced in {', '.join(replaced)}", err=True)
