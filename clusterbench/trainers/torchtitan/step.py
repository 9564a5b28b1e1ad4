"""The training step of torchtitan's trainer: its loss, clipping and optimizer on the model that it has shared out.

Its trainer itself reads data sets and writes logs and checkpoints, so the step is written out here, call by call as in
``Trainer.train_step`` of torchtitan 0.3, without graphs of CUDA.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from clusterbench.engine.compat import place_in_whole
from clusterbench.engine.grid import Grid
from clusterbench.engine.rig import Rig
from clusterbench.errors import ToolError
from clusterbench.job import TrainingJob
from clusterbench.model.assembly import ADAMW
from clusterbench.model.noise import fill_weight
from clusterbench.parallel import Parallelism, active_in, of_kind
from clusterbench.parallel.compile import Compile
from clusterbench.parallel.recompute import Recompute
from clusterbench.trainers.torchtitan.model import llama_config, our_name
from clusterbench.training.built_step import ObservedStep, WeightPart
from clusterbench.training.data import micro_batches


class TorchtitanStep:
    """The step of one rank, a :class:`~clusterbench.training.built_step.BuiltStep`."""

    leaves_gradients: ClassVar[bool] = True

    def __init__(self, job: TrainingJob, every: Sequence[Parallelism], grid: Grid, device: torch.device) -> None:
        with _named_with_its_version():
            self._build(job, every, grid, device)

    def _build(self, job: TrainingJob, every: Sequence[Parallelism], grid: Grid, device: torch.device) -> None:
        from torchtitan.components.loss import CrossEntropyLoss
        from torchtitan.components.optimizer import default_adamw
        from torchtitan.distributed import utils

        self.job, self.num_steps, self._utils = job, 0, utils
        self.grid: Grid | None = grid
        self._mesh = grid.mesh["dp"]
        self.last_loss: Tensor | None = None
        self.last_norm: Tensor | None = None
        utils.set_spmd_backend(_BACKEND)
        model = _shared_model(job, every, grid, device)
        for name, weight in model.named_parameters():
            part = weight.detach().to_local()  # type: ignore[attr-defined]
            place = place_in_whole(weight)
            fill_weight(part, job.seed, our_name(name), [cut.start for cut in place], weight.shape)
        self.modules = [model]
        self._loss = CrossEntropyLoss.Config(global_vocab_size=job.shape.vocab_size).build(
            compile_config=_compiles(job, every)
        )
        settings = {name: value for name, value in ADAMW.items() if name != "fused"}
        self._container = default_adamw(**settings).build(model_parts=self.modules)
        self.optimizers = self._container.optimizers
        positions = torch.arange(job.seq_len, device=device)
        self._positions = positions.expand(job.micro_batch_size, -1).contiguous()
        self.micro_batches = micro_batches(job, grid.rank("dp"), positions)

    def __call__(self) -> Tensor:
        self.last_loss = self._step()
        return self.last_loss

    def observed(self) -> ObservedStep:
        gradients = dict[str, Tensor]()
        loss = self.global_loss(self._step(lambda: gradients.update(self._gradients())))
        return ObservedStep(loss, self.last_norm, gradients)

    def parts(self) -> dict[str, WeightPart]:
        held = {our_name(name): (_local(weight), place_in_whole(weight)) for name, weight in self._weights()}
        return {name: WeightPart(part, place) for name, (part, place) in held.items() if part.numel()}

    def copies(self) -> dict[str, WeightPart]:
        return {}

    def global_loss(self, loss: Tensor) -> Tensor:
        assert self.grid is not None
        loss = loss.clone()
        dist.all_reduce(loss, group=self.grid.group("dp"))
        return loss / self.job.layout.dp

    def gradient_norm(self) -> Tensor:
        norm = torch.nn.utils.get_total_norm([weight.grad for _, weight in self._weights() if weight.grad is not None])
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def own_passes(self, rig: Rig) -> dict[str, Callable[[], Any]]:
        return {}

    def _step(self, before_update: Callable[[], object] = lambda: None) -> Tensor:
        self._container.zero_grad()
        of_rank = sum(labels.numel() for _, labels in self.micro_batches)
        num_tokens = torch.tensor(of_rank, device=self._positions.device)
        if self.job.layout.dp > 1:
            num_tokens = self._utils.dist_sum_tensor(num_tokens, self._mesh)
        losses = []
        for tokens, labels in self.micro_batches:
            predicted = self.modules[0](tokens, positions=self._positions)
            loss, _ = self._loss(predicted, labels, num_tokens)
            del predicted
            loss.backward()
            losses.append(loss.detach())
        before_update()
        limit = self.job.max_grad_norm
        self.last_norm = self._utils.clip_grad_norm_(
            [weight for _, weight in self._weights()], float("inf") if limit is None else limit, foreach=True
        )
        self._container.step()
        self.num_steps += 1
        return torch.stack(losses).sum() * self.job.layout.dp

    def _gradients(self) -> dict[str, Tensor]:
        graded = {our_name(name): weight.grad for name, weight in self._weights() if weight.grad is not None}
        return {name: part.clone() for name, grad in graded.items() if (part := _local(grad)).numel()}

    def _weights(self) -> list[tuple[str, nn.Parameter]]:
        return [*self.modules[0].named_parameters()]


_BACKEND = "partial_dtensor"
_WRITTEN_FOR = "0.3"
"""Version of torchtitan of which its trainer's step is written out here."""


