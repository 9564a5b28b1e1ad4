"""``clusterbench env``: what a bug report should say of a host."""

from __future__ import annotations

from pathlib import Path

import click

from clusterbench.cli.output import say, write


@click.command(short_help="Show what a bug report should say of this host.")
@click.option("--json", "as_json", is_flag=True, help="All that a run would record of it, for programs.")
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), help="Write it as a page, too: one HTML file.")
def env(as_json: bool, page: Path | None) -> None:
    """Versions, hardware, variables and how devices are joined on this host. Secrets in variables are left out."""
    import json
    from datetime import date

    from clusterbench.doctor.env import env_text
    from clusterbench.engine.environment import host_environment
    from clusterbench.facts import gather

    host = {**host_environment(), "facts": gather()}
    if page is not None:
        from clusterbench.doctor.host_page import host_page

        write(host_page(host, date.today()), page, "--page")
    if as_json:
        click.echo(json.dumps(host, indent=1))
    else:
        say(env_text(host))
