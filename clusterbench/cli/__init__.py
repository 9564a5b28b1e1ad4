"""The command line: parses and prints, decides nothing. One file, one verb.

What a verb needs is imported when it runs, so that ``--help`` answers at once and nothing here loads torch or pandas.
"""

from __future__ import annotations

import errno
import signal
from io import StringIO
from typing import Any

import click

from clusterbench.cli.advise import advise
from clusterbench.cli.baseline import baseline
from clusterbench.cli.bundle import bundle
from clusterbench.cli.calibrate import calibrate
from clusterbench.cli.compare import compare
from clusterbench.cli.doctor import doctor
from clusterbench.cli.dry_run import dry_run
from clusterbench.cli.env import env
from clusterbench.cli.import_results import import_results
from clusterbench.cli.layout import layout
from clusterbench.cli.list_things import list_things
from clusterbench.cli.output import give_up_output, say
from clusterbench.cli.plan import plan
from clusterbench.cli.price import price
from clusterbench.cli.report import report
from clusterbench.cli.run import run
from clusterbench.cli.schema import schema
from clusterbench.cli.trace import trace
from clusterbench.cli.trend import trend
from clusterbench.errors import ClusterbenchError
from clusterbench.terminal import escape_what_is_not_encoded, open_closed_streams

_NOT_READ = 128 + signal.SIGPIPE
"""What a shell calls the end of a program whose reader is gone; click's own 1 would mean that something is faulty."""


class _Commands(click.Group):
    """Prints what a user can do something about without a traceback; anything else is a bug and may show one."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        open_closed_streams()
        escape_what_is_not_encoded()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClusterbenchError as error:
            say(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except click.UsageError as error:
            said = StringIO()
            error.show(said)
            say(said.getvalue().rstrip(), err=True)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            give_up_output()
            ctx.exit(_NOT_READ)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            give_up_output()
            click.echo(f"error: what was to be written is incomplete: {error.strerror}", err=True)
            ctx.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="clusterbench", message="%(prog)s %(version)s")
def main() -> None:
    """Benchmarks and diagnoses clusters that train large models.

    \b
    Is this machine healthy?
      clusterbench doctor
    How fast is it, and why?
      clusterbench list suites
      clusterbench run tp_scale
    Which layout for this model on such GPUs?
      clusterbench advise --shape llama-8b --gpu h100-sxm-80gb --tokens 2^21
    What does a layout mean?
      clusterbench layout pp2-dp2-tp2 --out layout.html

    Results go to stdout, messages to stderr. Exit code 0: all that should have been measured was, and nothing was found
    faulty; 1: something is missing or wrong, or the machine is suspect; 2: the suite or the command line is mistaken;
    3: 'compare' is undecided, 'trend' has too few runs, or 'run --bisect' names no host.
    """


for _verb in (
    advise,
    baseline,
    bundle,
    calibrate,
    compare,
    doctor,
    dry_run,
    env,
    import_results,
    layout,
    list_things,
    plan,
    price,
    report,
    run,
    schema,
    trace,
    trend,
):
    main.add_command(_verb)
