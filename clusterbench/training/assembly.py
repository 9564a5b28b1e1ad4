"""How a model is put together on one rank: the order in which parallelisms are applied, and the weights filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.optim import Optimizer

from clusterbench.engine.grid import Grid
from clusterbench.parallel import LOCALIZE, MATERIALIZE, PHASES, Parallelism, split_over, summed_over
from clusterbench.parallel.data import is_spread_expert
from clusterbench.training.job import BETAS, LEARNING_RATE, WEIGHT_DECAY, TrainingJob
from clusterbench.training.model import Decoder, Layer, TiedHead
from clusterbench.training.noise import fill_uniform

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    from clusterbench.training.stages import Stages

MASTER_DTYPES = {"bfloat16": torch.float32, "float32": torch.float32, "float64": torch.float64}
COMPUTE_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclass
class Weight:
    """This rank's part of one weight.

    Attributes
    ----------
    name
        Of the whole weight in the whole model.
    module, leaf
        Where it hangs as a parameter.
    whole
        The shape before anything was cut.
    place
        Where the part lies in the whole.
    split_over
        Axes over which the weight is cut; its squares are summed over them for the norm.
    sum_over
        Axes over which its gradient is summed after the last backward, and ``scale`` what the sum is multiplied with.
    """

    name: str
    module: nn.Module
    leaf: str
    whole: torch.Size
    place: tuple[slice, ...]
    split_over: tuple[str, ...]
    sum_over: tuple[str, ...]
    scale: float = 1.0

    @property
    def parameter(self) -> nn.Parameter:
        """What the optimizer takes: a plain parameter, or under FSDP a DTensor."""
        parameter = getattr(self.module, self.leaf)
        assert isinstance(parameter, nn.Parameter)
        return parameter

    @property
    def local_name(self) -> str:
        """Of the parameter, within the model of this rank."""
        return f"{self.name.rpartition('.')[0]}.{self.leaf}"

    @property
    def value(self) -> Tensor:
        """This rank's part, as a plain tensor."""
        return _local(self.parameter.detach())

    @property
    def gradient(self) -> Tensor:
        """The gradient of this rank's part, as a plain tensor."""
        gradient = self.parameter.grad
        assert gradient is not None, f"{self.name} has no gradient: backward has not run"
        return _local(gradient)


