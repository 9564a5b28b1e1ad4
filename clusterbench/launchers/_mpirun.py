"""The command line of mpirun, which MPICH and Open MPI share: its name does not tell which of them it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from clusterbench.launchers import Kind, Launcher
from clusterbench.launchers._options import find, lines_of, replace

_HOSTS = ("-host", "--host", "-H", "-hosts", "--hosts")
_HOSTFILE = ("--hostfile", "-hostfile", "-machinefile", "--machinefile", "-f")
"""The first is taken by both, measured with MPICH 5.0 and Open MPI 5.0. ``-H`` is Open MPI's, ``-hosts`` and ``-f`` are
MPICH's, whose mpirun prints its usage and ends with 0 where it sees ``-H``."""


class Mpirun(Launcher):
    """Base of the launchers of an MPI."""

    program: ClassVar[str] = "mpirun"
    kind: ClassVar[Kind] = "mpi"
    naming_hosts: ClassVar[str] = "-host a:4,b:4 or --hostfile FILE"
    of_tasks: ClassVar[tuple[str, ...]] = ("-n", "-np", "--n", "--np", "-c")

    def hosts_in(self, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        if option := find(_with_hosts_together(words), _HOSTS):
            return [host for host in option.value.split(",") if host]
        if option := find(words, _HOSTFILE):
            return lines_of(option.value)
        return []

    def on(self, words: Sequence[str], entries: Sequence[str], scratch: Path) -> list[str]:
        others = _with_hosts_together(words)
        if not replace(others, _HOSTS, ",".join(entries)):  # a file beside it says more than these names, and stays
            replace(others, _HOSTFILE, _hostfile(entries, scratch))
        return others

    def in_common_options(self, words: Sequence[str]) -> list[str]:
        common = _with_hosts_together(words)
        for names in (self.of_tasks, _HOSTS, _HOSTFILE):
            if option := find(common, names):
                common[option.index : option.index + (2 if option.before is None else 1)] = [names[0], option.value]
        return common


def _with_hosts_together(words: Sequence[str]) -> list[str]:
    """The command with one option for hosts in place of several, which Open MPI adds up and MPICH refuses."""
    together = list(words)
    while (first := find(together, _HOSTS)) and (
        another := find(together[(at := first.index + (first.before is None)) :], _HOSTS)
    ):
        start = at + another.index
        del together[start : start + (2 if another.before is None else 1)]
        replace(together, _HOSTS, f"{first.value},{another.value}")
    return together


def _hostfile(entries: Sequence[str], scratch: Path) -> str:
    text = "".join(f"{entry}\n" for entry in entries)
    file = scratch / f"hosts-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    file.write_text(text, encoding="utf-8")
    return str(file)