@contextmanager
def _named_with_its_version() -> Iterator[None]:
    """A torchtitan that cannot be imported, or in which names moved, is named with its version and what it lacks."""
    try:
        yield
    except ImportError as error:
        raise ToolError(
            f"trainer torchtitan found torchtitan {_installed()}, and Python cannot import it: {error}. It is written "
            f"for torchtitan {_WRITTEN_FOR}: pip install 'clusterbench[torchtitan]' installs it and what it needs, but "
            "for Triton, which PyTorch for CPUs comes without: pip install triton."
        ) from error
    except (AttributeError, TypeError) as error:
        if _installed().startswith(f"{_WRITTEN_FOR}."):
            raise
        raise ToolError(
            f"trainer torchtitan is written for torchtitan {_WRITTEN_FOR}, and finds something else in {_installed()}, "
            f"which is installed here: {error}. pip install 'torchtitan=={_WRITTEN_FOR}.*' installs the one it knows."
        ) from error


def _installed() -> str:
    try:
        return version("torchtitan")
    except PackageNotFoundError:
        return "of no known version"


def _local(sharded: Any) -> Tensor:
    part: Tensor = sharded.detach().to_local()
    return part


def _shared_model(job: TrainingJob, every: Sequence[Parallelism], grid: Grid, device: torch.device) -> nn.Module:
    """As the trainer makes it: on the meta device, shared out, then with memory."""
    from torchtitan.config import ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.activation_checkpoint import FullAC
    from torchtitan.models.llama3.parallelize import parallelize_llama

    layout = job.layout

    class Dims(ParallelDims):  # type: ignore[misc]
        """The axes as torchtitan asks for them, from the case's own mesh, so that each message is one of an axis."""

        def build_mesh(self) -> Any:
            self._single_axis_meshes = {"fsdp": grid.mesh["dp"], "tp": grid.mesh["tp"]}
            return grid.mesh

    told = ParallelismConfig(
        data_parallel_shard_degree=layout.dp,
        tensor_parallel_degree=layout.tp,
        enable_sequence_parallel=layout.sp,
        spmd_backend=_BACKEND,
    )
    recompute = of_kind(Recompute, active_in(layout, every))
    with torch.device("meta"):
        model = llama_config(job.shape, job.seq_len, sequence_parallel=layout.sp).build()
    model = parallelize_llama(
        model,
        parallel_dims=Dims.from_config(told, layout.world_size),
        training=TrainingConfig(seq_len=job.seq_len, mixed_precision_param=job.dtype),
        parallelism=told,
        compile_config=_compiles(job, every),
        ac_config=FullAC.Config() if recompute is not None else None,
        dump_folder=tempfile.gettempdir(),  # of which nothing is written
    )
    if device.type == "cpu":  # Gloo has no sum that is scaled on the way
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights(buffer_device=None)  # of which the tables of rotary positions are left
    model.train()
    return model  # type: ignore[no-any-return]


def _compiles(job: TrainingJob, every: Sequence[Parallelism]) -> Any:
    from torchtitan.config import CompileConfig

    return CompileConfig(enable=of_kind(Compile, active_in(job.layout, every)) is not None)
