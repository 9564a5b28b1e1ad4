from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from clusterbench.launchers import Kind, Launcher


class Kubeflow(Launcher):
    """Pods of Kubeflow's PyTorchJob and TrainJob, with one process each. *Not run*: written from its source.

    Its variables are meant for a torchrun in each pod, which would start ``PET_NPROC_PER_NODE`` processes.

    Source: https://github.com/kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go, and
    https://github.com/kubeflow/trainer, pkg/runtime/framework/plugins/torch/torch.go.
    """

    program: ClassVar[str] = "Kubeflow"
    kind: ClassVar[Kind] = "scheduler"
    signs: ClassVar[tuple[str, ...]] = ("PET_NNODES", "PET_NODE_RANK")
    rank: ClassVar[str] = "PET_NODE_RANK"
    size: ClassVar[tuple[str, ...]] = ("PET_NNODES",)
    variables: ClassVar[str] = r"PET_\w*"
    job: ClassVar[tuple[str, ...]] = ("PET_MASTER_ADDR", "PET_MASTER_PORT", "MASTER_PORT", "PET_NNODES")

    def head(self, environment: Mapping[str, str]) -> str:
        return environment.get("PET_MASTER_ADDR") or super().head(environment)
