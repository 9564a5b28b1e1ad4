from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from clusterbench.errors import LaunchError, SuiteError
from clusterbench.launchers import Kind, Launcher, Started
from clusterbench.launchers._options import lines_of


class Pbs(Launcher):
    """PBS Professional's and OpenPBS's pbsdsh, with one process per host. *Not run*: written from its documentation.

    Inside a PBS job mpirun is the better way, which finds its hosts in ``PBS_NODEFILE``. pbsdsh starts a program for
    every line of that file or for a single one, so nothing can start it again on fewer hosts.

    Source: pbsdsh(1B) of https://github.com/openpbs/openpbs, and there src/resmom/start_exec.c: PBS_TASKNUM is 1 in the
    job's script and has eight hexadecimal digits in what pbsdsh started; PBS_NODENUM is the number of the host's first
    line in PBS_NODEFILE, a file that only the first host has.
    """

    program: ClassVar[str] = "pbsdsh"
    kind: ClassVar[Kind] = "scheduler"
    signs: ClassVar[tuple[str, ...]] = ("PBS_JOBID", "PBS_NODENUM", "PBS_TASKNUM")
    rank: ClassVar[str] = "PBS_NODENUM"
    size: ClassVar[tuple[str, ...]] = ("WORLD_SIZE",)
    variables: ClassVar[str] = r"(PBS|PALS)\w*"  # PALS: HPE's launcher on systems with PBS
    job: ClassVar[tuple[str, ...]] = ("PBS_JOBID",)

    def started(self, environment: Mapping[str, str]) -> Started | None:
        if not re.fullmatch("[0-9A-F]{8}", environment.get("PBS_TASKNUM", "")):
            return None
        if not environment.get("WORLD_SIZE"):
            raise LaunchError(
                "pbsdsh started this process, but does not tell it how many there are.\n"
                "hint: use mpirun, or where PBS_NODEFILE has one line per host 'pbsdsh -- env WORLD_SIZE=2 "
                "MASTER_ADDR=$(hostname) clusterbench run SUITE --ranks-per-agent all'"
            )
        return super().started(environment)

    def hosts(self, environment: Mapping[str, str]) -> list[str]:
        try:
            return list(dict.fromkeys(lines_of(environment.get("PBS_NODEFILE", ""))))
        except SuiteError:
            return []
