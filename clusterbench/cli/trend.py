"""``clusterbench trend``: steps and drifts in a series of runs."""

from __future__ import annotations

from pathlib import Path

import click

from clusterbench.cli.options import FiniteRange
from clusterbench.cli.output import say


@click.command(short_help="Find steps and drifts in a series of runs.")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--threshold",
    type=FiniteRange(0, 1),
    default=0.02,
    show_default=True,
    help="The margin: a change below this fraction counts as steady.",
)
@click.option("--json", type=click.Path(path_type=Path), help="Write what was found into this file, for programs.")
def trend(folders: tuple[Path, ...], threshold: float, json: Path | None) -> None:
    """Find steps and drifts in RUN..., five runs or more of the same cases, in the order in which they were made.

    Beside each step stands what changed in the environment. Exit code 0: nothing is shown to be worse; 1: something is,
    or ended badly in the last run; 2: the runs cannot be a series; 3: too few runs to show anything.
    """
    from clusterbench.run_folder import expect_no_record
    from clusterbench.trend import trend_of_folders
    from clusterbench.trend.text import as_text, write_json

    if json is not None:
        expect_no_record(json, "--json")
    found = trend_of_folders(folders, threshold)
    if json is not None:
        write_json(found, json)
    say(as_text(found))
    click.get_current_context().exit(found.exit_code)
