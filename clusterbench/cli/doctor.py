"""``clusterbench doctor``: whether hosts are healthy, and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterbench.cli.options import device_option, hosts_option, num_nodes_option, said_options, seconds
from clusterbench.cli.output import expect_others, say

_LIMIT_S, _LEAST_LIMIT_S = 20.0, 3.0
"""Of ``doctor --prolog``: below the least nothing is ever judged; Python's own start is no shorter than a second."""


@click.command(short_help="Tell whether hosts are healthy, and what is wrong.")
@click.option("--quick", is_flag=True, help="Facts only, in 3 s: what each host's files and drivers say; no torch.")
@click.option("--deep", is_flag=True, help="Every GPU, host and link against what it should reach, in minutes.")
@click.option("--list", "listing", is_flag=True, help="All checks, a line each. Nothing is looked at.")
@click.option("--log", is_flag=True, help="Judge FILES instead of hosts: logs, what programs printed; - is stdin.")
@click.option("--prolog", is_flag=True, help="For a scheduler: --quick within --limit, and 1 only for --drain-on.")
@click.option(
    "--limit",
    "limit_s",
    metavar="TIME",
    callback=lambda _, __, text: seconds(text),
    help=f"Time that --prolog may take.  [default: {_LIMIT_S:g}s]",
)
@click.option(
    "--drain-on",
    metavar="A,B",
    callback=lambda _, __, text: _names_of_checks(text),
    help="Checks whose findings make exit code 1; no others do. With --prolog none, unless said.",
)
@click.option("--accept", type=click.Path(path_type=Path), help="A file of findings that are known and accepted.")
@click.option("--json", type=click.Path(path_type=Path), help="Write what was found into this file, for programs.")
@click.option("--junit", type=click.Path(path_type=Path), help="The same as JUnit's XML: a suite a check.")
@click.option("--openmetrics", type=click.Path(path_type=Path), help="The same as gauges for Prometheus.")
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), help="The same as a page, one HTML file.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of what is measured.  [default: reports/DATE-TIME]"
)
@device_option
@num_nodes_option("Take the first N hosts.  [default: all]")
@hosts_option("Without a launcher: start on these hosts over ssh. With one: take these of its hosts.  [default: all]")
@click.option("--exclude", metavar="A,B|FILE", help="Leave these hosts out.")
@click.option("--launch", metavar="COMMAND", help="Start this launcher ('mpirun -n 2 -host a,b') on hosts that answer.")
@click.option("--not-reached", multiple=True, hidden=True)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
def doctor(
    quick: bool,
    deep: bool,
    listing: bool,
    log: bool,
    prolog: bool,
    limit_s: float | None,
    launch: str | None,
    files: tuple[Path, ...],
    **options: Any,
) -> None:
    """Look at this host, or at all hosts of a launcher (mpirun, srun, torchrun ...), and say what is wrong with them.

    Without --quick every GPU and host also works for some seconds, which shows those that are slower than their peers.
    Nothing is changed. Exit code 0: nothing was found; 1: something was found that is not accepted; 2: a mistake in
    the command line.

    With --log nothing is looked at but FILES: a kernel's log, NCCL's, the fabric manager's, ibstat and others.
    """
    if log != bool(files):
        raise click.UsageError("--log takes the files to read" if log else f"{files[0]} has no effect without --log")
    if listing:
        for name in said_options():
            if name not in ("listing", "files"):
                option = name.removesuffix("_s").replace("_", "-")
                raise click.UsageError(f"--{option} has no effect with --list, which looks at nothing")
        from clusterbench.doctor.listing import listing as all_checks

        say(all_checks())
        return
    if quick + deep + prolog + log > 1:
        raise click.UsageError("--quick, --deep, --log and --prolog exclude each other")
    if limit_s is not None and not prolog:
        raise click.UsageError("--limit has no effect without --prolog")
    if limit_s is not None and limit_s < _LEAST_LIMIT_S:
        raise click.UsageError(f"--limit must be {_LEAST_LIMIT_S:g}s or more, which the facts alone may take")
    from clusterbench.doctor.verb import Asked, answer, answer_of_logs, depth
    from clusterbench.run_folder import expect_no_record

    written = {f"--{name}": options[name] for name in ("json", "junit", "openmetrics", "page")}
    expect_others(written, {"--accept": options["accept"], **{f"--log {file}": file for file in files}})
    for option, path in written.items():
        if path is not None:
            expect_no_record(path, option)

    for name in ("out", "device") if quick or prolog else ():
        if options[name] is not None:
            raise click.UsageError(f"--{name} has no effect on facts alone, which run nothing and make no folder")
    if prolog and options["hosts"]:
        raise click.UsageError("--hosts has no effect with --prolog, which is about the host that it runs on")
    if launch is not None and (log or prolog or options["hosts"]):
        raise click.UsageError("--launch names the hosts: it has no effect with --hosts, --log or --prolog")
    limit_s = (limit_s or _LIMIT_S) if prolog else None
    if launch is not None:
        from clusterbench.doctor.launched import start_under

        click.get_current_context().exit(start_under(launch, Asked(depth(quick, deep), **options).words))
    if log:
        opened = [Path("/dev/stdin") if str(file) == "-" else file for file in files]
        click.get_current_context().exit(answer_of_logs(Asked("quick", **options), opened))
    click.get_current_context().exit(answer(Asked(depth(quick or prolog, deep), limit_s, **options)))


def _names_of_checks(text: str | None) -> str | None:
    """As it is: which names are checks is known where it is used."""
    if text is not None and not text.replace(",", "").strip():
        raise click.BadParameter(f"must be names of checks, as port_state,xid, not {text!r}")
    return text
