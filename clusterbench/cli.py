"""The command line: parses and prints, decides nothing.

What a verb needs is imported when it runs, so that ``--help`` answers at once and nothing here loads torch or pandas.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from clusterbench.errors import ClusterbenchError, SuiteError
from clusterbench.garbage import uncollected
from clusterbench.layout import RANK_ORDERS
from clusterbench.precision import GRADIENT_DTYPES, MASTER, PRECISIONS, WIDE
from clusterbench.terminal import columns, fitted, open_closed_streams
from clusterbench.types import FAIL_ON, FAIL_ON_BY_DEFAULT
from clusterbench.units import parse_time
from clusterbench.words import comment

if TYPE_CHECKING:
    from clusterbench.pricing.advice import Advice
    from clusterbench.pricing.cluster_file import KnownCluster
    from clusterbench.pricing.rates import KnownRates
    from clusterbench.pricing.step_table import StepTable
    from clusterbench.types import Plan

Command = TypeVar("Command", bound=Callable[..., Any])


_LIMIT_S, _LEAST_LIMIT_S = 20.0, 3.0
"""Of ``doctor --prolog``: below the least nothing is ever judged; Python's own start is no shorter than a second."""

_NOT_READ = 128 + signal.SIGPIPE
"""What a shell calls the end of a program whose reader is gone; click's own 1 would mean that something is faulty."""


class _Commands(click.Group):
    """Prints what a user can do something about without a traceback; anything else is a bug and may show one."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        open_closed_streams()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClusterbenchError as error:
            _say(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except click.UsageError as error:
            said = StringIO()
            error.show(said)
            _say(said.getvalue().rstrip(), err=True)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            _give_up_output()
            ctx.exit(_NOT_READ)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _give_up_output()
            click.echo(f"error: what was to be written is incomplete: {error.strerror}", err=True)
            ctx.exit(2)


def _say(text: str, err: bool = False) -> None:
    """Words for people, as wide as their terminal."""
    click.echo(fitted(text, sys.stderr if err else sys.stdout), err=err)


def _remark(text: str, err: bool = False) -> None:
    _say("\n".join(comment(text, "  ", columns(sys.stderr if err else sys.stdout))), err)


def _give_up_output() -> None:
    """What waits for a full disk would fail again when the process ends, with another exit code."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