@dataclass
class Assembly:
    """A model while it is being put together; each parallelism changes it in its phase.

    Attributes
    ----------
    decoders
        What this rank has of the model: the whole, or one for each pipeline stage it owns.
    grid
        Meshes and groups. A job on one rank has none, and no parallelism asks.
    model
        What is called; the decoder, or what a parallelism wrapped around it. With pipeline stages nothing calls it.
    contexts
        Opened around forward and backward of each micro-batch.
    accumulating
        Opened as well around all micro-batches of a step but the last.
    keep_gradients
        Whether gradients are set to zero between steps; they are dropped otherwise.
    fresh_views
        Whether a view of a weight is made anew in each forward, because its storage comes and goes (FSDP).
    home
        Where parameters are between uses, if not on the device.
    make_optimizer
        From parameters and the axis along which other ranks have the same ones.
    stages
        What this rank has of a pipeline; None without one.
    forward_backward
        Runs all micro-batches of a step and returns the sum of their losses; None for one after the other.
    """

    decoders: list[Decoder]
    grid: Grid
    job: TrainingJob
    device: torch.device
    model: nn.Module = field(init=False)
    weights: list[Weight] = field(default_factory=list)
    contexts: list[Callable[[], AbstractContextManager[object]]] = field(default_factory=list)
    accumulating: list[Callable[[], AbstractContextManager[object]]] = field(default_factory=list)
    keep_gradients: bool = False
    fresh_views: bool = False
    home: torch.device | None = None
    make_optimizer: Callable[[list[nn.Parameter], str], Optimizer] = field(
        default=lambda parameters, axis: adamw(parameters)
    )
    stages: Stages | None = None
    forward_backward: Callable[[Sequence[tuple[Tensor, Tensor]]], Tensor] | None = None

    def __post_init__(self) -> None:
        self.model = self.decoders[0]

    def layers(self) -> Iterator[Layer]:
        """Every layer of this rank."""
        for decoder in self.decoders:
            yield from decoder.layers.values()  # type: ignore[misc]

    def parallelize(self, axis: str, plan: Mapping[str, ParallelStyle]) -> None:
        """Applies torch's styles to modules along an axis; weights stay where they are, none is sent."""
        for decoder in self.decoders:
            there = {name for name, _ in decoder.named_children()}
            present = {name: style for name, style in plan.items() if name.split(".")[0] in there}
            parallelize_module(decoder, self.grid.line(axis), present, src_data_rank=None)

    def cut(self, name: str, dim: int, axis: str) -> None:
        """Leaves this rank its equal share of a weight along one dimension. Before anything is allocated."""
        decoder = next(one for one in self.decoders if name in dict(one.named_parameters()))
        path, _, leaf = name.rpartition(".")
        module = decoder.get_submodule(path)
        whole: Tensor = getattr(module, leaf)
        mesh = self.grid.line(axis)
        size = [whole.shape[at] // (mesh.size() if at == dim else 1) for at in range(whole.dim())]
        part = torch.empty(size, dtype=whole.dtype, device="meta")
        setattr(module, leaf, nn.Parameter(DTensor.from_local(part, mesh, [Shard(dim)], run_check=False)))


# Fused: one kernel for all weights and no temporaries, on CPU as on CUDA.
ADAMW: dict[str, Any] = {"lr": LEARNING_RATE, "betas": BETAS, "weight_decay": WEIGHT_DECAY, "fused": True}


def adamw(parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The optimizer of every step."""
    return torch.optim.AdamW(parameters, **ADAMW)


def assemble(
    job: TrainingJob, parallelisms: Sequence[Parallelism], grid: Grid | None, positions: Tensor, device: torch.device
) -> Assembly:
    """The model of ``job`` on this rank: cut, filled from the seed, wrapped. Communicates nothing.

    Parameters
    ----------
    job
        With the chunks this rank has.
    parallelisms
        Those active in the job's layout, in any order.
    grid
        None for a job on one rank.
    positions
        Of the tokens this rank sees.

    Notes
    -----
    The model is built on the meta device, so a rank allocates the parts it keeps and nothing else.
    """
    with torch.device("meta"):
        dtype = MASTER_DTYPES[job.dtype]
        decoders = [Decoder(job.shape, COMPUTE_DTYPES[job.dtype], positions, chunk).to(dtype) for chunk in job.held]
    assembly = Assembly(decoders, grid, job, device)  # type: ignore[arg-type]
    for phase in PHASES:
        if phase == LOCALIZE:
            assembly.weights = [*localize(assembly, parallelisms)]
        if phase == MATERIALIZE:
            materialize(assembly)
        for parallelism in parallelisms:
            if parallelism.phase == phase:
                parallelism.apply(assembly)
    return assembly


def localize(assembly: Assembly, parallelisms: Sequence[Parallelism]) -> Iterator[Weight]:
    """Makes every weight a plain parameter, this rank's part, which a module sees through a DTensor where it needs one.

    The optimizer, the norm and DDP then work on plain tensors: a mixture of both kinds stops foreach kernels and DDP's
    buckets (``aten.cat.default got mixed torch.Tensor and DTensor``), and DTensor's dispatch would cost each of them
    more than the arithmetic. Experts need no DTensor: their module knows that it has a part.
    """
    job = assembly.job
    for decoder in assembly.decoders:
        for path, module in list(decoder.named_modules()):
            for leaf, whole in list(module.named_parameters(recurse=False)):
                name = f"{path}.{leaf}"
                sums = summed_over(parallelisms, name, job)
                weight = Weight(
                    name, module, leaf, whole.shape, _place(whole), split_over(parallelisms, name, job), sums
                )
                if job.layout.data_axis in sums or is_spread_expert(name, job):
                    weight.scale = 1 / job.layout.degree("dp_cp")
                if isinstance(whole, DTensor):
                    size = [part.stop - part.start for part in weight.place]
                    part = nn.Parameter(torch.empty(size, dtype=whole.dtype, device="meta"))
                    if "ep" in weight.split_over:
                        setattr(module, leaf, part)
                    else:
                        delattr(module, leaf)
                        weight.leaf = f"{leaf}_part"
                        module.register_parameter(weight.leaf, part)
                        wanted = (Partial(),) if "tp" in sums else whole.placements
                        _view_later(module, leaf, weight.leaf, whole, wanted)
                yield weight


_VIEWS = "_clusterbench_views"


def _view_later(module: nn.Module, leaf: str, part: str, whole: DTensor, wanted: Sequence[Placement]) -> None:
    """Remembers with the module how to see its part of a weight as a DTensor."""

    def look() -> None:
        setattr(module, leaf, _View.apply(getattr(module, part), whole.device_mesh, whole.placements, wanted))  # type: ignore[no-untyped-call]

    setattr(module, _VIEWS, [*getattr(module, _VIEWS, []), look])


def materialize(assembly: Assembly) -> None:
    """Allocates this rank's part of every weight, fills it, and puts the views where modules look for them.

    A view is made once: its backward keeps nothing, so it serves every step.
    """
    for decoder in assembly.decoders:
        decoder.to_empty(device=assembly.home or assembly.device)
    for weight in assembly.weights:
        norm = len(weight.whole) == 1
        fill_uniform(
            weight.value,
            assembly.job.seed,
            weight.name,
            tuple(part.start for part in weight.place),
            weight.whole,
            mean=1.0 if norm else 0.0,
            # keeps the size of what passes through: the twin of a 405b model is as well-conditioned as a tiny one
            std=0.02 if norm else weight.whole[-1] ** -0.5,
        )
    for decoder in assembly.decoders:
        for module in decoder.modules():
            for look in getattr(module, _VIEWS, []):
                if not assembly.fresh_views:
                    look()
                    continue
                readers = [module]
                if module is decoder.embedding and isinstance(decoder.head, TiedHead):
                    readers.append(decoder.head)
                for reader in readers:
                    reader.register_forward_pre_hook(partial(_look_first, look))


def _look_first(look: Callable[[], None], module: nn.Module, inputs: Any) -> None:
    look()


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


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _place(whole: torch.Tensor) -> tuple[slice, ...]:
    """Where this rank's part of a weight lies. Parts are equal: objections see to it."""
    place = [slice(0, size) for size in whole.shape]
    if isinstance(whole, DTensor):
        mesh = whole.device_mesh
        for index, placement in enumerate(whole.placements):
            if isinstance(placement, Shard):
                part = whole.shape[placement.dim] // mesh.size(index)
                start = part * mesh.get_local_rank(index)
                place[placement.dim] = slice(start, start + part)
    return tuple(place)
