"""``clusterbench report``: makes a run's report again, or one of several runs."""

from __future__ import annotations

from pathlib import Path

import click

from clusterbench.cli.options import accept_option, fail_on_option
from clusterbench.cli.output import say
from clusterbench.garbage import uncollected


@click.command(short_help="Make a run's report again, or one of several runs.")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="New folder for a report of several runs.")
@click.option("--with-not-judged", is_flag=True, help="Put hosts that are not judged among the good_hosts.")
@click.option("--rates", type=click.Path(path_type=Path), help="Price its training steps.  [default: by its own rates]")
@click.option("--markdown", is_flag=True, help="Print what it says first, for a pull request or a chat.")
@accept_option
@fail_on_option
@uncollected(to_the_end=True)
def report(
    folders: tuple[Path, ...],
    out: Path | None,
    with_not_judged: bool,
    rates: Path | None,
    markdown: bool,
    accepted: tuple[str, ...],
    fail_on: tuple[str, ...] | None,
) -> None:
    """Derive rows.csv, verdict.json, hosts.json and index.html of the run in folder RUN again, from what was observed.

    Of several runs one page is made in the folder --out: as parts of one experiment where they have no case in common,
    the same kind of GPU or CPU and no two models of one name, such as a run for each number of nodes, and otherwise
    side by side. A RUN may be a
    bundle, which is unpacked beside it. Ends with the exit code that the verdict stands for.
    """
    from clusterbench.derive import AskedRates
    from clusterbench.report import render_report
    from clusterbench.report.several import render_together
    from clusterbench.run_folder import RunFolder
    from clusterbench.run_folder.bundle import open_bundle

    if (len(folders) > 1) != (out is not None):
        raise click.UsageError(
            f"a report of {len(folders)} runs needs a folder of its own.\nhint: add --out FOLDER"
            if out is None
            else "--out has no effect on the report of one run, which stands in its folder."
        )
    if with_not_judged and out is not None:
        raise click.UsageError("--with-not-judged has no effect on a report of several runs, which lists no hosts.")
    opened = [open_bundle(folder, folder.parent) if folder.is_file() else folder for folder in folders]
    runs = [RunFolder.open(folder) for folder in opened]
    asked = AskedRates(rates, accepted)
    if out is None:
        made = render_report(runs[0], fail_on, with_not_judged, asked)
    else:
        made = render_together(runs, out, fail_on, asked)
    say(str(made.path) if markdown else made.text, err=True)
    click.echo(made.markdown if markdown else made.path)
    click.get_current_context().exit(made.verdict.exit_code)