class _FiniteRange(click.FloatRange):
    """Numbers within bounds: NaN and infinity, which no bound keeps out, are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="clusterbench", message="%(prog)s %(version)s")
def main() -> None:
    """Benchmarks and diagnoses clusters that train large models.

    \b
    Is this machine healthy?
      clusterbench doctor
    How fast is it, and why?
      clusterbench list suites
      clusterbench run suites/tp_scale.yaml
    Which layout for this model on such GPUs?
      clusterbench advise --shape llama-8b --gpu h100-sxm-80gb --tokens 2^21
    What does a layout mean?
      clusterbench layout pp2-dp2-tp2 --out layout.html

    Results go to stdout, messages to stderr. Exit code 0: all that should have been measured was, and nothing was found
    faulty; 1: something is missing or wrong, or the machine is suspect; 2: the suite or the command line is mistaken;
    3: 'compare' is undecided.
    """


# What more than one verb takes is said once, so that it has one spelling and one range in all of them.


def num_nodes_option(words: str) -> Callable[[Command], Command]:
    return click.option("--num-nodes", type=click.IntRange(1, 100_000), help=words)


def gpus_per_node_option(words: str) -> Callable[[Command], Command]:
    return click.option("--gpus-per-node", type=click.IntRange(1, 1024), help=words)


def global_batch_size_option(words: str) -> Callable[[Command], Command]:
    return click.option("--global-batch-size", type=click.IntRange(1, 2**24), help=words)


device_option = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="What computes.  [default: cuda where there are GPUs]"
)
num_ranks_option = click.option(
    "--num-ranks", type=click.IntRange(1, 4096), help="CPU ranks of each node.  [default: the suite's, or 2]"
)
seq_len_option = click.option(
    "--seq-len", type=click.IntRange(2, 2**24), default=4096, show_default=True, help="Tokens of a sequence."
)
micro_batch_size_option = click.option(
    "--micro-batch-size", type=click.IntRange(1, 2**20), default=1, show_default=True, help="Sequences of a forward."
)
rank_order_option = click.option(
    "--rank-order",
    default="megatron",
    show_default=True,
    help=f"Which ranks are neighbours, as in: {', '.join(RANK_ORDERS)}.",
)
profile_option = click.option(
    "--profile", default="ours", show_default=True, help="The framework, as 'list profiles' names it."
)


def _conditions(text: str | None) -> tuple[str, ...] | None:
    """``incomplete,suspect``: words of :data:`clusterbench.types.FAIL_ON`, apart by commas."""
    from clusterbench.errors import nearest

    if text is None:
        return None
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in FAIL_ON:
            raise click.BadParameter(f"must be of {', '.join(FAIL_ON)}, not {word!r}.{nearest(word, FAIL_ON)}")
    return words


fail_on_option = click.option(
    "--fail-on",
    metavar="A,B",
    callback=lambda _, __, text: _conditions(text),
    help=f"What ends with exit code 1 beside a wrong result: {', '.join(FAIL_ON)}.  "
    f"[default: {','.join(FAIL_ON_BY_DEFAULT)} and what the suite says]",
)


def _accepted(text: str | None) -> tuple[str, ...]:
    from clusterbench.fingerprint import accepted_fields

    return accepted_fields(text)


cluster_file_option = click.option(
    "--cluster",
    "cluster",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What the cluster is: a file with gpu, gpus_per_node, num_nodes and nics, or the folder of a run on it.",
)
accept_option = click.option(
    "--accept-other",
    "accepted",
    metavar="A,B",
    callback=lambda _, __, text: _accepted(text),
    help="Use recorded figures although these differ on their machine: gpu, driver, nccl ...  [default: refuse]",
)


baseline_option = click.option(
    "--baseline", type=click.Path(path_type=Path), help="What floors 'of baseline' are shares of: a file, or a run."
)
ranks_per_gpu_option = click.option(
    "--ranks-per-gpu", type=click.IntRange(1, 64), help="Ranks that share each GPU: proofs, but no rates."
)


@main.command(short_help="Show what a suite will run, and what is expected.")
@click.argument("suite", type=click.Path())
@click.option("--gpu", help="Card of a machine elsewhere, such as 'NVIDIA H200'; in its usual server, unless said.")
@device_option
@num_ranks_option
@num_nodes_option("Nodes of the allocation.  [default: 1; elsewhere the fewest that the suite asks for]")
@gpus_per_node_option("GPUs of each node.  [default: those found]")
@ranks_per_gpu_option
@baseline_option
@accept_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@uncollected(to_the_end=True)
def plan(suite: str, baseline: Path | None, accepted: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Show the cases of SUITE, what is expected of each, and what is refused and why. Runs nothing."""
    from clusterbench.cluster import MachineOptions
    from clusterbench.planning.text import plan_text
    from clusterbench.planning.verb import asked_plan

    made = asked_plan(suite, MachineOptions(**options), baseline, accepted)
    if as_json:
        click.echo(_plan_as_json(made))
    else:
        _say(plan_text(made))


@main.command(short_help="Run a suite, or what is left of one.")
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
@click.option(
    "--hosts",
    metavar="A,B",
    callback=lambda _, __, text: tuple(text.split(",")) if text else None,
    help="Take these hosts of the allocation, in this order.  [default: all]",
)
@click.option(
    "--exclude", metavar="A,B|FILE", help="Leave these hosts out; with a slash it is a file, as bad_hosts.txt of a run."
)
@click.option("--interface", metavar="NAME", help="Network interface hosts talk over.  [default: the one they share]")
@click.option(
    "--time-limit",
    "time_limit_s",
    metavar="TIME",
    callback=lambda _, __, text: _seconds(text),
    help="End in order after this time, as 90s, 30m, 2h or 1:30:00; cheap cases come first.",
)
@click.option(
    "--on-lost-host",
    type=click.Choice(["stop", "continue"]),
    help="What --launch does when a host is lost.  [default: continue]",
)
@click.option(
    "--spares", type=click.IntRange(0), default=0, help="Of the hosts of --launch, the last N replace lost ones."
)
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

    Ends in order on Ctrl-C, SIGTERM, SIGHUP and SIGUSR1; '--resume FOLDER' then does the rest.
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


