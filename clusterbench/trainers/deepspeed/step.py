"""The training step of DeepSpeed's documentation: ``engine.backward`` and ``engine.step`` for each micro-batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from clusterbench.engine.grid import Grid
from clusterbench.engine.rig import Rig
from clusterbench.errors import ToolError
from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.model.assembly import ADAMW, COMPUTE_DTYPES
from clusterbench.model.decoder import Decoder, loss_of, total_of
from clusterbench.model.noise import fill_weight
from clusterbench.parallel import Parallelism, active_in, of_kind
from clusterbench.parallel.recompute import Recompute
from clusterbench.trainers.deepspeed.settings import settings_of
from clusterbench.training.built_step import ObservedStep, Place, WeightPart
from clusterbench.training.data import micro_batches


class DeepSpeedStep:
    """The step of one rank, a :class:`~clusterbench.training.built_step.BuiltStep`."""

    leaves_gradients: ClassVar[bool] = False

    def __init__(self, job: TrainingJob, every: Sequence[Parallelism], grid: Grid, device: torch.device) -> None:
        self.job, self.num_steps = job, 0
        self.grid: Grid | None = grid
        self._group = grid.group("dp")
        self.last_loss: Tensor | None = None
        self.last_norm: Tensor | None = None
        positions = torch.arange(job.seq_len, device=device)
        with torch.device(device):
            decoder = Decoder(job.shape, COMPUTE_DTYPES[job.dtype], positions, job.held[0])
        for name, weight in decoder.named_parameters():
            fill_weight(weight.detach(), job.seed, name, (0,) * weight.dim(), weight.shape)
        recompute = of_kind(Recompute, active_in(job.layout, every))
        if recompute is not None:
            recompute.checkpoint([*decoder.layers.values()])  # type: ignore[list-item]
        self.modules = [decoder]
        self.optimizers = [torch.optim.AdamW(decoder.parameters(), **ADAMW)]
        self.engine = _engine(decoder, self.optimizers[0], settings_of(job, every), grid, device)
        if job.compute_bytes == 2:  # masters begin as the rounded weights: lost would be what is less than a rounding
            sizes = weight_shapes(job)
            for name, part in self.parts().items():
                part.value.copy_(_filled(name, part.place[0], sizes[name], job.seed, device))
        self.micro_batches = micro_batches(job, grid.rank("dp"), positions)

    def __call__(self) -> Tensor:
        self.last_loss = self._step()
        return self.last_loss

    def observed(self) -> ObservedStep:
        gradients = dict[str, Tensor]()
        loss = self.global_loss(self._step(lambda: gradients.update(self._gradients())))
        return ObservedStep(loss, self.last_norm, gradients)

    def parts(self) -> dict[str, WeightPart]:
        held = {name: _place(weight) for name, weight in self._weights()}
        return {name: WeightPart(_master(weight), held[name]) for name, weight in self._weights() if held[name]}

    def copies(self) -> dict[str, WeightPart]:
        return {name: _copy(weight) for name, weight in self._weights() if weight.numel() or _place(weight)}

    def global_loss(self, loss: Tensor) -> Tensor:
        loss = loss.clone()
        dist.all_reduce(loss, group=self._group)
        return loss / self.job.layout.dp

    def gradient_norm(self) -> Tensor:
        assert self.last_norm is not None
        return self.last_norm

    def own_passes(self, rig: Rig) -> dict[str, Callable[[], Any]]:
        return {}

    def _step(self, before_update: Callable[[], object] = lambda: None) -> Tensor:
        losses = []
        for tokens, labels in self.micro_batches:
            loss = loss_of(self.engine(tokens), labels)
            self.engine.backward(loss)
            if self.engine.is_gradient_accumulation_boundary():
                before_update()
            self.engine.step()
            losses.append(loss.detach() / len(self.micro_batches))
        self.num_steps += 1
        self.last_norm = torch.as_tensor(self.engine.get_global_grad_norm())
        return total_of(losses)

    def _gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self._weights():
            if place := _place(weight):
                yield name, _gradient(weight)[: place[0].stop - place[0].start].clone()

    def _weights(self) -> list[tuple[str, nn.Parameter]]:
        return [*self.modules[0].named_parameters()]


def _filled(name: str, stretch: slice, size: tuple[int, ...], seed: int, device: torch.device) -> Tensor:
    """A stretch of a flattened weight as the seed gives it, in float32."""
    of_row = prod(size[1:])
    rows = slice(stretch.start // of_row, -(-stretch.stop // of_row))
    around = torch.empty(rows.stop - rows.start, *size[1:], device=device)
    fill_weight(around, seed, name, (rows.start, *(0 for _ in size[1:])), size)
    return around.view(-1)[stretch.start - rows.start * of_row :][: stretch.stop - stretch.start]


def _engine(model: nn.Module, optimizer: Optimizer, settings: dict[str, Any], grid: Grid, device: torch.device) -> Any:
    os.environ["LOCAL_RANK"] = str(device.index or 0)  # which DeepSpeed takes for the number of its GPU
    os.environ["DS_ACCELERATOR"] = device.type
    try:
        import deepspeed
    except ImportError as error:
        raise ToolError(
            f"trainer deepspeed found the package of that name, and Python cannot import it: {error}. "
            "pip install 'clusterbench[deepspeed]' installs what it needs."
        ) from error

    # Compiled at its first use, which takes half a minute, and called by inference alone.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=settings, mpu=_Grid(grid), dist_init_required=False
    )
    return engine


class _Grid:
    """A grid as DeepSpeed asks for it, which is Megatron's way: without it, it makes a group that is on no axis."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_data_parallel_group(self) -> ProcessGroup:
        return self._grid.group("dp")

    def get_data_parallel_rank(self) -> int:
        return self._grid.rank("dp")

    def get_data_parallel_world_size(self) -> int:
        return self._grid.group("dp").size()

    def get_model_parallel_group(self) -> ProcessGroup:
        return self._grid.group("tp")

    def get_model_parallel_rank(self) -> int:
        return self._grid.rank("tp")

    def get_model_parallel_world_size(self) -> int:
        return self._grid.group("tp").size()


