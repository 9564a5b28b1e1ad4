"""What starts the processes of a run: one file a launcher, found by its name.

A launcher says by which variables its processes know it and their place, which variables are its own, where the first
process is, what tells two jobs apart, and how its command is written for fewer hosts. Nothing here touches MPI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

from clusterbench.discover import things
from clusterbench.errors import LaunchError, SuiteError
from clusterbench.launchers._hostlist import expand_hosts
from clusterbench.launchers._options import count, find, lines_of, replace

Kind = Literal["elastic", "by hand", "mpi", "scheduler"]

INNERMOST_FIRST: tuple[Kind, ...] = ("elastic", "by hand", "mpi", "scheduler")
"""One launcher may run inside another, whose variables its processes then carry as well: mpirun inside salloc starts
its daemons with srun, so its ranks carry SLURM_PROCID (the daemon's). The launcher that counts is the innermost."""

SIZES_OF_UNKNOWN = {
    "PALS_RANKID": "PMI_SIZE",  # HPE's mpiexec and aprun on systems with PBS
    "ALPS_APP_PE": None,  # Cray's aprun
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",  # MVAPICH2's mpirun_rsh
    "JSM_NAMESPACE_RANK": "JSM_NAMESPACE_SIZE",  # IBM's jsrun
    "PMI_RANK": "PMI_SIZE",
    "PMIX_RANK": None,
}
"""Variables by which launchers that have no file here tell a process its rank, and those of the size."""

SECRET_VARIABLE = "CLUSTERBENCH_SECRET"
"""What the agents of a run know and others do not; for them alone, as a launcher's variables are."""


class Launcher:
    """Base of all launchers. The docstring says what it starts, where that is written, and with which versions it was
    seen to work; *not run* where it is written from documentation alone. Of a launcher that docs/launching.md does not
    have, it shows the line that starts a run. Beside its test stands a process that it started (tests/launchers).

    Attributes
    ----------
    program
        As a person starts it: ``mpirun``.
    signs
        Variables that every process it starts has, and no process of another launcher of its kind.
    rank, size, local_rank
        Variables with a process's place; the first that is there counts. No ``local_rank``: the launcher sets none.
    variables
        Regular expression of the names of all variables that it sets.
    job
        Variables that are alike in all processes of a job and differ between two jobs of one user.
    commands
        What its command line starts with, where ``--launch`` can start it again on fewer hosts; by the file's name.
    naming_hosts
        How its command names hosts, for a hint.
    of_tasks, of_tasks_per_node
        Names of the options of its command that count processes.
    may_be_glued
        Whether a value may follow an option's letter without a space: ``-n8``.
    daemons
        Programs that it puts between itself and the processes.
    ended_first
        Regular expression of what it prints of the process that ended first; its group is the host.
    in_its_shell
        What to type in a shell that it started as one of several processes, for a hint; a plain start waits for others.
    beside_others
        Variables that have its command start processes where those of an earlier one may not be gone yet.
    """

    program: ClassVar[str]
    kind: ClassVar[Kind]
    signs: ClassVar[tuple[str, ...]]
    rank: ClassVar[str]
    size: ClassVar[tuple[str, ...]]
    local_rank: ClassVar[str | None] = None
    variables: ClassVar[str]
    job: ClassVar[tuple[str, ...]] = ()
    commands: ClassVar[tuple[str, ...]] = ()
    naming_hosts: ClassVar[str] = ""
    of_tasks: ClassVar[tuple[str, ...]] = ()
    of_tasks_per_node: ClassVar[tuple[str, ...]] = ()
    may_be_glued: ClassVar[bool] = False
    daemons: ClassVar[tuple[str, ...]] = ()
    ended_first: ClassVar[str | None] = None
    in_its_shell: ClassVar[str] = ""
    beside_others: ClassVar[Mapping[str, str]] = {}

    # Of a process that it started.

    def started(self, environment: Mapping[str, str]) -> Started | None:
        """This process's place, if this launcher may have started it.

        Raises
        ------
        LaunchError
            If its variables, as people set them by hand, cannot be: a rank that is no number, or not below the size.
        """
        if not all(name in environment for name in self.signs):
            return None
        size_name = next((name for name in self.size if environment.get(name)), self.size[0])
        local_rank = None
        if self.local_rank and environment.get(self.local_rank):
            local_rank = _number(environment, self.local_rank)
        started = Started(self, _number(environment, self.rank), _number(environment, size_name), local_rank)
        if not started.rank < started.size:
            raise LaunchError(f"{self.rank} is {started.rank}, but {size_name} is {started.size}: ranks count from 0")
        return started

    def hosts(self, environment: Mapping[str, str]) -> list[str]:
        """The hosts of the allocation, each once, in order; none where this launcher has no list of them."""
        return []

    def head(self, environment: Mapping[str, str]) -> str:
        """Name or address of the host of rank 0.

        Raises
        ------
        LaunchError
            If nothing says it.
        """
        if hosts := self.hosts(environment):
            return hosts[0]
        if environment.get("MASTER_ADDR"):
            return environment["MASTER_ADDR"]
        raise LaunchError(
            f"{self.program} started this process, but nothing says on which host rank 0 is.\n"
            "hint: set MASTER_ADDR to the host of rank 0 in all processes"
        )

    def job_of(self, environment: Mapping[str, str]) -> str:
        """What tells this job from another of the same user, alike in all its processes."""
        return ",".join(f"{name}={environment[name]}" for name in self.job if name in environment)

    # Of its command line.

    def hosts_in(self, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The hosts on which the command starts processes, each as it is written (``a``, ``a:4``); none if unsaid."""
        raise NotImplementedError

    def in_full(self, words: Sequence[str], hosts: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The command with all that it would take from its allocation, so that less can be asked of it."""
        return list(words)

    def on(self, words: Sequence[str], entries: Sequence[str], scratch: Path) -> list[str]:
        """The command for fewer hosts: some of the entries that :meth:`hosts_in` gave."""
        raise NotImplementedError

    def num_tasks(self, words: Sequence[str]) -> int | None:
        """Processes that the command starts on all its hosts together; None if it leaves that open.

        Raises
        ------
        SuiteError
            If it says something that is no number.
        """
        option = find(words, self.of_tasks, self.may_be_glued)
        return count(words, option) if option else None

    def with_tasks(self, words: Sequence[str], num_tasks: int) -> list[str]:
        """The command for so many processes, if it says how many."""
        changed = list(words)
        replace(changed, self.of_tasks, str(num_tasks), self.may_be_glued)
        return changed

    def alone(self, words: Sequence[str]) -> list[str]:
        """The command for one process, if it has one host."""
        command = self.with_tasks(words, 1)
        replace(command, self.of_tasks_per_node, "1", self.may_be_glued)
        return command

    def in_common_options(self, words: Sequence[str]) -> list[str]:
        """The same command in options that every launcher of this name takes."""
        return list(words)


@dataclass(frozen=True)
class Started:
    """A process that a launcher started: its place among those of the job.

    Parameters
    ----------
    local_rank
        Among those of its host; None where the launcher does not give it.
    """

    launcher: Launcher
    rank: int
    size: int
    local_rank: int | None

    @property
    def is_mpi(self) -> bool:
        return self.launcher.kind == "mpi"


@cache
def launchers() -> dict[str, Launcher]:
    """All launchers by name, the innermost first."""
    by_name = {name: kind() for name, kind in things("clusterbench.launchers", Launcher).items()}
    return dict(sorted(by_name.items(), key=lambda item: INNERMOST_FIRST.index(item[1].kind)))


def detect(environment: Mapping[str, str]) -> Started | None:
    """Who started this process, and as which; None for a plain start.

    The lone task of a scheduler is one: a shell of ``salloc`` or ``srun --pty``, or a notebook, may start others.

    Raises
    ------
    LaunchError
        If a launcher's variables are there, but cannot be, or are of one that is not known: all its processes would
        make the same run, on the same GPUs.
    """
    for launcher in launchers().values():
        if started := launcher.started(environment):
            return None if launcher.kind == "scheduler" and started.size == 1 else started
    for name, size_name in SIZES_OF_UNKNOWN.items():
        rank, size = environment.get(name), environment.get(size_name) if size_name else None
        is_alone = size == "1" if size else rank == "0"
        if rank and not is_alone:
            raise LaunchError(
                f"a launcher that is not known started this process with {name}={rank}: each of its processes would be "
                "a run of its own.\n"
                "hint: export WORLD_SIZE=8 and MASTER_ADDR, the host of rank 0, and start 8 processes of "
                f"sh -c 'RANK=${name} exec clusterbench run SUITE'; without {name} it is a run on this host alone"
            )
    return None


def is_launchers(variable: str) -> bool:
    """True for a variable that a launcher sets: no suite may, and no worker may see it.

    torchrun's make ``init_process_group`` a client of a store that is not there; PMI's make a child take itself for an
    MPI rank.

    >>> is_launchers("MASTER_ADDR"), is_launchers("NCCL_ALGO")
    (True, False)
    """
    return re.fullmatch(launchers_variables(), variable) is not None


@cache
def launchers_variables() -> str:
    """The pattern of all of them."""
    return "|".join([SECRET_VARIABLE, *dict.fromkeys(launcher.variables for launcher in launchers().values())])


def without_launchers(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` less everything that a launcher put there."""
    return {name: value for name, value in environment.items() if not is_launchers(name)}


def of_command(words: Sequence[str]) -> Launcher:
    """The launcher that a command line starts with.

    Raises
    ------
    SuiteError
        If it is none that can be started again on fewer hosts.
    """
    name = Path(words[0]).name if words else ""
    for launcher in launchers().values():
        for command in launcher.commands:
            if [name, *words[1:]][: command.count(" ") + 1] == command.split():
                return launcher
    *others, last = sorted({launcher.program for launcher in launchers().values() if launcher.commands})
    raise SuiteError(
        f"only {', '.join(others)} and {last} can be started again on fewer hosts.\n"
        "hint: --launch 'mpirun -n 8 -host a:4,b:4'; under another launcher start clusterbench itself, without --launch"
    )


def named_hosts(text: str) -> list[str]:
    """The hosts that ``text`` names, each once: a list, or, where a slash is in it, a file of lists.

    Source: Slurm's srun(1), ``--exclude`` and ``--nodelist``.

    Raises
    ------
    SuiteError
        If the file cannot be read, or what stands in brackets is no number.

    >>> named_hosts("cb[1-2],cb1")
    ['cb1', 'cb2']
    """
    lists = ",".join(" ".join(lines_of(text)).split()) if "/" in text else text
    try:
        return list(dict.fromkeys(host.strip() for host in expand_hosts(lists) if host.strip()))
    except ValueError:
        raise SuiteError(f"{text!r} is no list of hosts: write names as a,b or n[1-4], or a file as ./FILE.") from None


def mpi_daemons() -> set[str]:
    """Programs that are the parent of a process that an MPI's launcher started."""
    mpis = [launcher for launcher in launchers().values() if launcher.kind == "mpi"]
    return {program for launcher in mpis for program in (*launcher.commands, *launcher.daemons)}


def host_that_ended_first(line: str) -> str | None:
    """The host that a launcher names in ``line`` as that of the process that ended first.

    >>> host_that_ended_first("=   EXIT CODE: 9 =   RUNNING AT cb2")
    'cb2'
    """
    for launcher in launchers().values():
        if launcher.ended_first and (match := re.search(launcher.ended_first, line)):
            return match[1]
    return None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise LaunchError(f"{name} must be a whole number, not {text!r}")
    return int(text)
