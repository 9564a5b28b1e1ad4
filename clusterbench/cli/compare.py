"""``clusterbench compare``: holds one run against another, or against a baseline."""

from __future__ import annotations

from pathlib import Path

import click

from clusterbench.cli.options import FiniteRange, accept_option
from clusterbench.cli.output import say


@click.command(short_help="Hold one run against another, or against a baseline.")
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--threshold",
    type=FiniteRange(0, 1),
    default=0.05,
    show_default=True,
    help="The margin: a slowdown beyond this fraction is a regression.",
)
@accept_option
@click.option("--fewer-cases", is_flag=True, help="NEW leaves out cases of BASE on purpose.  [default: undecided]")
@click.option("--markdown", is_flag=True, help="For a pull request.")
def compare(
    base: Path, new: Path, threshold: float, accepted: tuple[str, ...], fewer_cases: bool, markdown: bool
) -> None:
    """Hold the run in NEW against BASE, case by case: the folder of a run, or a file that 'baseline' wrote.

    Each change stands beside its interval and the smallest change that this noise would have shown. Exit code 0: a
    regression beyond the margin is excluded; 1: something is shown to be worse, or fails now; 3: undecided.
    """
    from clusterbench.compare import compare_runs
    from clusterbench.compare.against_baseline import compare_with_baseline
    from clusterbench.compare.text import as_markdown, as_text
    from clusterbench.run_folder import is_run

    if accepted and is_run(base):
        raise click.UsageError("--accept-other has no effect on a run: in what its machine differs is said")
    found = (
        compare_runs(base, new, threshold, fewer_cases)
        if is_run(base)
        else compare_with_baseline(base, new, accepted, threshold, fewer_cases)
    )
    if markdown:
        click.echo(as_markdown(found))
    else:
        say(as_text(found))
    click.get_current_context().exit(found.exit_code)
