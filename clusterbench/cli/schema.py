"""``clusterbench schema``: what a suite may hold, for editors."""

from __future__ import annotations

import json
from pathlib import Path

import click

from clusterbench.cli.output import write


@click.command(short_help="Print a JSON Schema of suites, for editors.")
@click.option("--out", type=click.Path(path_type=Path), help="The file of the schema.  [default: stdout]")
def schema(out: Path | None) -> None:
    """Print a JSON Schema of suites, by which editors complete and explain keys and mark mistakes.

    Of every benchmark, parallelism and metric that this version has. The first line of a suite names the file:
    '# yaml-language-server: $schema=suite.schema.json'.
    """
    from clusterbench.planning.suite_schema import suite_schema

    write(json.dumps(suite_schema(), indent=1, ensure_ascii=False) + "\n", out)
