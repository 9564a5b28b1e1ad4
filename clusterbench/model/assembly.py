"""A model while it is assembled on one rank, with this rank's part of each weight: what a parallelism works on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.optim import Optimizer

from clusterbench.engine.compat import round_into
from clusterbench.engine.dtensor import local
from clusterbench.engine.grid import Grid
from clusterbench.errors import WrongResult
from clusterbench.job import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY, TrainingJob
from clusterbench.model.decoder import Decoder, Layer, loss_of
from clusterbench.model.half_moments import HalfMomentsAdamW
from clusterbench.model.narrow_gradients import NarrowGradientsAdamW
from clusterbench.model.rounded import masters_and_copies
from clusterbench.model.stages import Stages
from clusterbench.model.stochastic_rounding import StochasticRounding

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

COMPUTE_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
_OF_BYTES = {dtype.itemsize: dtype for dtype in COMPUTE_DTYPES.values()}


def master_dtype(job: TrainingJob) -> torch.dtype:
    """In which weights are kept."""
    return _OF_BYTES[job.master_bytes]


def gradient_dtype(job: TrainingJob) -> torch.dtype:
    """In which gradients are reduced over ranks."""
    return _OF_BYTES[job.gradient_bytes]


@dataclass
class Weight:
    """This rank's part of one weight.

    Attributes
    ----------
    name
        Of the whole weight in the whole model.
    module, leaf
        Where it hangs as a parameter.
    graded_leaf
        What the parameter is called that gets its gradient, where that is another: a copy in fewer bits.
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
    graded_leaf: str = ""

    @property
    def parameter(self) -> nn.Parameter:
        """What the optimizer takes: a plain parameter, or under FSDP a DTensor."""
        parameter = getattr(self.module, self.leaf)
        assert isinstance(parameter, nn.Parameter)
        return parameter

    @property
    def graded(self) -> nn.Parameter:
        """The parameter that gets the gradient in backward."""
        parameter = getattr(self.module, self.graded_leaf or self.leaf)
        assert isinstance(parameter, nn.Parameter)
        return parameter

    @property
    def graded_name(self) -> str:
        """Its name within the model of this rank."""
        return f"{self.name.rpartition('.')[0]}.{self.graded_leaf or self.leaf}"

    @property
    def value(self) -> Tensor:
        """This rank's part, as a plain tensor."""
        return local(self.parameter.detach())

    @property
    def gradient(self) -> Tensor:
        """The gradient of this rank's part, as a plain tensor.

        Raises
        ------
        WrongResult
            Where backward has left none.
        """
        if (gradient := self.graded.grad) is None:
            raise WrongResult(f"backward has left no gradient of {self.name}")
        return local(gradient)

    @property
    def is_graded_elsewhere(self) -> bool:
        """Whether another parameter than the optimizer's gets the gradient."""
        return self.graded_leaf not in ("", self.leaf)

    def hand_over(self) -> None:
        """Gives the optimizer the gradient that another parameter got: the same memory, and as narrow."""
        self.parameter.grad = self.graded.grad

    def let_go(self, keeps: bool) -> None:
        """Takes it back before the next backward; the other parameter ``keeps`` its memory or drops that, too."""
        self.parameter.grad = None
        if not keeps:
            self.graded.grad = None


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
    rounding
        How updated weights are rounded to bfloat16; None to nearest.
    stages
        What this rank has of a pipeline; None without one.
    forward_backward
        Runs all micro-batches of a step and returns the sum of their losses; None for one after the other.
    loss
        Of what the model returns for one micro-batch, with its labels.
    unsent
        What compression of gradients has kept to send later: flat, the mean over the ranks that share them. A
        collective; None without one that keeps anything.
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
    make_optimizer: Callable[[list[nn.Parameter], str], Optimizer] = field(init=False)
    rounding: StochasticRounding | None = None
    stages: Stages | None = None
    forward_backward: Callable[[Sequence[tuple[Tensor, Tensor]]], Tensor] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = loss_of
    unsent: Callable[[], Tensor] | None = None

    def __post_init__(self) -> None:
        self.model = self.decoders[0]
        self.make_optimizer = lambda parameters, axis: adamw(parameters, self.job, self.rounding)

    def round_weights(self) -> None:
        """Rounds every weight of which there is a copy into it, as it is now."""
        pairs = [pair for decoder in self.decoders for pair in masters_and_copies(decoder)]
        round_into([copy for _, copy in pairs], [master for master, _ in pairs])

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
        decoder = next(decoder for decoder in self.decoders if name in dict(decoder.named_parameters()))
        path, _, leaf = name.rpartition(".")
        module = decoder.get_submodule(path)
        whole: Tensor = getattr(module, leaf)
        mesh = self.grid.line(axis)
        size = [whole.shape[at] // (mesh.size() if at == dim else 1) for at in range(whole.dim())]
        part = torch.empty(size, dtype=whole.dtype, device="meta")
        setattr(module, leaf, nn.Parameter(DTensor.from_local(part, mesh, [Shard(dim)], run_check=False)))


# Fused: one kernel for all weights and no temporaries, on CPU as on CUDA.
ADAMW: dict[str, Any] = {
    "lr": LEARNING_RATE,
    "betas": BETAS,
    "eps": EPSILON,
    "weight_decay": WEIGHT_DECAY,
    "fused": True,
}

HALF_MOMENTS: dict[str, Any] = {name: value for name, value in ADAMW.items() if name != "fused"} | {
    "moments": torch.bfloat16
}


def adamw(
    parameters: Sequence[nn.Parameter], job: TrainingJob, rounding: StochasticRounding | None = None
) -> Optimizer:
    """The optimizer of every step."""
    kind, settings = adamw_of(job, rounding)
    return kind(parameters, **settings)


def adamw_of(job: TrainingJob, rounding: StochasticRounding | None) -> tuple[type[Optimizer], dict[str, Any]]:
    """The optimizer's class and its settings: torch's own where it does what is asked."""
    if job.moment_bytes != job.master_bytes or rounding is not None:
        return HalfMomentsAdamW, {**HALF_MOMENTS, "rounding": rounding}
    if job.gradient_bytes != job.master_bytes:
        return NarrowGradientsAdamW, {name: value for name, value in ADAMW.items() if name != "fused"}
    return torch.optim.AdamW, ADAMW
