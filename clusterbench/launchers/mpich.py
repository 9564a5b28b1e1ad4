from __future__ import annotations

from typing import ClassVar

from clusterbench.launchers._mpirun import Mpirun


class Mpich(Mpirun):
    """MPICH's mpirun, and others with its process manager Hydra.

    Source: https://github.com/pmodels/mpich/blob/main/doc/wiki/how_to/Using_the_Hydra_Process_Manager.md; variables and
    messages as seen with MPICH 5.0.
    """

    # srun with MpiDefault=pmi2, and Flux, set PMI_RANK too, but no MPI_LOCALRANKID.
    signs: ClassVar[tuple[str, ...]] = ("PMI_RANK", "MPI_LOCALRANKID")
    rank: ClassVar[str] = "PMI_RANK"
    size: ClassVar[tuple[str, ...]] = ("PMI_SIZE",)
    local_rank: ClassVar[str | None] = "MPI_LOCALRANKID"
    variables: ClassVar[str] = r"(PMI|HYDI|HYDRA|MPI_LOCAL)\w*"
    commands: ClassVar[tuple[str, ...]] = ("mpirun", "mpiexec", "mpiexec.hydra")
    daemons: ClassVar[tuple[str, ...]] = ("hydra_pmi_proxy",)
    ended_first: ClassVar[str | None] = r"RUNNING AT (\S+)"