def _said(*names: str) -> list[str]:
    """Of these options those that the command line names, as it spells them."""
    context = click.get_current_context()
    given = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    return [f"--{name.replace('_', '-')}" for name in given]


_OF_DRY_RUNS = ("suite", "dry", "gpu", "out", "device", "num_ranks", "gpus_per_node", "num_nodes", "fail_on")


def _run_dry(suite: Path | None, gpu: str | None) -> int:
    """``run --dry``, which takes what says what to plan for, and nothing that says how to run."""
    from clusterbench.cluster import MachineOptions
    from clusterbench.launch.dry import run_dry

    context = click.get_current_context()
    said = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    for name in said:
        if name not in _OF_DRY_RUNS:
            raise click.UsageError(f"--{name.removesuffix('_s').replace('_', '-')} has no effect with --dry")
    if suite is None:
        raise click.UsageError("--dry needs a SUITE")
    given = context.params
    machine = MachineOptions(given["device"], given["num_ranks"], given["num_nodes"], given["gpus_per_node"], gpu=gpu)
    return run_dry(suite, machine, given["out"], given["fail_on"])


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _ranks_per_agent(text: str | None) -> int | None:
    """None where nothing was said, 0 for all."""
    if text is None or text == "all":
        return None if text is None else 0
    if text.isdecimal() and 0 < int(text) <= 4096:
        return int(text)
    raise click.BadParameter(f"must be a whole number from 1 to 4096 or 'all', not {text!r}")


@main.command(short_help="Make a run's report again, or one of several runs.")
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

    Of several runs one page is made in the folder --out: as parts of one experiment where they have no case in common
    and the same kind of GPU or CPU, such as a run for each number of nodes, and otherwise side by side. A RUN may be a
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
    _say(str(made.path) if markdown else made.text, err=True)
    click.echo(made.markdown if markdown else made.path)
    click.get_current_context().exit(made.verdict.exit_code)


@main.command(short_help="Show what a bug report should say of this host.")
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

        _write(host_page(host, date.today()), page, "--page")
    if as_json:
        click.echo(json.dumps(host, indent=1))
    else:
        _say(env_text(host))


@main.command(short_help="Tell whether hosts are healthy, and what is wrong.")
@click.option("--quick", is_flag=True, help="Facts only, in 3 s: what each host's files and drivers say; no torch.")
@click.option("--deep", is_flag=True, help="Every GPU, host and link against what it should reach, in minutes.")
@click.option("--list", "listing", is_flag=True, help="All checks, a line each. Nothing is looked at.")
@click.option("--log", is_flag=True, help="Judge FILES instead of hosts: logs, what programs printed; - is stdin.")
@click.option("--prolog", is_flag=True, help="For a scheduler: --quick within --limit, and 1 only for --drain-on.")
@click.option(
    "--limit",
    "limit_s",
    metavar="TIME",
    callback=lambda _, __, text: _seconds(text),
    help=f"Time that --prolog may take.  [default: {_LIMIT_S:g}s]",
)
@click.option("--drain-on", metavar="A,B", help="Checks whose findings make exit code 1; no others do.")
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
@click.option(
    "--hosts",
    metavar="A,B",
    callback=lambda _, __, text: tuple(text.split(",")) if text else None,
    help="Without a launcher: start on these hosts over ssh. With one: take these of its hosts.  [default: all]",
)
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
        from clusterbench.doctor.listing import listing as all_checks

        _say(all_checks())
        return
    if quick + deep + prolog + log > 1:
        raise click.UsageError("--quick, --deep, --log and --prolog exclude each other")
    if limit_s is not None and not prolog:
        raise click.UsageError("--limit has no effect without --prolog")
    if limit_s is not None and limit_s < _LEAST_LIMIT_S:
        raise click.UsageError(f"--limit must be {_LEAST_LIMIT_S:g}s or more, which the facts alone may take")
    from clusterbench.doctor.verb import Asked, answer, answer_of_logs, depth

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


