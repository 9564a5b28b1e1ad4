from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from clusterbench.launchers import Kind, Launcher, Started


class ByHand(Launcher):
    """Variables that a person or a script has set for each process.

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

    def started(self, environment: Mapping[str, str]) -> Started | None:
        """None in a pod of Kubeflow's, whose RANK counts pods, and WORLD_SIZE what torchrun would start in them all."""
        is_pod = "PET_NNODES" in environment and environment.get("PET_NODE_RANK") == environment.get("RANK")
        return None if is_pod and "LOCAL_RANK" not in environment else super().started(environment)
