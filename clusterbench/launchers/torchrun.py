from __future__ import annotations

from typing import ClassVar

from clusterbench.launchers import Kind, Launcher


class Torchrun(Launcher):
    """PyTorch's torchrun, one on every host. It has no list of hosts, so nothing can start it again on fewer.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html; variables as seen with torch 2.13.
    """

    program: ClassVar[str] = "torchrun"
    kind: ClassVar[Kind] = "elastic"
    signs: ClassVar[tuple[str, ...]] = ("TORCHELASTIC_RUN_ID",)
    rank: ClassVar[str] = "RANK"
    size: ClassVar[tuple[str, ...]] = ("WORLD_SIZE",)
    local_rank: ClassVar[str | None] = "LOCAL_RANK"
    variables: ClassVar[str] = (
        r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|(ROLE_|MASTER_|TORCHELASTIC)\w*"
    )
    # Not SLURM_STEP_ID: where it was started by an srun for each host, each has another.
    job: ClassVar[tuple[str, ...]] = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "WORLD_SIZE")
