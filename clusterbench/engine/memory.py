"""Peak memory of one step by category, from the storages that are alive.

What a storage is for often shows only later: a tensor made in backward turns into a gradient, the output of a
collective into an activation. So the tracker writes down every allocation and release in order, labels storages as it
learns about them, and reads the peak from the log afterwards: a storage carries one label for its whole life, the
strongest it earned.

Categories, strongest first:

- ``parameters``: parameters and buffers of the model, and what optimizers step in their place; under FSDP the
  gathered ones too, while they exist.
- ``gradients``: what was a ``.grad`` of a parameter, and buckets that gradients are views of.
- ``optimizer_state``: what the optimizer keeps between steps.
- ``activations``: what autograd saves for backward, everything else made in a forward (recomputation included), and
  tensors that were there already and are none of the above, such as the batch.
- ``communication``: arguments and results of collectives that are none of the above: buckets, flat buffers, copies.
- ``temporary``: made in backward or in the optimizer, and none of the above.

Not seen: workspaces inside kernels, the rounding and fragmentation of the caching allocator, NCCL's buffers, the CUDA
context. :func:`cuda_memory_stats` and telemetry have their own, larger figures for those.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from clusterbench.engine.compat import (
    COMMUNICATION_NAMESPACES,
    PACKS_WEIGHTS,
    TorchDispatchMode,
    accumulated_gradients,
    active_fake_mode,
    in_backward,
    is_sharded,
    is_wrapper_type,
    on_gradient,
    plain_tensors,
    tensors_in,
)
from clusterbench.job.flops import BACKWARD, FORWARD
from clusterbench.job.passes import CATEGORIES

OPTIMIZER, START, LOSS, GRADIENTS = "the optimizer", "the start", "the loss", "gradients"
"""Where a step is when it is in no module."""

# A label is replaced only by a stronger one. `made in a forward` is weaker than `communication`, which is weaker than
# `saved for backward`: the gathered input of a linear layer is an activation, the result of a reduction that is only
# added to something is not.
_LABELS = ("temporary", "made", "communication", "saved", "optimizer_state", "gradients", "parameters")
_STRENGTH = {label: strength for strength, label in enumerate(_LABELS)}
_CATEGORY = {"made": "activations", "saved": "activations"}


@dataclass(frozen=True)
class MemoryPeak:
    """Bytes in storages of one device over one step."""

    total_bytes: int
    """Most bytes alive at once."""
    by_category: Mapping[str, int]
    """The same moment, by category; sums to ``total_bytes``."""
    peak_by_category: Mapping[str, int]
    """Most bytes of each category, each at a moment of its own; sums to ``total_bytes`` or more."""
    at_rest: Mapping[str, int]
    """Bytes alive when the tracker was left: what stays between steps."""


class _Allocation:
    """One storage, from its first sight to its end."""

    __slots__ = ("before_bytes", "label", "made_in", "reference", "size_bytes")

    def __init__(self, label: str, made_in: str) -> None:
        self.label = label
        self.made_in = made_in
        self.size_bytes = 0
        self.before_bytes = 0  # of what was there when the tracker was entered, however late it came into sight
        self.reference: weakref.ref[torch.UntypedStorage] | None = None

    def call(self, label: str) -> None:
        if _STRENGTH[label] > _STRENGTH[self.label]:
            self.label = label

    @property
    def category(self) -> str:
        return _CATEGORY.get(self.label, self.label)


class MemoryTracker(TorchDispatchMode):
    """Follows the storages of one device while the context is open.

    Put one whole step in it, ``zero_grad`` included, and no timed iteration: a step of small
    operators takes up to half as long again.
    Runs on CPU and CUDA, with DDP, FSDP2, DTensor, checkpointing and pipeline schedules, and on fake tensors.

    Parameters
    ----------
    model
        The module, or one per pipeline stage this rank owns, parallelized already.
    optimizer
        One, several, or None. State that exists already is found; state made by this step too.
    device
        Storages elsewhere are ignored. By default where the first parameter is.

    Notes
    -----
    Hooks are added to modules and parameters, and ``torch.UntypedStorage.resize_`` is replaced (FSDP2 frees by it,
    below every dispatch mode); all are undone on leaving. Without gradient synchronisation FSDP2 keeps unsharded
    gradients; they count as gradients.
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Module],
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self._models = [model] if isinstance(model, nn.Module) else list(model)
        self._optimizers = list(every_optimizer(optimizer))
        first = next((p for m in self._models for p in m.parameters()), torch.empty(0))
        self._device = _with_index(torch.device(device) if device is not None else first.device)
        self._log: list[tuple[_Allocation, int, str]] = []
        self._before: list[_Allocation] = []
        self._known: dict[int, _Allocation] = {}
        self._hooked: dict[int, Tensor] = {}
        self._sharded: list[nn.Module] = []
        self._names = {module: name for model in self._models for name, module in model.named_modules()}
        self._forwards: list[str] = []
        self._backward_of = ""
        self._in_optimizer = False
        self._in_no_module = START
        self._waiting = False
        self._fake_mode: object | None = None
        self._cleanup = ExitStack()

    # Entering and leaving

    def __enter__(self) -> MemoryTracker:
        self._fake_mode = active_fake_mode()
        self._sharded = [module for model in self._models for module in model.modules() if is_sharded(module)]
        for model in self._models:
            self._call([*model.parameters(), *model.buffers()], "parameters")
            # DeepSpeed empties a weight while it is shared out, and keeps this rank's part beside it
            self._call([getattr(parameter, "ds_tensor", None) for parameter in model.parameters()], "parameters")
            self._call([p.grad for p in model.parameters()], "gradients")
        self._find_optimizer_state()
        for model in self._models:
            for parameter in model.parameters():
                self._hook_parameter(parameter)
            for module in model.modules():
                self._undo(module.register_forward_pre_hook(self._before_forward).remove)
                self._undo(module.register_forward_hook(self._after_forward, always_call=True).remove)
        for optimizer in self._optimizers:
            self._undo(optimizer.register_step_pre_hook(self._before_optimizer).remove)
            self._undo(optimizer.register_step_post_hook(self._after_optimizer).remove)
        self._follow_resize()
        self._follow_wait()
        self._cleanup.enter_context(torch.autograd.graph.saved_tensors_hooks(self._save, self._use_saved))
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._cleanup.close()
        for model in self._models:
            self._call([p.grad for p in model.parameters()], "gradients")
        self._find_optimizer_state()
        # From here on nothing is followed: releases after the step are not part of it. A thread of Gloo may let go of
        # a storage at this very moment.
        for allocation in list(self._known.values()):
            allocation.reference = None
        self._known.clear()
        self._hooked.clear()

    def _undo(self, action: Callable[[], object]) -> None:
        self._cleanup.callback(action)

    # What was seen

    def peak(self) -> MemoryPeak:
        """Peaks of what has been followed so far."""
        live = dict.fromkeys(CATEGORIES, 0)
        for allocation in self._before:
            live[allocation.category] += allocation.before_bytes
        total = sum(live.values())
        peak_total, at_peak, own_peak = total, dict(live), dict(live)
        for allocation, change, _ in self._log:
            category = allocation.category
            live[category] += change
            total += change
            own_peak[category] = max(own_peak[category], live[category])
            if total > peak_total:
                peak_total, at_peak = total, dict(live)
        return MemoryPeak(peak_total, at_peak, own_peak, live)

    def at_peak(self) -> tuple[str, Mapping[tuple[str, str], int]]:
        """When most bytes were alive, and what they were: bytes by category and by where they were made.

        Places are modules in forward or in backward, the loss for what is in no module, or the optimizer; empty for
        what was there before the step.
        """
        held = Counter[tuple[str, str]]()
        for allocation in self._before:
            held[allocation.category, ""] += allocation.before_bytes
        total = most = held.total()
        when, kept = "", dict(held)
        for allocation, change, moment in self._log:
            held[allocation.category, allocation.made_in] += change
            total += change
            if total > most:
                most, when, kept = total, moment, dict(held)
        return when, {what: size_bytes for what, size_bytes in kept.items() if size_bytes}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_wrapper_type(kind) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        for tensor in tensors_in([args, kwargs]):
            # While a collective is waited for, what comes into sight is its own: Gloo's reduce_scatter sums a copy of
            # the input that a thread of its own has made.
            self._allocation(tensor, "communication" if self._waiting else "made", existed=not self._waiting)
        result = func(*args, **kwargs)
        label = self._label()
        for tensor in tensors_in(result):
            self._allocation(tensor, label)
        namespace = getattr(func, "namespace", None)
        if namespace in COMMUNICATION_NAMESPACES:
            self._communicated(func, args, result)
        elif namespace == "fsdp" and func._schema.name == PACKS_WEIGHTS:
            # shares of weights, or a copy of them in the dtype of the arithmetic
            self._call(tensors_in(args), "communication")
        return result

    def _label(self) -> str:
        """The category of a storage made now, as far as it is known before it is used."""
        if self._waiting:
            return "communication"
        if self._in_optimizer:
            return "temporary"
        # Recomputation is a forward within backward: it enters modules, or at least enables gradients. The forward of
        # an autograd.Function disables them, so gradients alone do not tell. Behind the backwards of a pipeline FSDP
        # packs gradients into buffers, in no module and without gradients.
        return "made" if self._forwards or torch.is_grad_enabled() else "temporary"

    def where(self) -> tuple[str, str]:
        """The module whose operators run now, by its path, and ``forward`` or ``backward``.

        What is computed again runs in backward. In place of a module stands ``the optimizer``, or of what is in no
        module ``the start`` before the first forward (weights are rounded), ``the loss`` behind one, and ``gradients``
        behind a backward: sums over ranks, the norm, clipping.
        """
        if self._in_optimizer:
            self._in_no_module = START
            return OPTIMIZER, FORWARD
        if in_backward():
            self._in_no_module = GRADIENTS
            return self._forwards[-1] if self._forwards else self._backward_of or LOSS, BACKWARD
        if self._forwards:
            self._in_no_module = LOSS
            return self._forwards[-1] or "the model", FORWARD
        return self._in_no_module, FORWARD

    def _moment(self) -> str:
        if self._in_optimizer:
            return "the optimizer"
        if in_backward():
            again = f", {self._forwards[-1]} computed again" if self._forwards else ""
            return f"backward of {self._backward_of or 'the loss'}{again}"
        return f"forward of {self._forwards[-1] or 'the model'}" if self._forwards else "the loss"

    def _communicated(self, func: Any, args: Any, result: Any) -> None:
        name: str = func._schema.name
        if name == "c10d::send":  # the activation or gradient that is sent has another purpose
            return
        if not name.startswith("c10d::"):
            self._call(tensors_in(result), "communication")
            return
        for argument, value in zip(func._schema.arguments, args, strict=False):
            for tensor in tensors_in(value):
                allocation = self._allocation(tensor, "communication", existed=True)
                # What goes in may be an activation; made in backward, it is a buffer packed for this call.
                if allocation and ("input" not in argument.name or allocation.label == "temporary"):
                    allocation.call("communication")

    def _call(self, tensors: Iterable[Tensor | None], label: str) -> None:
        for tensor in tensors:
            for plain in plain_tensors(tensor) if tensor is not None else ():
                allocation = self._allocation(plain, label, existed=True)
                if allocation:
                    allocation.call(label)

    # Storages

    def _allocation(self, tensor: Tensor, label: str, existed: bool = False) -> _Allocation | None:
        """The record of a tensor's storage, made if this is its first sight; None if it lives elsewhere."""
        # DTensor infers shapes on fake tensors of the whole array: those are not memory, unless this is a dry run.
        if getattr(tensor, "fake_mode", None) is not self._fake_mode or tensor.layout is not torch.strided:
            return None
        return self._of_storage(tensor.untyped_storage(), label, existed) if tensor.device == self._device else None

    def _of_storage(self, storage: torch.UntypedStorage, label: str, existed: bool) -> _Allocation:
        key = id(storage)  # the Python object of a storage lives as long as the storage
        allocation = self._known.get(key)
        if allocation is None:
            allocation = self._known[key] = _Allocation(label, "" if existed else self._moment())
            allocation.reference = weakref.ref(storage, lambda _: self._released(key))
            if existed:
                allocation.before_bytes = allocation.size_bytes = storage.nbytes()
                self._before.append(allocation)
        self._resized(allocation, storage.nbytes())
        return allocation

    def _resized(self, allocation: _Allocation, size_bytes: int) -> None:
        if size_bytes != allocation.size_bytes:
            self._log.append((allocation, size_bytes - allocation.size_bytes, self._moment()))
            allocation.size_bytes = size_bytes

    def _released(self, key: int) -> None:
        if allocation := self._known.pop(key, None):  # none of those that were known when the tracker was left
            self._resized(allocation, 0)

    def _follow_resize(self) -> None:
        kind: Any = torch.UntypedStorage
        original, inherited = kind.resize_, "resize_" not in vars(kind)

        def resize_(storage: torch.UntypedStorage, size: Any) -> Any:
            ours = storage.device == self._device if self._fake_mode is None else storage.device.type == "meta"
            allocation = self._of_storage(storage, self._label(), existed=True) if ours else None
            result = original(storage, size)
            if allocation:
                self._resized(allocation, storage.nbytes())
            return result

        kind.resize_ = resize_
        self._undo(lambda: delattr(kind, "resize_") if inherited else setattr(kind, "resize_", original))

    def _follow_wait(self) -> None:
        kind: Any = dist.Work
        original = kind.wait

        def wait(work: dist.Work, *arguments: Any, **options: Any) -> Any:
            self._waiting = True
            try:
                return original(work, *arguments, **options)
            finally:
                self._waiting = False

        kind.wait = wait
        self._undo(lambda: setattr(kind, "wait", original))

    # Hooks

    def _save(self, tensor: Tensor) -> tuple[Tensor, str]:
        self._call([tensor], "saved")
        return tensor, self._forwards[-1] if self._forwards else ""

    def _use_saved(self, saved: tuple[Tensor, str]) -> Tensor:
        tensor, self._backward_of = saved
        return tensor

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        self._forwards.append(self._names.get(module, ""))
        # Under FSDP a module's parameters are the gathered ones from here on. Those that it borrows may be of one that
        # is not called itself: the table of a tied head in the last stage of a pipeline.
        for owner in (module, *getattr(module, "borrowed", ())):
            for parameter in owner.parameters(recurse=False):
                self._call([parameter], "parameters")
                self._hook_parameter(parameter)

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._forwards.pop()

    def _hook_parameter(self, parameter: Tensor) -> None:
        if id(parameter) in self._hooked or not (parameter.is_leaf and parameter.requires_grad):
            return
        self._hooked[id(parameter)] = parameter
        self._undo(on_gradient(parameter, self._after_gradient))

    def _after_gradient(self, parameter: Tensor) -> None:
        self._call([parameter.grad], "gradients")
        for module in self._sharded:
            self._call(accumulated_gradients(module), "gradients")

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = True
        for group in optimizer.param_groups:
            self._call([parameter.grad for parameter in group["params"]], "gradients")

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = False
        self._find_optimizer_state()

    def _find_optimizer_state(self) -> None:
        for optimizer in self._optimizers:
            self._call(optimizer.state, "parameters")  # masters, where they are not the model's own
            for state in optimizer.state.values():
                self._call(tensors_in(state), "optimizer_state")


