"""How a model is put together on one rank: the order in which parallelisms are applied, and the weights filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from clusterbench.engine.compat import active_fake_mode, is_to_be_compiled, without_fake_tensors
from clusterbench.engine.grid import Grid
from clusterbench.job import TrainingJob
from clusterbench.model.assembly import COMPUTE_DTYPES, Assembly, Weight, master_dtype
from clusterbench.model.decoder import Decoder
from clusterbench.model.modules import TiedHead
from clusterbench.model.noise import fill_weight
from clusterbench.parallel import LOCALIZE, MATERIALIZE, PHASES, Parallelism, split_over, summed_over
from clusterbench.parallel.data import is_spread_expert


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
    job, compiled, kinds = assembly.job, _compiled(assembly), dict[Any, type[nn.Module]]()
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
                        view = _view_of(weight.leaf, whole)
                        if module in compiled:
                            key = type(module), leaf, weight.leaf, whole.placements
                            kinds[key] = kinds.get(key) or _with_property(type(module), leaf, view)
                            module.__class__ = kinds[key]
                        else:
                            setattr(module, _VIEWS, [*getattr(module, _VIEWS, []), (leaf, view)])
                yield weight


_VIEWS = "_clusterbench_views"


View = Callable[[nn.Module], DTensor]


def _view_of(leaf: str, whole: DTensor) -> View:
    """What makes of a module's part of a weight a DTensor."""
    mesh, placements = whole.device_mesh, whole.placements

    def view(module: nn.Module) -> DTensor:
        return DTensor.from_local(getattr(module, leaf), mesh, placements, run_check=False)

    return view


def _compiled(assembly: Assembly) -> set[nn.Module]:
    """All modules that are compiled, or within one that is."""
    whole = (module for decoder in assembly.decoders for module in decoder.modules() if is_to_be_compiled(module))
    return {part for module in whole for part in module.modules()}


def _with_property(kind: type[nn.Module], leaf: str, view: View) -> type[nn.Module]:
    """A class of modules that make their view where they use it: a compiler takes it apart with all else, and the
    function it compiles has plain tensors only. From a view that was made outside it would get no gradient.

    One class for all modules that are alike: a compiler has a function for each class.
    """
    return type(kind.__name__, (kind,), {leaf: property(view)})


def materialize(assembly: Assembly) -> None:
    """Allocates this rank's part of every weight, fills it, and puts the views where modules look for them.

    Fake tensors have nothing that could be filled.

    A view is made once: its backward keeps nothing, so it serves every step.
    """
    for decoder in assembly.decoders:
        decoder.to_empty(device=assembly.home or assembly.device)
    for weight in assembly.weights if active_fake_mode() is None else ():
        offset = tuple(part.start for part in weight.place)
        fill_weight(weight.value, assembly.job.seed, weight.name, offset, weight.whole)
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


def _look_first(owner: nn.Module, leaf: str, view: View, reader: nn.Module, inputs: Any) -> None:
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
