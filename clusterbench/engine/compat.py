"""Every private or version-dependent name of PyTorch that clusterbench uses, in one place.

Written for 2.11 to 2.13. Each name stands in :data:`NAMES` with what it is for and the versions it was seen on ("run",
or only "read" in the sources). A test fails with the output of :func:`vanished` when one is gone, so that an upgrade of
torch is noticed here and not in a number. Names are looked up when called: one that vanished does not take the others
along.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from typing import Self

    class TorchDispatchMode:  # the real one has no annotations
        def __init__(self) -> None: ...
        def __enter__(self) -> Self: ...
        def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

else:
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

NAMES = {
    # There is no public way to see every operator below autograd. 2.11 read, 2.13 run.
    "torch.utils._python_dispatch.TorchDispatchMode": "traffic, memory",
    # Tells DTensor's shape propagation (fake tensors of the whole, unsharded shape) from work that is done. Same.
    "torch._guards.active_fake_mode": "memory",
    # -1 outside backward; inside it, the thread that runs the graph sees the number of the graph. Same.
    "torch._C._current_graph_task_id": "memory",
    # From the name that functional collectives carry to the group. Same.
    "torch.distributed.distributed_c10d._resolve_process_group": "traffic",
    # `c10d.*` operators carry the group as a ScriptObject. Same.
    "torch.distributed.ProcessGroup.unbox": "traffic",
    # Flattened axes ("dp_cp") hang on the root mesh and have no public list. Same.
    "torch.distributed.device_mesh.DeviceMesh._get_root_mesh": "traffic",
    # Typed as a method of the storage, but FSDP2 frees and allocates by it below every dispatch mode. Public, patched.
    "torch.UntypedStorage.resize_": "memory",
    # Patched while a trace runs, to see how long the main thread waits: Gloo's send and recv leave no event.
    "torch.distributed.Work.wait": "trace",
    # Events without a file and without the seconds `profile.events()` takes to build its tree. Same.
    "torch._C._autograd._KinetoEvent.start_ns": "trace",
    "torch._C._autograd._KinetoEvent.duration_ns": "trace",
    "torch._C._autograd._KinetoEvent.start_thread_id": "trace",
    "torch._C._autograd._KinetoEvent.device_type": "trace",
    "torch._C._autograd._KinetoEvent.is_user_annotation": "trace",
}
"""Dotted name -> the module of clusterbench that needs it."""

COMMUNICATION_NAMESPACES = frozenset(
    {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem"}
)
"""Namespaces of operators that communicate. ``c10d_functional`` is the old spelling; it decomposes into the second."""


def vanished() -> list[str]:
    """Names of :data:`NAMES` that this PyTorch does not have."""
    return [name for name in NAMES if not _exists(name)]


def _exists(dotted: str) -> bool:
    parts = dotted.split(".")
    thing: Any = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], start=2):
        if not hasattr(thing, part):
            try:
                importlib.import_module(".".join(parts[:index]))
            except ImportError:
                return False
        thing = getattr(thing, part, None)
    return thing is not None


def is_wrapper_type(kind: type) -> bool:
    """Whether tensors of this type hold other tensors (DTensor, AsyncCollectiveTensor, quantized weights).

    A dispatch mode answers ``NotImplemented`` for them: the wrapper then runs its own dispatch with the mode still on,
    and the mode sees the operators on the tensors within, the collectives among them.
    """
    return issubclass(kind, Tensor) and hasattr(kind, "__tensor_flatten__")


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors with storage behind this one: itself, or what a wrapper holds."""
    if not is_wrapper_type(type(tensor)):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    for name in names:
        inner = getattr(tensor, name)
        if isinstance(inner, Tensor):  # since 2.13 DTensor lists its mesh, too
            yield from plain_tensors(inner)


def active_fake_mode() -> object | None:
    """The FakeTensorMode that would answer an operator now, if any."""
    from torch._guards import active_fake_mode as active

    return active()


def in_backward() -> bool:
    """Whether the calling thread is inside autograd's backward. True during recomputation too."""
    return torch._C._current_graph_task_id() != -1


def group_of(argument: object) -> dist.ProcessGroup | None:
    """The process group an operator was given: by name, as an object, or boxed; None if it is none of these."""
    if isinstance(argument, dist.ProcessGroup):
        return argument
    if isinstance(argument, str):
        try:
            return dist.distributed_c10d._resolve_process_group(argument)  # type: ignore[arg-type,attr-defined,unused-ignore]
        except RuntimeError:
            return None  # some other string of the call, the reduction for one
    if isinstance(argument, torch.ScriptObject):
        try:
            return dist.ProcessGroup.unbox(argument)  # type: ignore[attr-defined,no-any-return,unused-ignore]
        except RuntimeError:
            return None  # a ReduceOp
    return None


def flattened_axes(mesh: DeviceMesh) -> dict[str, DeviceMesh]:
    """Meshes made by ``mesh[...]._flatten(name)``, by name. Kept by the root mesh; renamed attributes show up as {}."""
    return dict(getattr(mesh._get_root_mesh(), "_flatten_mapping", {}))


def on_gradient(parameter: Tensor, action: Callable[[Tensor], None]) -> Callable[[], None]:
    """Calls ``action(parameter)`` whenever a gradient was accumulated; returns what takes the hook off again."""
    handle = parameter.register_post_accumulate_grad_hook(action)  # type: ignore[no-untyped-call]
    return handle.remove  # type: ignore[no-any-return]


def profiler_events(profile: torch.profiler.profile) -> list[Any]:
    """Raw events of a finished profile, on one clock, without writing a file."""
    results: Any = profile.profiler.kineto_results  # type: ignore[union-attr]
    return list(results.events())


def is_range(event: Any) -> bool:
    """Whether a raw event is a named range, on the host or copied to the device's timeline, and no work of its own."""
    return bool(event.is_user_annotation())  # `activity_type` is not there before 2.12 or so