@dataclass(frozen=True)
class CudaMemory:
    """What PyTorch's caching allocator says of one device since its peaks were last reset."""

    peak_allocated_bytes: int
    """In tensors, rounded up to 512 bytes each. The figure to hold against :class:`MemoryPeak`."""
    peak_reserved_bytes: int
    """Taken from the driver: with the cache and its fragmentation."""
    num_alloc_retries: int | None
    """Times the cache had to be emptied to make room; each stalls the device. Since the process began. None where this
    allocator does not count them."""
    num_ooms: int
    """Allocations that failed for good. Since the process began."""


def reset_cuda_memory(device: torch.device | int | None = None) -> None:
    """Start new peaks at what is allocated now; what earlier steps left in the cache is no longer reserved."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


def cuda_memory_stats(device: torch.device | int | None = None) -> CudaMemory:
    """The allocator's figures; what the driver says (other processes, NCCL, the context) is telemetry's."""
    stats = torch.cuda.memory_stats(device)
    return CudaMemory(
        stats.get("allocated_bytes.all.peak", 0),
        stats.get("reserved_bytes.all.peak", 0),
        stats.get("num_alloc_retries"),
        stats.get("num_ooms", 0),
    )


def every_optimizer(optimizers: Optimizer | Iterable[Optimizer] | None) -> Iterator[Optimizer]:
    """Those given, and those inside them that hold the state."""
    if optimizers is None:
        return
    for optimizer in [optimizers] if isinstance(optimizers, Optimizer) else optimizers:
        yield optimizer
        # ZeroRedundancyOptimizer keeps the state of its share in an optimizer of its own.
        if isinstance(inner := getattr(optimizer, "optim", None), Optimizer):
            yield inner


def alive_bytes(device: torch.device) -> int:
    """Bytes in storages of a device that tensors of Python's hold, once garbage is gone.

    What only autograd or a library holds is not seen, as there is no such tensor.
    """
    gc.collect()
    device, sizes = _with_index(device), dict[int, int]()
    for held in gc.get_objects():
        kind = type(held)
        if issubclass(kind, Tensor) and not is_wrapper_type(kind) and held.device == device:
            storage = held.untyped_storage()
            if storage.device == device:  # a compiler's fake tensor has one of the meta device, whose size is a symbol
                sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


def _with_index(device: torch.device) -> torch.device:
    return torch.empty(0, device=device).device  # "cuda" -> "cuda:0", as tensors have it
