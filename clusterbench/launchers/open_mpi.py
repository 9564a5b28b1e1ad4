from __future__ import annotations

from typing import ClassVar

from clusterbench.launchers._mpirun import Mpirun


class OpenMpi(Mpirun):
    """Open MPI's mpirun.

    Source: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html; variables and messages as seen with
    Open MPI 5.0.
    """

    signs: ClassVar[tuple[str, ...]] = ("OMPI_COMM_WORLD_RANK",)
    rank: ClassVar[str] = "OMPI_COMM_WORLD_RANK"
    size: ClassVar[tuple[str, ...]] = ("OMPI_COMM_WORLD_SIZE",)
    local_rank: ClassVar[str | None] = "OMPI_COMM_WORLD_LOCAL_RANK"
    variables: ClassVar[str] = r"(OMPI|PMIX|PRTE)\w*"
    commands: ClassVar[tuple[str, ...]] = ("mpirun", "mpiexec", "orterun", "prterun")
    daemons: ClassVar[tuple[str, ...]] = ("orted", "prted")
    ended_first: ClassVar[str | None] = r"on node (\S+) exited on signal"
