"""``clusterbench run``: runs a suite, or what is left of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterbench.cli.options import (
    WholeRange,
    accept_option,
    baseline_option,
    device_option,
    fail_on_option,
    gpus_per_node_option,
    hosts_option,
    num_nodes_option,
    num_ranks_option,
    ranks_per_gpu_option,
    said_options,
    seconds,
)


@click.command(short_help="Run a suite, or what is left of one.")
@click.argument("suite", type=click.Path(path_type=Path), required=False)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run.  [default: reports/DATE-TIME-SUITE]")
@click.option("--resume", type=click.Path(path_type=Path), help="Run what has no outcome yet in this run's folder.")
@device_option
@num_ranks_option
@gpus_per_node_option("GPUs of each node.  [default: those found]")
@ranks_per_gpu_option
@click.option(
    "--ranks-per-agent",
    metavar="N|all",
    callback=lambda _, __, text: _ranks_per_agent(text),
    help="Ranks that each process of a launcher owns.  [default: 1]",
)
@num_nodes_option("Take the first N hosts.  [default: all; with --dry the most that the suite asks for]")
@hosts_option("Take these hosts of the allocation, in this order.  [default: all]")
@click.option(
    "--exclude", metavar="A,B|FILE", help="Leave these hosts out; with a slash it is a file, as bad_hosts.txt of a run."
)
@click.option("--interface", metavar="NAME", help="Network interface hosts talk over.  [default: the one they share]")
@click.option(
    "--time-limit",
    "time_limit_s",
    metavar="TIME",
    callback=lambda _, __, text: seconds(text),
    help="End in order after this time, as 90s, 30m, 2h or 1:30:00; 90 are seconds. Cheap cases come first.",
)
@click.option(
    "--on-lost-host",
    type=click.Choice(["stop", "continue"]),
    help="What --launch does when a host is lost.  [default: continue]",
)
@click.option("--spares", type=WholeRange(0), default=0, help="Of the hosts of --launch, the last N replace lost ones.")
@click.option("--rates", type=click.Path(path_type=Path), help="Measured rates: its reports price its steps by them.")
@click.option("--take-over", is_flag=True, help="Write into the folder though a run that is gone seems to hold it.")
@click.option("--fingerprint", hidden=True, help="Of the run that --launch goes on with.")
@baseline_option
@accept_option
@fail_on_option
@click.option("--dry", is_flag=True, help="Run its training steps on tensors without data: who fits, what is sent.")
@click.option(
    "--gpu", help="With --dry: the card, such as 'NVIDIA H200'; in its usual server, unless --gpus-per-node says."
)
@click.option("--launch", metavar="COMMAND", help="Start this launcher, and again on what is left when a host is lost.")
@click.option(
    "--bisect", metavar="CASE", help="With --resume and --launch: find the hosts that this failed case needs."
)
def run(
    suite: Path | None,
    resume: Path | None,
    dry: bool,
    gpu: str | None,
    launch: str | None,
    bisect: str | None,
    **options: Any,
) -> None:
    """Run SUITE and write a report, alone or in every process that a launcher (mpirun, srun, torchrun ...) starts.

    SUITE is a file, or a name that 'list suites' shows. Ends in order on Ctrl-C, SIGTERM, SIGHUP and SIGUSR1;
    '--resume FOLDER' then does the rest.
    """
    if dry:
        click.get_current_context().exit(_run_dry(suite, gpu))
    if gpu is not None:
        raise click.UsageError("--gpu has no effect without --dry: a run has the GPUs that it finds")
    from clusterbench.launch.run import RunOptions
    from clusterbench.launch.run import run as run_suite

    if (suite is None) == (resume is None):
        raise click.UsageError("give either a SUITE or --resume FOLDER")
    if resume is not None and options["out"] is not None and bisect is None:
        raise click.UsageError("--out has no effect with --resume, which continues in its own folder")
    if options["rates"] is not None and resume is not None:
        raise click.UsageError("--rates has no effect with --resume, which has those of the run; see 'report --rates'")
    for name in ("baseline", "accepted"):
        if options[name] and resume is not None:
            said = "--baseline" if name == "baseline" else "--accept-other"
            raise click.UsageError(f"{said} has no effect with --resume: the bounds of its floors are in its plan")
    if options["take_over"] and resume is None and options["out"] is None:
        raise click.UsageError("--take-over has no effect on a folder that is new")
    if options["spares"] and launch is None:
        raise click.UsageError("--spares has no effect without --launch, which alone can start a launcher again")
    wanted = RunOptions(suite, resume, **options)
    if bisect is not None:
        from clusterbench.launch.bisect import bisect as find_hosts

        if resume is None or launch is None:
            raise click.UsageError("--bisect needs --resume FOLDER, the run that failed, and --launch COMMAND")
        click.get_current_context().exit(find_hosts(launch, bisect, wanted))
    if launch is None:
        click.get_current_context().exit(run_suite(wanted))
    from clusterbench.launch.supervisor import supervise

    click.get_current_context().exit(supervise(launch, wanted))


_OF_DRY_RUNS = ("suite", "dry", "gpu", "out", "device", "num_ranks", "gpus_per_node", "num_nodes", "fail_on")


def _run_dry(suite: Path | None, gpu: str | None) -> int:
    """``run --dry``, which takes what says what to plan for, and nothing that says how to run."""
    from clusterbench.cluster import MachineOptions
    from clusterbench.launch.dry import run_dry

    for name in said_options():
        if name not in _OF_DRY_RUNS:
            raise click.UsageError(f"--{name.removesuffix('_s').replace('_', '-')} has no effect with --dry")
    if suite is None:
        raise click.UsageError("--dry needs a SUITE")
    given = click.get_current_context().params
    machine = MachineOptions(given["device"], given["num_ranks"], given["num_nodes"], given["gpus_per_node"], gpu=gpu)
    return run_dry(suite, machine, given["out"], given["fail_on"])


def _ranks_per_agent(text: str | None) -> int | None:
    """None where nothing was said, 0 for all."""
    if text is None or text == "all":
        return None if text is None else 0
    if text.isdecimal() and 0 < int(text) <= 4096:
        return int(text)
    raise click.BadParameter(f"must be a whole number from 1 to 4096 or 'all', not {text!r}")