def _place(weight: Any) -> Place:
    """The stretch of a flattened weight whose update is this rank's; nothing where none is."""
    if hasattr(weight, "ds_id"):  # stage 3: every weight in as many stretches as there are ranks, the last filled up
        numel, each = weight.ds_numel, weight.ds_tensor.numel()
        start = min(numel, dist.get_rank(weight.ds_process_group) * each)
        return (slice(start, min(numel, start + each)),) if start < numel else ()
    if weight._hp_mapping is None:
        return ()
    address = weight._hp_mapping.lp_fragment_address
    return (slice(address.start, address.start + address.numel),)


def _master(weight: Any) -> Tensor:
    """This rank's part in float32, in the optimizer's memory."""
    from deepspeed.utils import safe_get_local_fp32_param

    if hasattr(weight, "ds_id"):
        (place,) = _place(weight)
        part: Tensor = safe_get_local_fp32_param(weight)
        return part.detach()[: place.stop - place.start]
    master: Tensor = weight._hp_mapping.get_hp_fragment().detach()
    return master


def _copy(weight: Any) -> WeightPart:
    """What is computed with, flattened: the whole weight, but in stage 3 this rank's stretch where it is let go."""
    if weight.numel():
        return WeightPart(weight.detach().view(-1), (slice(0, weight.numel()),))
    (place,) = _place(weight)
    return WeightPart(weight.ds_tensor.detach()[: place.stop - place.start], (place,))


def _gradient(weight: Any) -> Tensor:
    from deepspeed.utils import safe_get_local_grad

    if hasattr(weight, "ds_id"):
        part: Tensor = safe_get_local_grad(weight)
        return part.flatten()
    gradient: Tensor = weight._hp_mapping.get_lp_grad_fragment(weight._index_in_param_group).flatten()
    (place,) = _place(weight)
    # sums in float32 beside gradients in bfloat16 are of the whole weight
    return gradient[place] if gradient.numel() == weight.numel() else gradient
