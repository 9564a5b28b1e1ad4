"""``clusterbench import``: a run of other tools' results."""

from __future__ import annotations

from pathlib import Path

import click

from clusterbench.cli.options import WholeRange, num_nodes_option
from clusterbench.cli.output import say


@click.command(name="import", short_help="Make a run of other tools' results.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--mapping", type=click.Path(path_type=Path), help="What the columns of a CSV mean: docs/importing.md.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run.  [default: reports/DATE-TIME-NAME]")
@click.option("--op", help="Collective of nccl-tests, where its output does not name it.")
@click.option("--num-ranks", type=WholeRange(1, 1_000_000), help="Ranks, where the output does not list them all.")
@num_nodes_option("Nodes, where the output does not list them all.")
def import_results(
    files: tuple[Path, ...],
    mapping: Path | None,
    out: Path | None,
    op: str | None,
    num_ranks: int | None,
    num_nodes: int | None,
) -> None:
    """Make an ordinary run, with report, of what other tools wrote into FILE...

    These are nccl-tests' output (text or JSON), what other benchmarks printed (docs/importing.md), the CSV of
    nanotron's benchmarks, and any CSV with a mapping file. Figures stay what the files say; a file that cannot be
    read whole is an error and leaves nothing behind.
    """
    from clusterbench.importing import Facts, import_files
    from clusterbench.report import render_report

    made = render_report(import_files(files, mapping, out, Facts(op, num_ranks, num_nodes)))
    say(f"{made.headline.text}\n\n{made.verdict.text()}", err=True)
    click.echo(made.path)
    click.get_current_context().exit(made.verdict.exit_code)
