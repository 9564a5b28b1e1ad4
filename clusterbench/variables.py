"""Environment variables that belong to whoever starts the processes."""

from __future__ import annotations

import re

_LAUNCHERS = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_\w+|MASTER_\w+"
    r"|(TORCHELASTIC|PMI|PMIX|OMPI|PRTE|HYDI|HYDRA|MPI_LOCAL|SLURM|FLUX|PALS)\w*|CLUSTERBENCH_SECRET)"
)


def is_launchers(name: str) -> bool:
    """True for a variable that a launcher sets: no suite may, and no worker may see it.

    torchrun's make ``init_process_group`` a client of a store that is not there; PMI's make a child take itself for an
    MPI rank.

    >>> is_launchers("MASTER_ADDR"), is_launchers("NCCL_ALGO")
    (True, False)
    """
    return _LAUNCHERS.fullmatch(name) is not None
