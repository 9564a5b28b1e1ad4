"""Who started this process, read from the environment without touching MPI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from clusterbench.errors import LaunchError
from clusterbench.variables import is_launchers


@dataclass(frozen=True)
class Launcher:
    """The launcher's name and this process's place among those it started.

    ``local_rank`` and ``local_size`` count the processes of one host.
    """

    name: str
    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def is_mpi(self) -> bool:
        return self.name in ("openmpi", "mpich")


# In this order, and with both variables where two are named. mpirun inside salloc starts its daemons with srun, so its
# ranks also carry SLURM_PROCID (the daemon's): MPI comes before Slurm. A batch script has SLURM_PROCID=0 but no step:
# without the second test it would take itself for rank 0 of many and wait for ever. srun with MpiDefault=pmi2 sets
# PMI_RANK but no MPI_LOCALRANKID.
_LAUNCHERS: tuple[tuple[str, tuple[str, ...], tuple[str, str, str, str]], ...] = (
    ("torchrun", ("TORCHELASTIC_RUN_ID",), ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")),
    ("environment", ("RANK", "WORLD_SIZE"), ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")),
    (
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    ("mpich", ("PMI_RANK", "MPI_LOCALRANKID"), ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")),
    (
        "slurm",
        ("SLURM_PROCID", "SLURM_STEP_ID"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    ),
)


def detect(environment: Mapping[str, str]) -> Launcher | None:
    """The launcher that started this process, or None for a plain start.

    Source: measured with torchrun 2.13, Open MPI 5.0, MPICH 5.0 and Slurm 22.05.

    Raises
    ------
    LaunchError
        If one of its variables, as people set them by hand, says nothing that can be.
    """
    for name, tests, (rank, size, local_rank, local_size) in _LAUNCHERS:
        if all(test in environment for test in tests):
            launcher = Launcher(
                name,
                _number(environment, rank),
                _number(environment, size, _number(environment, "SLURM_NTASKS", 1)),
                _number(environment, local_rank, 0),
                _local_size(environment.get(local_size, "1"), _number(environment, "SLURM_NODEID", 0)),
            )
            if not launcher.rank < launcher.size:
                raise LaunchError(f"{rank} is {launcher.rank}, but {size} is {launcher.size}: ranks count from 0")
            return launcher
    return None


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "")
    if default is not None and not text:
        return default
    if not text.isdecimal():
        raise LaunchError(f"{name} must be a whole number, not {text!r}")
    return int(text)


def _local_size(text: str, node: int) -> int:
    """A count, or Slurm's ``2(x2),1``: so many tasks on so many nodes, in order.

    >>> _local_size("2(x2),1", 2)
    1
    """
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(times or 1)
    return counts[min(node, len(counts) - 1)] if counts else 1


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` less everything a launcher put there."""
    return {name: value for name, value in environment.items() if not is_launchers(name)}


def expand_hosts(text: str) -> Iterator[str]:
    """Every host of a list in Slurm's notation.

    >>> list(expand_hosts("cb[1-2,4],gpu-a[01-02]b,x"))
    ['cb1', 'cb2', 'cb4', 'gpu-a01b', 'gpu-a02b', 'x']
    """
    for piece in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        parts = re.split(r"\[([^\]]*)\]", piece)
        choices = [list(_numbers(part)) if index % 2 else [part] for index, part in enumerate(parts)]
        yield from ("".join(chosen) for chosen in product(*choices))


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not last:
            yield first
        else:
            yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