@main.command(short_help="Hold one run against another, or against a baseline.")
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--threshold",
    type=_FiniteRange(0, 1),
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

    if accepted and base.is_dir():
        raise click.UsageError("--accept-other has no effect on a run: in what its machine differs is said")
    found = (
        compare_runs(base, new, threshold, fewer_cases)
        if base.is_dir()
        else compare_with_baseline(base, new, accepted, threshold, fewer_cases)
    )
    if markdown:
        click.echo(as_markdown(found))
    else:
        _say(as_text(found))
    click.get_current_context().exit(found.exit_code)


@main.command(short_help="Find steps and drifts in a series of runs.")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--threshold",
    type=_FiniteRange(0, 1),
    default=0.02,
    show_default=True,
    help="The margin: a change below this fraction counts as steady.",
)
@click.option("--json", type=click.Path(path_type=Path), help="Write what was found into this file, for programs.")
def trend(folders: tuple[Path, ...], threshold: float, json: Path | None) -> None:
    """Find steps and drifts in RUN..., five runs or more of the same cases, in the order in which they were made.

    Beside each step stands what changed in the environment. Exit code 0: nothing is shown to be worse; 1: something is;
    2: the runs cannot be a series.
    """
    from clusterbench.trend import trend_of_folders
    from clusterbench.trend.text import as_text, write_json

    found = trend_of_folders(folders, threshold)
    if json is not None:
        write_json(found, json)
    _say(as_text(found))
    click.get_current_context().exit(found.exit_code)


@main.command(short_help="Record what a healthy machine reaches.")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file; it must not be there.")
def baseline(folders: tuple[Path, ...], out: Path) -> None:
    """Write every figure of RUN... with its median and interval, machine by machine, into a file.

    'compare FILE RUN' and floors '0.95 of baseline' hold later runs against it. Cases that failed, were wrong or whose
    iterations differ too much are left out, and named.
    """
    from clusterbench.derive.baseline import write_baseline

    for remark in write_baseline(folders, out):
        _remark(remark, err=True)
    click.echo(out)


@main.command(short_help="Show every group of a layout, and what passes in it.")
@click.argument("layout")
@num_nodes_option("Nodes it runs on.  [default: with --gpu as many of its usual server as it takes, else 1]")
@rank_order_option
@click.option("--shape", help="A model of 'clusterbench list shapes', or its config.json; tells bytes per step.")
@seq_len_option
@global_batch_size_option("Sequences of a step.  [default: 4 x pp x dp micro-batches]")
@micro_batch_size_option
@click.option("--gpu", help="With --shape: the card that it should fit, such as 'NVIDIA H200'.")
@click.option("--out", type=click.Path(path_type=Path), help="Write a page, too: axes drawn, memory, a step played.")
def layout(out: Path | None, shape: str | None, **asked: Any) -> None:
    """Show which ranks of LAYOUT (as pp2-dp2-tp2) share weights, hold slices or pass activations, and over which link.

    First its axes, and with --shape whether its memory fits; then each axis with its groups, why they go together, the
    messages of one step in their order, and where each rank is. Bytes are those of bfloat16 training with the default
    of every other option.
    """
    from clusterbench.layout_view.text import layout_text
    from clusterbench.layout_view.verb import asked_view

    if shape is None and (idle := _said("gpu", "global_batch_size", "seq_len", "micro_batch_size")):
        raise SuiteError(f"{idle[0]} has no effect without --shape.")
    view, card = asked_view(shape=shape, **asked)
    memory: list[str] = []
    if view.job is not None:
        from clusterbench.layout_view.memory import memory_text
        from clusterbench.parallel import from_options

        memory = [*memory_text(view.job, from_options({}), card)]
    _say(layout_text(view, columns(), memory))
    if out is not None:
        from clusterbench.report.layout_page import layout_page

        _write(layout_page(view, card), out)
        click.echo(f"page: {out}", err=True)


