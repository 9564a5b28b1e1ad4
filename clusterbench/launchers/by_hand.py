from __future__ import annotations

from typing import ClassVar

from clusterbench.launchers import Kind, Launcher


class ByHand(Launcher):
    """Variables that a person, a script or a Kubernetes operator has set for each process.

    Source: https://docs.pytorch.org/docs/stable/distributed.html, "Environment variable initialization".
    """

    program: ClassVar[str] = "a script with RANK and WORLD_SIZE"
    kind: ClassVar[Kind] = "by hand"
    signs: ClassVar[tuple[str, ...]] = ("RANK", "WORLD_SIZE")
    rank: ClassVar[str] = "RANK"
    size: ClassVar[tuple[str, ...]] = ("WORLD_SIZE",)
    local_rank: ClassVar[str | None] = "LOCAL_RANK"
    variables: ClassVar[str] = r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_\w*"
    # Slurm's where a step's tasks set the others for themselves: two such steps of a user may be alike in the rest.
    job: ClassVar[tuple[str, ...]] = ("SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_PORT", "WORLD_SIZE")
