"""How a model is put together on one rank: the order in which parallelisms are applied, and the weights filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Shard
from torch.distributed.tensor.parallel import parallelize_module

from clusterbench.parallel import MATERIALIZE, PHASES, Parallelism, partial_weights
from clusterbench.training.job import TrainingJob
from clusterbench.training.model import Decoder
from clusterbench.training.noise import fill_uniform

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

MASTER_DTYPES = {"bfloat16": torch.float32, "float32": torch.float32, "float64": torch.float64}
COMPUTE_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Weight:
    """This rank's part of one weight, as a plain parameter that optimizer, clipping and DDP can take.

    Attributes
    ----------
    place
        Where the part lies in the whole weight.
    split_over
        Mesh axes over which the weight is cut; its squares are summed over them for the norm.
    partial_over
        Mesh axes over which its gradient has to be summed.
    """

    name: str
    parameter: nn.Parameter
    place: tuple[slice, ...]
    split_over: tuple[str, ...]
    partial_over: tuple[str, ...]

    @property
    def gradient(self) -> torch.Tensor:
        assert self.parameter.grad is not None, f"{self.name} has no gradient: backward has not run"
        return self.parameter.grad


@dataclass
class Assembly:
    """A model while it is being put together; each parallelism changes it in its phase.

    Attributes
    ----------
    model
        What is called; the decoder, or what a parallelism wrapped around it.
    contexts
        Opened around forward and backward of each micro-batch.
    accumulating
        Opened as well around all micro-batches of a step but the last.
    keep_gradients
        Whether gradients are set to zero between steps; they are dropped otherwise.
    """

    decoder: Decoder
    mesh: DeviceMesh
    job: TrainingJob
    device: torch.device
    model: nn.Module = field(init=False)
    weights: list[Weight] = field(default_factory=list)
    contexts: list[Callable[[], AbstractContextManager[object]]] = field(default_factory=list)
    accumulating: list[Callable[[], AbstractContextManager[object]]] = field(default_factory=list)
    keep_gradients: bool = False

    def __post_init__(self) -> None:
        self.model = self.decoder

    def parallelize(self, axis: str, plan: Mapping[str, ParallelStyle]) -> None:
        """Applies torch's styles to modules along an axis; weights stay where they are, none is sent."""
        parallelize_module(self.decoder, self.mesh[axis], dict(plan), src_data_rank=None)


def assemble(
    job: TrainingJob, parallelisms: Sequence[Parallelism], mesh: DeviceMesh | None, device: torch.device
) -> Assembly:
    """The model of ``job`` on this rank: cut, filled from the seed, wrapped. Communicates nothing.

    Parameters
    ----------
    parallelisms
        Those active in the job's layout, in any order.
    mesh
        With axes pp, dp, cp, tp. None for a job on one rank.

    Notes
    -----
    The model is built on the meta device, so a rank allocates the parts it keeps and nothing else.
    """
    with torch.device("meta"):
        decoder = Decoder(job.shape, COMPUTE_DTYPES[job.dtype]).to(MASTER_DTYPES[job.dtype])
    assembly = Assembly(decoder, mesh, job, device)  # type: ignore[arg-type]
    for phase in PHASES:
        if phase == MATERIALIZE:
            assembly.weights = materialize(decoder, job, partial_weights(parallelisms, job), device)
        for parallelism in parallelisms:
            if parallelism.phase == phase:
                parallelism.apply(assembly)
    return assembly


def materialize(decoder: Decoder, job: TrainingJob, partial: set[str], device: torch.device) -> list[Weight]:
    """Allocates this rank's part of every weight, and fills it.

    A weight that is a DTensor becomes a plain parameter (``weight_part``) which the module sees through a DTensor view.
    The optimizer, the norm and DDP then work on plain tensors: a mixture of both kinds stops foreach kernels and DDP's
    buckets (``aten.cat.default got mixed torch.Tensor and DTensor``), and DTensor's dispatch would cost each of them
    more than the arithmetic. The view is made once: its backward keeps nothing, so it serves every step.
    """
    weights = []
    for path, module in decoder.named_modules():
        for leaf, whole in list(module.named_parameters(recurse=False)):
            name = f"{path}.{leaf}"
            place, split_over = _place(whole)
            size = [part.stop - part.start for part in place]
            parameter = nn.Parameter(torch.empty(size, dtype=whole.dtype, device=device))
            norm = whole.dim() == 1
            fill_uniform(
                parameter,
                job.seed,
                name,
                tuple(part.start for part in place),
                mean=1.0 if norm else 0.0,
                # keeps the size of what passes through: the twin of a 405b model is as well-conditioned as a tiny one
                std=0.02 if norm else whole.shape[-1] ** -0.5,
            )
            if isinstance(whole, DTensor):
                wanted = (Partial(),) if name in partial else whole.placements
                view = _View.apply(parameter, whole.device_mesh, whole.placements, wanted)  # type: ignore[no-untyped-call]
                delattr(module, leaf)
                setattr(module, leaf, view)
                module.register_parameter(f"{leaf}_part", parameter)
            else:
                setattr(module, leaf, parameter)
            weights.append(Weight(name, parameter, place, split_over, ("tp",) if name in partial else ()))
    return weights


class _View(torch.autograd.Function):
    """A part of a weight as a DTensor, whose gradient comes back in the placements that are wanted.

    ``DTensor.from_local`` alone sums a gradient that is ``Partial``, weight by weight and micro-batch by micro-batch;
    training/step.py sums them all at once at the end. Its ``grad_placements`` would do this, but torch 2.11 lacks it.
    """

    @staticmethod
    def forward(
        ctx: Any, part: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], wanted: Sequence[Placement]
    ) -> DTensor:
        ctx.wanted = tuple(wanted)
        return DTensor.from_local(part, mesh, placements, run_check=False)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[Tensor, None, None, None]:
        if tuple(gradient.placements) != ctx.wanted:
            gradient = gradient.redistribute(placements=ctx.wanted)
        return gradient.to_local(), None, None, None


def _place(whole: torch.Tensor) -> tuple[tuple[slice, ...], tuple[str, ...]]:
    """Where this rank's part of a weight lies, and over which axes it is cut. Parts are equal: objections see to it."""
    place = [slice(0, size) for size in whole.shape]
    split_over: tuple[str, ...] = ()
    if isinstance(whole, DTensor):
        mesh = whole.device_mesh
        for index, placement in enumerate(whole.placements):
            if isinstance(placement, Shard):
                part = whole.shape[placement.dim] // mesh.size(index)
                start = part * mesh.get_local_rank(index)
                place[placement.dim] = slice(start, start + part)
                split_over = (*split_over, (mesh.mesh_dim_names or ())[index])
    return tuple(place), split_over