@main.command(name="dry-run", short_help="Run a training step without a machine: does it fit?")
@click.argument("layout")
@click.option("--shape", required=True, help="A model of 'clusterbench list shapes', or its config.json.")
@num_nodes_option("Nodes it runs on.  [default: what the layout needs]")
@gpus_per_node_option("GPUs of each node.  [default: the card's usual, or 8]")
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(0),
    multiple=True,
    help="The rank to run; several times for several.  [default: one of each pipeline stage]",
)
@seq_len_option
@micro_batch_size_option
@global_batch_size_option("Sequences of a step.  [default: the fewest micro-batches that the layout takes]")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32", "float64"]),
    default="bfloat16",
    show_default=True,
    help="Dtype of the arithmetic.",
)
@click.option(
    "--precision",
    type=click.Choice([*PRECISIONS]),
    default=MASTER,
    show_default=True,
    help="Dtypes of weights and moments, where the arithmetic is in bfloat16.",
)
@click.option(
    "--gradient-dtype",
    type=click.Choice(GRADIENT_DTYPES),
    default=WIDE,
    show_default=True,
    help="Dtype in which gradients of float32 weights add up.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cuda",
    show_default=True,
    help="Device of the operators.",
)
@rank_order_option
@click.option("--gpu", help="The card, as a datasheet's name in the tables, such as 'NVIDIA H100 80GB HBM3'.")
@click.option(
    "--set",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of a parallelism, as schedule=zbv; several times for several.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for its rows and a page.  [default: none]")
def dry_run(layout: str, gpu: str | None, options: tuple[str, ...], out: Path | None, **asked: Any) -> None:
    """Run one step of LAYOUT (as dp128-tp8+sp+zero3) on tensors without data, of any rank, on this machine.

    Nothing is computed or sent: what is told is what the step that a run would time holds, sends and launches.
    """
    from clusterbench.dry.verb import asked_dry_run

    of_layout = asked_dry_run(layout, gpu, options, **asked)
    if out is None:
        _say(of_layout.text(of_layout.done()))
        return
    from clusterbench.launch.dry import store_dry_run

    ranks, link = store_dry_run(of_layout, out)
    _say(of_layout.text(ranks))
    click.echo(f"report: {link}", err=True)


@main.command(short_help="Tell what training steps cost, from a table of them.")
@click.argument("table", type=click.Path(path_type=Path))
@profile_option
@click.option("--gpu", help="The card, such as 'NVIDIA H200'.  [default: the table's column gpu]")
@gpus_per_node_option("Where the table does not say.  [default: the card's usual]")
@click.option("--nics", metavar="NxGb", help="NICs of a node, as 8x400Gb.  [default: not known, so a range]")
@cluster_file_option
@click.option("--rates", type=click.Path(path_type=Path), help="Measured rates in place of typical ones.")
@accept_option
@click.option("--scale-from", type=click.IntRange(2), metavar="LINE", help="Set all times by this line's measured one.")
@click.option("--out", type=click.Path(path_type=Path), help="The CSV.  [default: stdout]")
@uncollected(to_the_end=True)
def price(
    table: Path,
    profile: str,
    gpu: str | None,
    gpus_per_node: int | None,
    nics: str | None,
    cluster: Path | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Print the step time of every row of TABLE, a CSV of layouts or a run: its interval, its parts and its memory.

    Without --rates all of it is worked out from datasheets and what healthy machines reach of them, and says so first.
    Where rows have a measured time, too, it is said how good the ranking is.
    """
    from clusterbench.pricing.verb import as_csv, price_table

    _expect_others({"--out": out}, {"TABLE": table, "--cluster": cluster, "--rates": options["rates"]})
    of = _cluster(cluster).but(gpu=gpu, gpus_per_node=gpus_per_node, nics=nics)
    priced = price_table(_steps(table, of), profile, of.gpu, of.nics, **options)
    for remark in priced.remarks:
        _remark(remark, err=True)
    _write(as_csv(priced), out)


@main.command(short_help="Tell which layout of a model should be fastest on a cluster.")
@click.option(
    "--shape",
    "shapes",
    required=True,
    multiple=True,
    help="A model of 'clusterbench list shapes', or its config.json; several times for several answers.",
)
@click.option("--gpu", help="The card, such as 'NVIDIA H100 80GB HBM3'.  [required, unless --cluster says]")
@num_nodes_option("Nodes of the cluster.  [default: those of --cluster, or 1]")
@gpus_per_node_option("GPUs of each node.  [default: the card's usual]")
@seq_len_option
@global_batch_size_option("Sequences of a step.  [required, unless --tokens says]")
@click.option("--tokens", help="Instead of --global-batch-size: tokens of a step, as 4194304 or 2^22.")
@click.option("--nics", metavar="NxGb", help="NICs of a node, as 8x400Gb.  [default: not known, so two answers]")
@cluster_file_option
@click.option("--rates", type=click.Path(path_type=Path), help="Measured rates, as 'calibrate' writes them.")
@accept_option
@profile_option
@click.option("--knee", is_flag=True, help="Price 1, 2, 4 ... nodes, too: from where on do GPUs bring less?")
@click.option("--gpu-hour", type=_FiniteRange(min=0, min_open=True), help="What an hour of a GPU costs.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write the suite that measures the first five of each answer."
)
@click.option(
    "--table",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write all that fit, as layouts.csv: each layout with its time, range, parts and memory, the fastest first.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page, as heatmap.html, with the fastest layout of each --shape on 1, 2, 4 ... nodes.",
)
@uncollected(to_the_end=True)
def advise(
    shapes: tuple[str, ...],
    gpu: str | None,
    num_nodes: int | None,
    gpus_per_node: int | None,
    nics: str | None,
    cluster: Path | None,
    out: Path | None,
    table: Path | None,
    page: Path | None,
    gpu_hour: float | None,
    knee: bool,
    **options: Any,
) -> None:
    """Say what fits, which batch and which layout: every legal one priced, the five to measure, and why others lose.

    Nothing is run. Without --rates all of it is worked out from datasheets, and says so first.
    """
    from clusterbench.pricing.advise_verb import Asked, answers, heatmaps
    from clusterbench.pricing.advised_suite import advised_suite

    if out is not None and len(shapes) > 1:
        raise SuiteError(f"--out {out} is the suite of one model, and --shape is given {len(shapes)} times.")
    files = {"--cluster": cluster, "--rates": options["rates"], **{f"--shape {name}": Path(name) for name in shapes}}
    _expect_others({"--out": out, "--table": table, "--page": page}, files)
    of = _cluster(cluster).but(gpu=gpu, num_nodes=num_nodes, gpus_per_node=gpus_per_node, nics=nics)
    asked = Asked(cluster=of, **options)
    found: list[tuple[Advice, KnownRates]] = []
    for shape in shapes:
        for text, advice, known in answers(asked, shape, gpu_hour, knee):
            _say(f"\n{text}" if found else text)
            found.append((advice, known))
    if table is not None:
        from clusterbench.pricing.profiles import named_profile
        from clusterbench.pricing.ranked_table import ranked_csv

        _write(ranked_csv(found, named_profile(asked.profile)), table, "--table")
    if page is not None:
        from clusterbench.report.predicted_page import predicted_page

        _write(predicted_page(list(heatmaps(asked, shapes))), page, "--page")
        _remark(f"{page}: the fastest layouts as predicted; nothing on it was measured")
    if out is not None:
        suite = advised_suite([advice for advice, _ in found], asked.profile)
        for remark in suite.remarks:
            _remark(f"{out}: {remark}")
        _write(suite.text, out)


@main.command(short_help="Learn a machine's rates from a few measured steps.")
@click.argument("table", type=click.Path(path_type=Path))
@profile_option
@click.option("--gpu", help="The card, such as 'NVIDIA H200'.  [default: the table's column gpu]")
@gpus_per_node_option("Where the table does not say.  [default: the card's usual]")
@click.option("--nics", metavar="NxGb", help="NICs of a node, as 8x400Gb.  [default: not known, so a range]")
@cluster_file_option
@click.option("--rates", type=click.Path(path_type=Path), help="What is known already, such as a probed network.")
@accept_option
@click.option(
    "--lines",
    metavar="A,B",
    callback=lambda _, __, text: _line_numbers(text),
    help="Take the rows in these lines.  [default: eight, chosen by their configurations]",
)
@click.option("--out", type=click.Path(path_type=Path), help="The file.  [default: stdout]")
def calibrate(
    table: Path,
    profile: str,
    gpu: str | None,
    gpus_per_node: int | None,
    nics: str | None,
    cluster: Path | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Print a file for 'price --rates': the rates that measured steps of TABLE, a CSV or a run, determine.

    Of a table five rows on one node and three on two are chosen, by what their configurations are and not by what was
    measured; of a run all cases are taken.
    """
    from clusterbench.pricing.rates_file import rates_text
    from clusterbench.pricing.verb import calibrate_table

    _expect_others({"--out": out}, {"TABLE": table, "--cluster": cluster, "--rates": options["rates"]})
    of = _cluster(cluster).but(gpu=gpu, gpus_per_node=gpus_per_node, nics=nics)
    found, remarks = calibrate_table(_steps(table, of), profile, of.gpu, of.nics, **options)
    for remark in remarks:
        _remark(remark, err=True)
    _write(rates_text(found), out)


def _expect_others(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """That no option names as its output what is read, or what another option writes.

    Raises
    ------
    SuiteError
        For the first that does.
    """
    taken = {path.resolve(): said for said, path in read.items() if path is not None}
    for option, path in written.items():
        if path is not None:
            if (said := taken.get(path.resolve())) is not None:
                raise SuiteError(f"{option} {path} is the file of {said}; name another one.")
            taken[path.resolve()] = option


def _write(text: str, out: Path | None, option: str = "--out") -> None:
    """To a file, or to stdout where none is named."""
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SuiteError(f"{option} {out} cannot be written: {error.strerror}.") from None


def _steps(table: Path, of: KnownCluster) -> StepTable:
    """The steps of a CSV file, which are of this cluster, or of a run's folder."""
    from clusterbench.confront import steps_of_run
    from clusterbench.pricing.table import read_steps

    if not table.is_dir():
        return replace(read_steps(table, of.gpus_per_node, of.gpu), machine=of.machine)
    if said := f"--cluster {of.source}" if of.source else "--gpus-per-node" if of.gpus_per_node else "":
        raise SuiteError(f"{table} is a run and knows its own cluster: {said} has no effect.")
    steps = steps_of_run(table)
    unread = [option for option, value in (("--gpu", of.gpu), ("--nics", of.nics)) if value is not None]
    if unread and {row.gpu for row in steps.rows} == {"cpu"}:
        raise SuiteError(f"{table} is a run on CPU ranks: {unread[0]} has no effect.")
    return steps


def _cluster(path: Path | None) -> KnownCluster:
    """What a file says of a cluster, or a run's folder; nothing where none is named."""
    from clusterbench.pricing.cluster_file import KnownCluster, read_cluster

    if path is None:
        return KnownCluster()
    if not path.is_dir():
        return read_cluster(path)
    from clusterbench.confront import cluster_of_run

    return cluster_of_run(path)


def _line_numbers(text: str | None) -> tuple[int, ...]:
    """``2,5,9``."""
    numbers = (text or "").split(",") if text else []
    if not all(number.strip().isdecimal() for number in numbers):
        raise click.BadParameter(f"must be line numbers with commas between, as 2,5,9, not {text!r}")
    return tuple(map(int, numbers))


@main.command(short_help="Make one file of a run, to send.")
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


@main.command(name="import", short_help="Make a run of other tools' results.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--mapping", type=click.Path(path_type=Path), help="What the columns of a CSV mean: docs/importing.md.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run.  [default: reports/DATE-TIME-NAME]")
@click.option("--op", help="Collective of nccl-tests, where its output does not name it.")
@click.option("--num-ranks", type=click.IntRange(1, 1_000_000), help="Ranks, where the output does not list them all.")
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
    _say(f"{made.headline.text}\n\n{made.verdict.text()}", err=True)
    click.echo(made.path)
    click.get_current_context().exit(made.verdict.exit_code)


def _plan_as_json(plan: Plan) -> str:
    import json

    cases = [{"hash": case.hash, **vars(case)} for case in plan.cases]
    return json.dumps({**vars(plan), "cases": cases}, default=vars, indent=1)


@main.command(name="list", short_help="Show benchmarks, parallelisms, shapes, suites ...")
@click.argument("kind", required=False)
@click.argument("name", required=False)
def list_things(kind: str | None, name: str | None) -> None:
    """Show what there is: benchmarks, parallelisms, shapes, cards, suites, charts ...

    With KIND, one line each. With KIND and NAME, all about one: a benchmark's options, for instance.
    """
    from clusterbench.catalogue import about, kinds, listing

    if kind is None:
        _say("\n\n".join(listing(each) for each in kinds()))
    elif name is None:
        _say(listing(kind))
    else:
        _say(about(kind, name))


if __name__ == "__main__":
    main()
