"""How a model is put together on one rank: the order in which parallelisms are applied, and the weights filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement

from clusterbench.engine.compat import active_fake_mode, any_gradient, is_to_be_compiled, without_fake_tensors
from clusterbench.engine.grid import Grid
from clusterbench.job import TrainingJob, has_copy, is_spread_expert, kept_bytes
from clusterbench.model.assembly import COMPUTE_DTYPES, Assembly, Weight, master_dtype
from clusterbench.model.decoder import Decoder
from clusterbench.model.modules import TiedHead
from clusterbench.model.noise import fill_weight
from clusterbench.model.rounded import keep_copy, kept_in, look_at_copy, look_before_compiled, master_and_copy
from clusterbench.parallel import LOCALIZE, MATERIALIZE, PHASES, Parallelism, split_over, summed_over


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
    with without_fake_tensors():  # a dry run needs them for what takes memory, and until then nothing does
        with torch.device("meta"):
            dtype = master_dtype(job)
            decoders = [Decoder(job.shape, COMPUTE_DTYPES[job.dtype], positions, chunk).to(dtype) for chunk in job.held]
        assembly = Assembly(decoders, grid, job, device)  # type: ignore[arg-type]
        _apply(parallelisms, assembly, PHASES[:_TOUCHES_MEMORY])
    _apply(parallelisms, assembly, PHASES[_TOUCHES_MEMORY:])
    return assembly


_TOUCHES_MEMORY = PHASES.index(MATERIALIZE)


def _apply(parallelisms: Sequence[Parallelism], assembly: Assembly, phases: Sequence[str]) -> None:
    for phase in phases:
        if phase == LOCALIZE:
            assembly.weights = [*localize(assembly, parallelisms)]
        if phase == MATERIALIZE:
            materialize(assembly)
        for parallelism in parallelisms:
            if parallelism.phase == phase:
                parallelism.apply(assembly)


def localize(assembly: Assembly, parallelisms: Sequence[Parallelism]) -> Iterator[Weight]:
    """Makes every weight a plain parameter, this rank's part, which a module sees through a DTensor where it needs one.

    The optimizer, the norm and DDP then work on plain tensors: a mixture of both kinds stops foreach kernels and DDP's
    buckets (``aten.cat.default got mixed torch.Tensor and DTensor``), and DTensor's dispatch would cost each of them
    more than the arithmetic. Experts need no DTensor: their module knows that it has a part.
    """
    job, classes = assembly.job, _Classes(_compiled(assembly))
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
                _lay_down(weight, whole, decoder, job, classes)
                yield weight


def _lay_down(weight: Weight, whole: nn.Parameter, decoder: Decoder, job: TrainingJob, classes: _Classes) -> None:
    """Puts this rank's part of a weight into its module, and what the module is to see of it where that is not it."""
    module, leaf, is_seen_whole = weight.module, weight.leaf, False
    part = whole
    if isinstance(whole, DTensor):
        size = [part.stop - part.start for part in weight.place]
        part = nn.Parameter(torch.empty(size, dtype=whole.dtype, device="meta"))
        is_seen_whole = "ep" not in weight.split_over
    if has_copy(weight.name, job):
        is_narrow = kept_bytes(weight.name, job) != job.master_bytes
        weight.leaf, weight.graded_leaf = keep_copy(module, leaf, part, COMPUTE_DTYPES[job.dtype], is_narrow)
        classes.give(module, leaf, _view(look_at_copy(leaf), whole if is_seen_whole else None))
        if module is decoder.embedding and isinstance(decoder.head, TiedHead) and decoder.chunk.first:
            in_head = _view(look_at_copy(leaf, is_last=False), whole if is_seen_whole else None)
            classes.give(decoder.head, leaf, replace(in_head, owner=module))
    elif is_seen_whole:
        delattr(module, leaf)
        weight.leaf = f"{leaf}_part"
        module.register_parameter(weight.leaf, part)
        view = _view(_part_called(weight.leaf), whole)
        if module in classes.compiled:
            classes.give(module, leaf, view)
        else:
            setattr(module, _VIEWS, [*getattr(module, _VIEWS, []), (leaf, view)])
    elif part is not whole:
        setattr(module, leaf, part)


_VIEWS = "_clusterbench_views"


@dataclass(frozen=True)
class _View:
    """What a module sees of a weight: what ``look`` finds in it, or in its ``owner``; as a DTensor where it has one."""

    look: Callable[[nn.Module], Tensor]
    mesh: DeviceMesh | None = None
    placements: tuple[Placement, ...] = ()
    owner: nn.Module | None = None

    def __call__(self, module: nn.Module) -> Tensor:
        part = self.look(self.owner or module)
        return part if self.mesh is None else DTensor.from_local(part, self.mesh, self.placements, run_check=False)


def _part_called(leaf: str) -> Callable[[nn.Module], Tensor]:
    def look(module: nn.Module) -> Tensor:  # a function: into operator.attrgetter a compiler does not see
        return cast(Tensor, getattr(module, leaf))

    return look


def _view(look: Callable[[nn.Module], Tensor], whole: Tensor | None) -> _View:
    return _View(look, whole.device_mesh, whole.placements) if isinstance(whole, DTensor) else _View(look)


def _compiled(assembly: Assembly) -> set[nn.Module]:
    """All modules that are compiled, or within one that is."""
    whole = (module for decoder in assembly.decoders for module in decoder.modules() if is_to_be_compiled(module))
    return {part for module in whole for part in module.modules()}


@dataclass
class _Classes:
    """Of modules that make a view where they use it: a compiler takes it apart with all else, and the function it
    compiles has plain tensors only. From a view that was made outside it would get no gradient.

    One class for all modules that are alike: a compiler has a function for each class.
    """

    compiled: set[nn.Module]
    _made: dict[Any, type[nn.Module]] = field(default_factory=dict)

    def give(self, module: nn.Module, leaf: str, view: _View) -> None:
        """Lets a module make the view whenever it reads the weight called ``leaf``."""
        kind = type(module)
        key = kind, leaf, view.placements, view.owner
        self._made[key] = self._made.get(key) or type(kind.__name__, (kind,), {leaf: property(view)})
        module.__class__ = self._made[key]


def materialize(assembly: Assembly) -> None:
    """Allocates this rank's part of every weight, fills it, and puts the views where modules look for them.

    Fake tensors have nothing that could be filled.

    A view of a parameter is made once: its backward keeps nothing, so it serves every step.
    """
    for decoder in assembly.decoders:
        decoder.to_empty(device=assembly.home or assembly.device)
    for weight in assembly.weights if active_fake_mode() is None else ():
        offset = tuple(part.start for part in weight.place)
        fill_weight(weight.value, assembly.job.seed, weight.name, offset, weight.whole)
    assembly.round_weights()
    for decoder in assembly.decoders:
        for module in decoder.modules():
            for leaf, view in getattr(module, _VIEWS, []):
                if not assembly.fresh_views:
                    setattr(module, leaf, view(module))
                    continue
                readers = [module]
                if module is decoder.embedding and isinstance(decoder.head, TiedHead):
                    readers.append(decoder.head)
                for reader in readers:
                    reader.register_forward_pre_hook(partial(_look_first, module, leaf, view))
            for leaf in kept_in(module):
                any_gradient(master_and_copy(module, leaf)[0])
            if is_to_be_compiled(module):
                look_before_compiled(module)


def _look_first(owner: nn.Module, leaf: str, view: _View, reader: nn.Module, inputs: Any) -> None:
    setattr(owner, leaf, view(owner))


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
