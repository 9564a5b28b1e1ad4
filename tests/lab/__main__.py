"""A cluster to play with: ``python -m tests.lab up 4``; it stays until ``down``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tests.lab.hosts import LABS, LOGIN, Lab, LabError, why_not

FOLDER = LABS / "by-hand"
AS_IT_IS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@contextmanager
def the_lab() -> Iterator[Lab]:
    """The lab that ``up`` made; what it refuses is a message to a person."""
    try:
        lab = Lab.reopen(FOLDER)
    except FileNotFoundError:
        raise click.ClickException("there is no lab\nhint: python -m tests.lab up 4") from None
    if not lab.is_up(LOGIN):
        raise click.ClickException("the lab is dead\nhint: python -m tests.lab down, then up")
    try:
        yield lab
    except LabError as error:
        raise click.ClickException(str(error)) from None


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def lab_command() -> None:
    """A cluster in a box: hosts cb1, cb2, ... made from Linux namespaces on this machine, and a login host cb0.

    \b
    python -m tests.lab up 4                              four hosts, in a quarter of a second
    python -m tests.lab exec cb1 ip address               run something on a host
    python -m tests.lab login mpirun -hosts cb1,cb2 hostname
    python -m tests.lab shape cb2 100mbit                 make a host slow,
    python -m tests.lab delay cb3 2 0.01                  far away and lossy,
    python -m tests.lab crash cb4                         or dead
    python -m tests.lab down                              nothing is left
    """


@lab_command.command()
@click.argument("num_hosts", type=int)
def up(num_hosts: int) -> None:
    """Build a lab of NUM_HOSTS hosts."""
    if reason := why_not():
        raise click.ClickException(reason)
    if (FOLDER / "state.json").exists() and Lab.reopen(FOLDER).is_up(LOGIN):
        raise click.ClickException("there is a lab already\nhint: python -m tests.lab down")
    try:
        lab = Lab(num_hosts, folder=FOLDER, lasting=True)
    except LabError as error:
        raise click.ClickException(str(error)) from None
    click.echo(" ".join(f"{host}={lab.address(host)}" for host in [LOGIN, *lab.hosts]))


@lab_command.command()
def down() -> None:
    """Take the lab away, with all that runs in it."""
    if (FOLDER / "state.json").exists():
        Lab.reopen(FOLDER).close()


@lab_command.command()
def ls() -> None:
    """Show the hosts and what runs on them."""
    with the_lab() as lab:
        for host in [LOGIN, *lab.hosts]:
            click.echo(f"{host:5} {lab.address(host):12} {'up' if lab.is_up(host) else 'down'}")
            for command in lab.processes(host):
                click.echo(f"      {command}")


@lab_command.command("exec", context_settings=AS_IT_IS)
@click.argument("host")
@click.argument("command", nargs=-1, required=True)
def execute(host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on HOST, in this folder and with this environment."""
    with the_lab() as lab:
        child = lab.start(host, command)
        while True:
            try:
                sys.exit(child.wait())
            except KeyboardInterrupt:  # the command heard it too, and decides
                pass
            except subprocess.SubprocessError as error:
                raise click.ClickException(str(error)) from None


@lab_command.command(context_settings=AS_IT_IS)
@click.argument("command", nargs=-1, required=True)
@click.pass_context
def login(context: click.Context, command: tuple[str, ...]) -> None:
    """Run COMMAND on the login host, from where ssh and mpirun reach the hosts."""
    context.invoke(execute, host=LOGIN, command=command)


@lab_command.command()
@click.argument("host")
@click.argument("rate")
def shape(host: str, rate: str) -> None:
    """Limit what HOST sends and receives to RATE, such as 100mbit or 1gbit."""
    with the_lab() as lab:
        lab.shape(host, rate)


@lab_command.command()
@click.argument("host")
@click.argument("delay_ms", type=click.FloatRange(min=0))
@click.argument("loss", type=click.FloatRange(0, 1), default=0.0)
def delay(host: str, delay_ms: float, loss: float) -> None:
    """Let every packet to and from HOST take DELAY_MS longer; lose a share LOSS of them."""
    with the_lab() as lab:
        lab.delay(host, delay_ms, loss)


@lab_command.command()
@click.argument("host")
@click.argument("probability", type=click.FloatRange(0, 1))
def loss(host: str, probability: float) -> None:
    """Lose a share of the packets to and from HOST."""
    with the_lab() as lab:
        lab.loss(host, probability)


@lab_command.command()
@click.argument("host")
@click.argument("seconds", type=float)
def skew(host: str, seconds: float) -> None:
    """Shift the clock that Python shows on HOST."""
    with the_lab() as lab:
        lab.skew(host, seconds)


@lab_command.command()
@click.argument("host")
@click.option("--power", is_flag=True, help="As when the power fails: no connection is closed.")
def crash(host: str, power: bool) -> None:
    """Kill HOST and all that runs on it."""
    with the_lab() as lab:
        lab.crash(host, power=power)


def _simple(name: str, explanation: str) -> None:
    """A command that does to one host what the lab's method of that name does."""

    @lab_command.command(name, help=explanation)
    @click.argument("host")
    def do(host: str) -> None:
        with the_lab() as lab:
            getattr(lab, name)(host)


_simple("unshape", "Take the limit of HOST away.")
_simple("undelay", "Take the delay and loss of HOST away.")
_simple("cut", "Unplug HOST.")
_simple("heal", "Plug HOST in again.")
_simple("drop", "Lose every packet to and from HOST, while its interface says that all is well.")
_simple("undrop", "Let packets through again.")
_simple("revive", "Boot HOST again after a crash: same name and address, nothing runs.")

if __name__ == "__main__":
    lab_command(prog_name="python -m tests.lab")
