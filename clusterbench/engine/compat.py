"""Every private or version-dependent name of PyTorch that clusterbench uses, in one place.

Each name stands in :data:`NAMES` with what it is for. A test fails with the output of :func:`vanished` when one is
gone, so that an upgrade of torch is noticed here and not in a number. Names are looked up when called: one that
vanished does not take the others along.

Looked up on 2026-11-23, and 2.14.1 and 2.15.0 run on 2026-12-01, each version installed from PyPI on a machine without
a GPU. What formulas have to know of a release is in :mod:`clusterbench.torch_release`.

====== ================================================== ===========================================================
torch  names that are not there                           what was run there
====== ================================================== ===========================================================
2.11.0 ``_KinetoEvent.extra_meta``: axes of a GPU's       rehearsal of tests.gpu; proof, FLOPs, traffic and memory of
       kernels then follow from their streams             26 layouts. ``zbv`` over Gloo fails in torch's own warm-up,
                                                          which sends to itself
2.12.1 none                                               a compiled layer: in float64 it fails, as in 2.11
2.13.0 none                                               all tests
2.14.1 none                                               memory of 11 layouts with FSDP2 or pipelines, as with 2.13
2.15.0 none                                               README's first command; tests of engine, FLOPs, traffic,
                                                          memory, compiled layers and pipelines. FSDP2 and pipelines
                                                          hold other memory there, as the formulas have it
====== ================================================== ===========================================================
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from clusterbench.errors import NotHere

if TYPE_CHECKING:
    from typing import Self

    from torch.futures import Future

    class TorchDispatchMode:  # the real one has no annotations
        def __init__(self) -> None: ...
        def __enter__(self) -> Self: ...
        def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

    class StorageWeakRef:  # nor has this
        cdata: int

        def __init__(self, storage: torch.UntypedStorage) -> None: ...

else:
    from torch.multiprocessing.reductions import StorageWeakRef as StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

NAMES = {
    # There is no public way to see every operator below autograd. 2.11 read, 2.13 run.
    "torch.utils._python_dispatch.TorchDispatchMode": "traffic, memory",
    # Tells DTensor's shape propagation (fake tensors of the whole, unsharded shape) from work that is done. Same.
    "torch._guards.active_fake_mode": "memory",
    # DTensor asks fake tensors for the shape of each result, which takes most of its first step; see `shapes_on_meta`.
    # Patched. 2.13 run.
    "torch.distributed.tensor._sharding_prop.FakeTensorMode": "parity",
    "torch.distributed.tensor._op_schema.OpSchema.gen_fake_args": "parity",
    "torch.distributed.tensor._op_schema.OpSchema.gen_fake_kwargs": "parity",
    "torch._guards.detect_fake_mode": "parity",
    "torch.utils._pytree.tree_map": "parity",
    "torch.utils._pytree.tree_map_only": "kept_results",
    # What no recomputation repeats or keeps; and a number of memory that no other gets while it is held. 2.13 run.
    "torch.utils.checkpoint.SAC_IGNORED_OPS": "kept_results",
    "torch.multiprocessing.reductions.StorageWeakRef": "kept_results",
    # Which part of the whole a DTensor is that FSDP2 and tensor parallelism cut along one dimension. 2.13 run.
    "torch.distributed.tensor._utils.compute_local_shape_and_global_offset": "trainer torchtitan",
    # `torch.nn.utils` scales parameters' gradients only, and of FSDP2's DTensors takes 28 ms to find out how. 2.13 run.
    "torch._foreach_mul_": "step",
    # All weights are rounded in one call, which is a kernel on CUDA. Public in all but its name. 2.13 run.
    "torch._foreach_copy_": "step",
    # Without it a gradient in bfloat16 is cast before it is added to what is there in float32, and a parameter in
    # float32 takes none. Set. 2.13 run.
    "torch.Tensor.grad_dtype": "step",
    # `torch.optim.AdamW` takes gradients in the dtype of the weights, whole and all at once. 2.13 run.
    "torch._fused_adamw_": "narrow_gradients",
    # Norms of bfloat16 gradients in float32, of all at once. Same.
    "torch._foreach_norm": "step",
    # -1 outside backward; inside it, the thread that runs the graph sees the number of the graph. Same.
    "torch._C._current_graph_task_id": "memory",
    # From the name that functional collectives carry to the group. Same.
    "torch.distributed.distributed_c10d._resolve_process_group": "traffic",
    # `c10d.*` operators carry the group as a ScriptObject. Same.
    "torch.distributed.ProcessGroup.unbox": "traffic",
    # Flattened axes ("dp_cp") hang on the root mesh and have no public list. Same.
    "torch.distributed.device_mesh.DeviceMesh._get_root_mesh": "traffic",
    # Experts spread over ranks are no copies of one another, and DDP has no public way to leave parameters out.
    "torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model": "parallel.data",
    # Which has gradients in the precision of the reduction until it reduces them. 2.11 has one group a module.
    "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam": "memory",
    # Fills the buffer that FSDP gathers; registered where the line above is imported from. 2.11 and 2.13 looked up.
    "torch.ops.fsdp.all_gather_copy_in": "memory",
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
    # Whether to name a pipeline's actions for it. 2.11 and 2.13 looked up.
    "torch.autograd._profiler_enabled": "trace",
    # Which kernel of which stream a call started, and on which group. 2.13 run.
    "torch._C._autograd._KinetoEvent.extra_meta": "trace",
    "torch._C._autograd._KinetoEvent.correlation_id": "trace",
    "torch._C._autograd._KinetoEvent.linked_correlation_id": "trace",
    "torch._C._autograd._KinetoEvent.device_resource_id": "trace",
    # How many functions Dynamo compiled, and how often it left one for Python; what `Module.compile` leaves. 2.13 run.
    "torch._dynamo.utils.counters": "proof.compiled",
    # The folder of what was compiled. 2.13 run.
    "torch._inductor.runtime.cache_dir_utils.cache_dir": "kernel_files",
    "torch.nn.Module._compiled_call_impl": "proof.compiled",
    # Whether Dynamo cuts what it compiles under DDP where a bucket ends. Set.
    "torch._dynamo.config.optimize_ddp": "parallel.compile",
    # Whether it stops, and does not leave a function as it is, where it had to compile it too often. 2.11 and 2.13 run.
    "torch._dynamo.config.fail_on_recompile_limit_hit": "parallel.compile",
    # Whether a product becomes one operator with a collective (async tp), and for which groups. 2.13 read and run, with
    # a CPU's stand-ins for the operators.
    "torch._inductor.config._micro_pipeline_tp": "parallel.compile",
    "torch.distributed._symmetric_memory.enable_symm_mem_for_group": "parallel.compile",
    # Within it operators are called below autograd, as a kernel registered for autograd has to call its own. 2.11 run.
    "torch._C._AutoDispatchBelowAutograd": "fake_results",
    # Has compiled functions run as they were written, for a while. Public; same.
    "torch.compiler.set_stance": "passes",
    # What a collective of DTensor returns before it is through: as an argument of a compiled function it would lose its
    # gradient. 2.11 and 2.13 run.
    "torch.distributed._functional_collectives.AsyncCollectiveTensor.trigger_wait": "parallel.compile",
    # Messages and what is sent together go past every operator. Patched for one step, to list them.
    "torch.distributed.ProcessGroup.send": "transfers",
    "torch.distributed.ProcessGroup.recv": "transfers",
    "torch.distributed.ProcessGroup._start_coalescing": "transfers",
    "torch.distributed.ProcessGroup._end_coalescing": "transfers",
    # Public since 2.13, and asked for before it is used: FlashAttention 3 in the place of 2. 2.13 read.
    "torch.nn.attention.sdpa_kernel": "parallel.attention",
    # Products of eight-bit floats, into memory that is there; `F.scaled_mm` is public, but makes its own. 2.13 run.
    "torch._scaled_mm": "matmul, float8",
    # No public operator gives the log-sum-exp on every device; torch's own context parallelism calls these. 2.13 run.
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "context_attention",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward": "context_attention",
    # For CUDA: half precision, then float32. 2.13 read.
    "torch.ops.aten._scaled_dot_product_flash_attention": "context_attention",
    "torch.ops.aten._scaled_dot_product_flash_attention_backward": "context_attention",
    "torch.ops.aten._scaled_dot_product_efficient_attention": "context_attention",
    "torch.ops.aten._scaled_dot_product_efficient_attention_backward": "context_attention",
}
"""Dotted name -> the module of clusterbench that needs it."""

COMMUNICATION_NAMESPACES = frozenset(
    {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem"}
)
"""Namespaces of operators that communicate. ``c10d_functional`` is the old spelling; it decomposes into the second."""


PACKS_WEIGHTS = "fsdp::all_gather_copy_in"
"""The operator of FSDP that fills the buffer it gathers (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)."""


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
        if not hasattr(thing, part):
            return False
        thing = getattr(thing, part)
    return True


def pci_address(device: torch.device) -> str:
    """A GPU's place on PCIe, as the kernel writes it: ``0000:dc:00.0``.

    Not among :data:`NAMES`: a torch built without CUDA has no properties of devices. torch.numa reads the same.
    """
    found = torch.cuda.get_device_properties(device)
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"  # type: ignore[attr-defined]


@cache
def is_wrapper_type(kind: type) -> bool:
    """Whether tensors of this type hold other tensors (DTensor, AsyncCollectiveTensor, quantized weights).

    A dispatch mode answers ``NotImplemented`` for them: the wrapper then runs its own dispatch with the mode still on,
    and the mode sees the operators on the tensors within, the collectives among them.
    """
    return issubclass(kind, Tensor) and hasattr(kind, "__tensor_flatten__")


def has_dispatch_mode() -> bool:
    """Whether any dispatch mode sees the operators of this thread."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode() is not None


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


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors with storage in arguments or results of an operator, in lists and mappings too.

    A wrapper's own storage, as that of a result under way, has no memory.
    """
    found: list[Tensor] = []
    _gather_tensors(value, found)
    return found


_HOLD_NO_TENSOR = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.Size})


def _gather_tensors(value: Any, found: list[Tensor]) -> None:
    kind = type(value)
    if kind in _HOLD_NO_TENSOR:  # most of what there is
        return
    if isinstance(value, Tensor):
        found.extend(plain_tensors(value))
    elif isinstance(value, list | tuple):
        for item in value:
            _gather_tensors(item, found)
    elif isinstance(value, Mapping):
        for item in value.values():
            _gather_tensors(item, found)


def is_sharded(module: torch.nn.Module) -> bool:
    """Whether FSDP2 shards this module's own parameters."""
    return hasattr(module, "_get_fsdp_state")


def begin_sharding(root: torch.nn.Module) -> None:
    """Lets FSDP2 do now what it else does before the first forward of a root: shares that are no even ones it pads.

    ``root`` is one of which :func:`is_sharded` holds.
    """
    root._get_fsdp_state()._lazy_init()  # type: ignore[operator]


def let_groups_return_views() -> None:
    """From here on FSDP says nothing of groups that return views: it warns of writing into one, which none does here.

    For the whole process: it warns in each forward, where a filter of its own would cost every step.
    """
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")


def accumulated_gradients(module: torch.nn.Module) -> Iterator[Tensor]:
    """Gradients that FSDP2 keeps beside the parameters of a module until it reduces them, in the precision of that.

    ``module`` is one of which :func:`is_sharded` holds.
    """
    state: Any = module._get_fsdp_state()  # type: ignore[operator]
    # several groups since 2.13, one before
    for group in getattr(state, "_fsdp_param_groups", None) or filter(None, [state._fsdp_param_group]):
        for parameter in group.fsdp_params:
            if parameter.unsharded_accumulated_grad is not None:
                yield from plain_tensors(parameter.unsharded_accumulated_grad)


def active_fake_mode() -> object | None:
    """The FakeTensorMode that would answer an operator now, if any."""
    from torch._guards import active_fake_mode as active

    return active()


@contextmanager
def shapes_on_meta() -> Iterator[None]:
    """Meanwhile DTensor works out the shapes of results on the meta device, and not with fake tensors.

    A fake tensor knows its device besides, for which DTensor does not ask, and takes six times as long to say the same.
    How a result is split follows as before. Where a name has vanished, nothing changes.
    """
    from torch.distributed.tensor import _sharding_prop
    from torch.distributed.tensor._op_schema import OpSchema

    changed = (OpSchema, "gen_fake_args"), (OpSchema, "gen_fake_kwargs"), (_sharding_prop, "FakeTensorMode")
    if not all(hasattr(holder, name) for holder, name in changed):
        yield
        return
    before = [getattr(holder, name) for holder, name in changed]
    fake_args, fake_kwargs, _ = before

    def arguments(schema: Any) -> Any:
        return fake_args(schema) if _is_compiling() else _on_meta(schema.args_schema)

    def keywords(schema: Any) -> Any:
        return fake_kwargs(schema) if _is_compiling() else _on_meta(schema.kwargs_schema)

    try:
        for (holder, name), instead in zip(changed, (arguments, keywords, nullcontext), strict=True):
            setattr(holder, name, instead)
        yield
    finally:
        for (holder, name), was in zip(changed, before, strict=True):
            setattr(holder, name, was)


def _is_compiling() -> bool:
    """Whether a compiler traces, which has a fake mode of its own."""
    return torch._guards.detect_fake_mode() is not None


def _on_meta(arguments: Any) -> Any:
    """Arguments of an operator as they would be on the meta device, tensors from what DTensor knows of them."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("meta")
        meta = getattr(leaf, "tensor_meta", None)
        return leaf if meta is None else torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")

    return tree_map(moved, arguments, is_leaf=lambda node: hasattr(node, "tensor_meta"))


def place_in_whole(weight: Any) -> tuple[slice, ...]:
    """Where this rank's part of a DTensor lies in the whole: a slice of each dimension."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offset = compute_local_shape_and_global_offset(weight.shape, weight.device_mesh, weight.placements)
    return tuple(slice(start, start + size) for start, size in zip(offset, sizes, strict=True))


def scale_all(tensors: list[Tensor], factor: Tensor) -> None:
    """Multiplies tensors of one device by a number on it, in place and all at once."""
    torch._foreach_mul_(tensors, factor)


def fused_adamw(tensors: Sequence[Sequence[Tensor]], steps: Sequence[Tensor], **settings: Any) -> None:
    """One update of some weights or parts of them by torch's fused AdamW.

    Parameters
    ----------
    tensors
        Of each its weight, gradient and two moments, all of one dtype.
    steps
        Of each the number of updates with this one, on its device.
    settings
        Those of the operator: ``lr``, ``beta1``, ``beta2``, ``weight_decay``, ``eps``.
    """
    weights, gradients, means, squares = (list(column) for column in zip(*tensors, strict=True))
    torch._fused_adamw_(
        weights,
        gradients,
        means,
        squares,
        [],
        list(steps),
        amsgrad=False,
        maximize=False,
        grad_scale=None,
        found_inf=None,
        **settings,
    )


def norm_of_all(tensors: list[Tensor]) -> Tensor:
    """The norm of all numbers in tensors of one device, in float32 at least.

    ``torch.nn.utils.get_total_norm`` rounds those of each tensor to its dtype.
    """
    if not tensors or torch.finfo(tensors[0].dtype).bits >= 32:
        return torch.nn.utils.get_total_norm(tensors)
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32)).norm()  # type: ignore[call-overload,no-any-return,unused-ignore]


def without_fake_tensors() -> AbstractContextManager[object]:
    """Tensors that are made within are real, in a dry run too."""
    if active_fake_mode() is None:
        return nullcontext()
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def is_to_be_compiled(module: torch.nn.Module) -> bool:
    """Whether ``module.compile()`` was called."""
    return module._compiled_call_impl is not None


def compile_module(module: torch.nn.Module, sends_in_products: bool = False) -> None:
    """Has torch compile a module, which counts the calls that are not compiled: see :func:`plain_calls`.

    Parameters
    ----------
    sends_in_products
        Whether a product becomes one operator with the collective before or behind it: see :func:`share_memory`.
    """
    forward = module.forward

    def counting(*arguments: Any) -> Any:
        if not torch.compiler.is_compiling():  # which is known while compiling: nothing of this is left then
            setattr(module, _PLAIN_CALLS, plain_calls(module) + 1)
        return forward(*arguments)

    def with_hooks(*arguments: Any) -> Any:
        return torch.nn.Module._call_impl(module, *arguments)  # type: ignore[no-untyped-call]

    module.forward = _of_class(counting, module)
    if module._forward_pre_hooks or module._forward_hooks:
        # Dynamo leaves torch's own method, which calls hooks, as it is and begins with each of them: what they send
        # would be compiled apart from the module, and a gradient be summed whole where a part of it is wanted.
        module._call_impl = _of_class(with_hooks, module)  # type: ignore[method-assign]
    setattr(module, _SENDS_IN_PRODUCTS, sends_in_products)
    module.compile(options={"_micro_pipeline_tp": True} if sends_in_products else None)


def _of_class(function: FunctionType | Callable[..., Any], module: torch.nn.Module) -> Callable[..., Any]:
    """The same with a code for each class: of one code for all the compiler would take sizes that differ for sizes that
    change."""
    assert isinstance(function, FunctionType)
    key = type(module), function.__code__
    code = _codes.setdefault(key, function.__code__.replace(co_name=type(module).__name__))
    return FunctionType(code, function.__globals__, code.co_name, None, function.__closure__)


def sends_in_products(module: torch.nn.Module) -> bool:
    """Whether a module was to be compiled so that collectives become parts of products."""
    return getattr(module, _SENDS_IN_PRODUCTS, False)


def share_memory(group: dist.ProcessGroup) -> None:
    """Has the ranks of a group reach each other's memory, as operators do that send within a product."""
    from torch.distributed import _symmetric_memory

    with warnings.catch_warnings():
        # "no need to call this": up to 2.13 the compiler leaves collectives of a group as they are for which it was not
        warnings.simplefilter("ignore", FutureWarning)
        _symmetric_memory.enable_symm_mem_for_group(group.group_name)


def before_compiled(module: torch.nn.Module, prepare: Callable[[], object]) -> None:
    """Has something done before each call of a compiled module, which its own hooks would be compiled with."""
    compiled = module._compiled_call_impl
    assert compiled is not None

    def prepared(*arguments: Any, **options: Any) -> Any:
        prepare()
        return compiled(*arguments, **options)

    module._compiled_call_impl = prepared  # type: ignore[assignment,unused-ignore]


def any_gradient(parameter: torch.nn.Parameter) -> None:
    """Lets a gradient of another dtype reach a parameter as it is; autograd would cast it before it adds it."""
    parameter.grad_dtype = None


def round_into(copies: Sequence[Tensor], masters: Sequence[Tensor]) -> None:
    """Each tensor into its copy, which may have another dtype: all at once."""
    if copies:
        with torch.no_grad():
            torch._foreach_copy_(list(copies), list(masters))


def plain_calls(module: torch.nn.Module) -> int:
    """How often a module that is to be compiled has run as it was written."""
    return getattr(module, _PLAIN_CALLS, 0)


_PLAIN_CALLS = "_clusterbench_plain_calls"
_SENDS_IN_PRODUCTS = "_clusterbench_sends_in_products"
_codes: dict[tuple[type[torch.nn.Module], CodeType], CodeType] = {}


def below_autograd() -> AbstractContextManager[object]:
    """Meanwhile operators are taken up below autograd."""
    guard: AbstractContextManager[object] = torch._C._AutoDispatchBelowAutograd()
    return guard


def compiles_float64() -> bool:
    """Whether attention in float64 can be compiled; up to 2.12 its backward takes float32 for it."""
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def set_up_compiler() -> None:
    """Dynamo is to compile whole layers, and all of them, or to say so.

    It is not to cut a layer in two where one of DDP's buckets ends: layers are compiled one by one, so the buckets of a
    layer are sent when its backward is through; and it wants a first bucket that is no larger than the others, too.
    Beyond some versions of one function it would leave further ones as they are, without a word.
    """
    import torch._dynamo.config

    torch._dynamo.config.optimize_ddp = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def compiler_cache() -> Path:
    """The folder in which torch keeps what it compiled, for later processes of this user."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def compiler_rests() -> AbstractContextManager[object]:
    """Meanwhile compiled functions run as they were written.

    Under a dispatch mode that wants every operator they do so in any case, and ever after: by this they are compiled
    again when it is over.
    """
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def compiler_counts() -> tuple[int, int, int]:
    """Functions that Dynamo has compiled in this process, graph breaks, and what Inductor says it did of the functions.

    The last is a number of no meaning that grows with every function that Inductor makes or finds in its cache. Dynamo
    counts also functions that another backend ran as they are.
    """
    from torch._dynamo.utils import counters

    return counters["frames"]["ok"], sum(counters["graph_break"].values()), sum(counters["inductor"].values())


def waited(tensor: Tensor) -> Tensor:
    """What a collective gives, and not its promise: a compiled function drops the gradient of such an argument."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return _Waited.apply(tensor) if isinstance(tensor, AsyncCollectiveTensor) else tensor  # type: ignore[no-untyped-call]


class _Waited(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, promise: Any) -> Any:
        return promise.trigger_wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


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


def leave_to_others(module: torch.nn.Module, parameters: list[str]) -> None:
    """Tells a DDP that will wrap this module to keep its hands off some parameters."""
    from torch.nn.parallel import DistributedDataParallel

    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, parameters)  # type: ignore[no-untyped-call]


def on_gradient(parameter: Tensor, action: Callable[[Tensor], None]) -> Callable[[], None]:
    """Calls ``action(parameter)`` whenever a gradient was accumulated; returns what takes the hook off again."""
    handle = parameter.register_post_accumulate_grad_hook(action)  # type: ignore[no-untyped-call]
    return handle.remove  # type: ignore[no-any-return]


def profiler_events(profile: torch.profiler.profile) -> list[Any]:
    """Raw events of a finished profile, on one clock, without writing a file."""
    results: Any = profile.profiler.kineto_results  # type: ignore[union-attr]
    return list(results.events())


def is_profiling() -> bool:
    """Whether a profiler is recording what this thread does."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def is_range(event: Any) -> bool:
    """Whether a raw event is a named range, on the host or copied to the device's timeline, and no work of its own."""
    return bool(event.is_user_annotation())  # `activity_type` is not there before 2.12 or so


# Attention that also gives the log-sum-exp of each row, without which partial results cannot be joined.

_LOGSUMEXP_ALIGNMENT = 32
"""CUDA's memory-efficient attention fills each row of log-sum-exps up to a multiple of this, with infinities."""


def scaled_product(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    dtype: torch.dtype,
    out: Tensor | None = None,
    fast: bool = True,
) -> Tensor:
    """The product of two matrices of eight-bit floats, each times its scale, in ``dtype``.

    ``fast``: with the sums that tensor cores have in fewer bits.
    """
    product: Tensor = torch._scaled_mm(
        a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=fast, out=out
    )
    return product


def lacks_float8(device: str) -> str:
    """Why a device of this type multiplies no float8; empty where it does. A CPU does, slowly.

    AMD's formats before the MI350 are others of the same size.
    """
    if device != "cuda" or (not torch.version.hip and torch.cuda.get_device_capability() >= (8, 9)):
        return ""
    return "float8 products (e4m3fn) are those of NVIDIA GPUs since the L4 and the H100, and this device has none"


@cache
def widen_scaled_products() -> torch.library.Library:
    """From here on a processor multiplies float8 as float32, which holds it exactly.

    torch's own kernel goes element by element where there are no units for it: 13 to 50 MFLOP/s on one core, where this
    does 4,000. It is the operator's kernel that changes: what is recorded, counted and compiled is the same operator.
    """
    kernels = torch.library.Library("aten", "IMPL", "CPU")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for form in ("_scaled_mm", "_scaled_mm.out"):
            kernels.impl(form, _widened_product, allow_override=True)  # type: ignore[no-untyped-call]
    return kernels  # they last as long as it does, so the cache keeps it


def _widened_product(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    assert (bias, scale_result) == (None, None), "scaled_product has neither"
    product = (a.float() @ b.float()).mul_(scale_a).mul_(scale_b)
    return product.to(out_dtype) if out is None else out.copy_(product)


def flash_attention(q_BNSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention with its log-sum-exp, (B, N, S, D) and (B, N, S); keeps nothing for backward.

    Parameters
    ----------
    k_BKTD, v_BKTD
        N is a multiple of K, and T is S if causal.

    Notes
    -----
    The log-sum-exp is of the scaled scores, in float32 at least.
    """
    kind = _attention_operator(q_BNSD)
    if kind == "cpu":
        o, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q_BNSD, k_BKTD, v_BKTD, 0.0, causal)
    elif kind == "flash":
        o, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q_BNSD, k_BKTD, v_BKTD, 0.0, causal)
    elif kind == "efficient":
        k, v = (_repeat_heads(x, q_BNSD.shape[1]) for x in (k_BKTD, v_BKTD))
        o, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(q_BNSD, k, v, None, True, 0.0, causal)
        lse = lse[..., : q_BNSD.shape[2]]
    else:
        scores = _scores(q_BNSD, k_BKTD, causal)
        lse = scores.logsumexp(-1)
        o = (scores - lse.unsqueeze(-1)).exp() @ _repeat_heads(v_BKTD, q_BNSD.shape[1])
    return o, lse


def flash_attention_backward(
    grad_BNSD: Tensor, q_BNSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, o_BNSD: Tensor, lse_BNS: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v.

    Parameters
    ----------
    o_BNSD, lse_BNS
        Of the whole row. With those of attention over more keys than these, the gradients are these keys' exact share.
    """
    kind = _attention_operator(q_BNSD)
    arguments = grad_BNSD, q_BNSD, k_BKTD, v_BKTD, o_BNSD, lse_BNS
    if kind == "cpu":
        return _three(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*arguments, 0.0, causal))
    if kind == "flash":
        lengths = None, None, q_BNSD.shape[2], k_BKTD.shape[2]  # no ragged batch, so no cumulative lengths
        state = torch.empty(2, dtype=torch.uint64, device=q_BNSD.device)  # of dropout: not read
        return _three(
            torch.ops.aten._scaled_dot_product_flash_attention_backward(
                *(*arguments[:5], lse_BNS.contiguous()), *lengths, 0.0, causal, state, torch.empty_like(state[:0])
            )
        )
    if kind == "efficient":
        k, v = (_repeat_heads(x, q_BNSD.shape[1]) for x in (k_BKTD, v_BKTD))
        fill = -q_BNSD.shape[2] % _LOGSUMEXP_ALIGNMENT
        lse = torch.nn.functional.pad(lse_BNS, (0, fill), value=float("inf")).contiguous()
        state = torch.empty((), dtype=torch.int64, device=q_BNSD.device)  # of dropout: not read
        dq, dk, dv, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            grad_BNSD, q_BNSD, k, v, None, o_BNSD, lse, state, state, 0.0, [True, True, True, False], causal
        )
        return dq, _sum_heads(dk, k_BKTD.shape[1]), _sum_heads(dv, k_BKTD.shape[1])
    k, v = (_repeat_heads(x, q_BNSD.shape[1]) for x in (k_BKTD, v_BKTD))
    weights = (_scores(q_BNSD, k_BKTD, causal) - lse_BNS.unsqueeze(-1)).exp()
    through = grad_BNSD @ v.transpose(-2, -1) - (grad_BNSD * o_BNSD).sum(-1, keepdim=True)
    dscores = weights * through * q_BNSD.shape[-1] ** -0.5
    dk, dv = dscores.transpose(-2, -1) @ q_BNSD, weights.transpose(-2, -1) @ grad_BNSD
    return dscores @ k, _sum_heads(dk, k_BKTD.shape[1]), _sum_heads(dv, k_BKTD.shape[1])


def attention_by(backend: str) -> AbstractContextManager[object]:
    """Meanwhile ``scaled_dot_product_attention`` has one kernel to choose from.

    Parameters
    ----------
    backend
        ``flash``, ``flash3``, ``cudnn``, ``efficient`` or ``math``.

    Raises
    ------
    NotHere
        ``flash3`` where it cannot be loaded.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if backend == "flash3":
        _activate_flash3()
    kernel = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "flash3": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }[backend]
    return sdpa_kernel(kernel)


@cache  # once a process, which computes one case
def _activate_flash3() -> None:
    from torch.nn import attention

    if not hasattr(attention, "activate_flash_attention_impl"):
        raise NotHere(f"this torch ({torch.__version__}) cannot put FlashAttention 3 in the place of 2; 2.13 can")
    try:
        attention.activate_flash_attention_impl("FA3")
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise NotHere(
            f"FlashAttention 3 could not be loaded: {error}\n"
            "hint: install the wheel flash-attn-3, or use flash or cudnn"
        ) from error


def _attention_operator(q_BNSD: Tensor) -> str:
    """Which operator takes these tensors; ``none`` for float64 on CUDA, for which a parity check needs no speed."""
    if q_BNSD.device.type == "cuda":
        halves = torch.float16, torch.bfloat16
        return "flash" if q_BNSD.dtype in halves else "efficient" if q_BNSD.dtype == torch.float32 else "none"
    return "cpu" if q_BNSD.device.type == "cpu" else "none"


def _three(gradients: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = gradients
    return dq, dk, dv


def _scores(q_BNSD: Tensor, k_BKTD: Tensor, causal: bool) -> Tensor:
    scores: Tensor = q_BNSD @ _repeat_heads(k_BKTD, q_BNSD.shape[1]).transpose(-2, -1) * q_BNSD.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores


def _repeat_heads(x_BKTD: Tensor, heads: int) -> Tensor:
    return x_BKTD.repeat_interleave(heads // x_BKTD.shape[1], dim=1)


def _sum_heads(x_BNTD: Tensor, kv_heads: int) -> Tensor:
    batch, _, length, size = x_BNTD.shape
    return x_BNTD.reshape(batch, kv_heads, -1, length, size).sum(dim=2)


def all_gather_flat(output: Tensor, part: Tensor, group: dist.ProcessGroup) -> None:
    """All-gather of equal parts into one tensor; 2.13 warns at the name that 2.11 has."""
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(output, part, group=group)


def all_gather_future(output: Tensor, part: Tensor, group: dist.ProcessGroup) -> Future[Any]:
    """The same, without waiting."""
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return cast("Future[Any]", all_gather(output, part, group=group, async_op=True).get_future())


def reduce_scatter_flat(output: Tensor, whole: Tensor, group: dist.ProcessGroup) -> None:
    """Reduce-scatter (sum) of one tensor into equal parts; 2.13 warns at the name that 2.11 has."""
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(output, whole, group=group)


# Collectives as operators of their own: they can be started in one autograd function and waited for in another, and
# selective recomputation can keep their results.
NAMES |= {
    # Behind torch.distributed._functional_collectives, whose wrappers wait at a place of their choosing. 2.11 read,
    # 2.13 run.
    "torch.ops._c10d_functional.all_to_all_single": "experts",
    "torch.ops._c10d_functional.all_reduce": "experts",
    "torch.ops._c10d_functional.wait_tensor": "experts",
}


def start_all_to_all(rows: Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup) -> Tensor:
    """Sends ``sent[i]`` rows to rank i of the group; what comes out may be read after :func:`wait_for`.

    No gradient passes.
    """
    rows = rows.detach().contiguous()
    return torch.ops._c10d_functional.all_to_all_single(rows, received, sent, group.group_name)  # type: ignore[no-any-return]


def start_sum(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over the ranks of a group, to be read after :func:`wait_for`. No gradient passes."""
    return torch.ops._c10d_functional.all_reduce(tensor.detach(), "sum", group.group_name)  # type: ignore[no-any-return]


def wait_for(started: Tensor) -> Tensor:
    """The same tensor, complete: a CPU waits here, a CUDA stream is made to."""
    return torch.ops._c10d_functional.wait_tensor(started)  # type: ignore[no-any-return]


# The store at which ranks met is handed to torch, which has no public way back to it. 2.13 run.
NAMES |= {"torch.distributed.distributed_c10d._get_default_store": "rig"}


def store_of_ranks() -> Any:
    """The store of all ranks, for what they tell each other beside their groups."""
    return dist.distributed_c10d._get_default_store()


# A dry run: the step on tensors without data, in a group of which only one rank is there.
NAMES |= {
    "torch._subclasses.fake_tensor.FakeTensorMode": "dry",
    # Its cache is replaced. 2.13 run.
    "torch._subclasses.fake_tensor.FakeTensorMode._cached_dispatch_impl": "quick_fakes",
    "torch._subclasses.fake_tensor.FakeTensorMode._dispatch_impl": "quick_fakes",
    "torch._subclasses.fake_tensor.FakeTensorMode._validate_cache_key": "quick_fakes",
    "torch._subclasses.fake_tensor._BypassDispatchCache": "quick_fakes",
    # What FSDP2 gathers has to be on another device than what it keeps. Patched. 2.13 run.
    "torch.distributed.fsdp._fully_shard._fully_shard._get_device_from_mesh": "dry",
    # Makes the groups of a mesh, those of other ranks too. Patched.
    "torch.distributed.device_mesh.new_group": "dry",
    # The first operator under a dispatch mode imports it, which takes a second: once, before ranks are forked.
    "torch._dynamo": "dry",
    "torch._subclasses.fake_tensor.unset_fake_temporarily": "training.assemble",
    "torch.testing._internal.distributed.fake_pg.FakeStore": "dry",
    # Infers the shapes of DTensors on fake tensors of the whole array, in the fake mode that is active. 2.13 run.
    "torch.distributed.tensor._sharding_prop.ShardingPropagator._propagate_tensor_meta_non_cached": "dry",
    # Registers kernels and takes them away again; public is what registers them for good.
    "torch.library._scoped_library": "dry",
    # DDP's assignment of gradients to buckets.
    "torch.distributed._compute_bucket_assignment_by_size": "model.buckets",
}


def fake_store() -> Any:
    """What the fake process group is begun with."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def reduce_scatter_names() -> tuple[str, ...]:
    """Names under which a group sums one tensor into parts; 2.13 has a second one."""
    return tuple(name for name in ("_reduce_scatter_base", "reduce_scatter_single") if hasattr(dist.ProcessGroup, name))


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors that are made within have no data.

    DTensor infers shapes on whole arrays, and meshes have indices that are read: both outside.
    """
    from torch._subclasses.fake_impls import op_implementations_dict, register_op_impl
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    from clusterbench.engine.quick_fakes import QuickFakes

    for operator, implementation in _ON_FAKES.items():
        if operator not in op_implementations_dict:
            register_op_impl(operator)(implementation)  # type: ignore[arg-type]
    kind: Any = ShardingPropagator
    infer = kind._propagate_tensor_meta_non_cached

    def inferred(*arguments: Any, **options: Any) -> Any:
        with without_fake_tensors():
            return infer(*arguments, **options)

    kind._propagate_tensor_meta_non_cached = inferred
    try:
        with QuickFakes():
            yield
    finally:
        kind._propagate_tensor_meta_non_cached = infer


@contextmanager
def sharding_on(device: torch.device) -> Iterator[None]:
    """Meanwhile FSDP2 gathers on this device, and not on the one that it takes from the type of a mesh."""
    from torch.distributed.fsdp._fully_shard import _fully_shard as module

    kind: Any = module
    before = kind._get_device_from_mesh
    kind._get_device_from_mesh = lambda mesh: device
    try:
        yield
    finally:
        kind._get_device_from_mesh = before


def _waited_for(mode: Any, operator: Any, started: Tensor) -> Tensor:
    """The same tensor, as where it is real; torch's own way makes a second one."""
    return started


def _grouped_product(mode: Any, operator: Any, x: Tensor, matrices: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """For every floating type; torch's own way takes bfloat16 alone, as CUDA's kernel did once."""
    size = [*x.shape[:-1], matrices.shape[-1]]
    if x.dim() == matrices.dim() == 2:  # groups of what is summed over
        groups = options["offs"] if "offs" in options else arguments[0]
        size = [groups.shape[0], *size]
    elif x.dim() == 3 and matrices.dim() == 2:  # groups of columns
        size = size[1:]
    with mode:
        return x.new_empty(size)


def _updated(mode: Any, operator: Any, *arguments: Any, **options: Any) -> None:
    """Nothing: it changes values and makes none, and torch's own way looks at every tensor of long lists."""


_ON_FAKES = {
    torch.ops.aten._fused_adamw_.default: _updated,
    torch.ops._c10d_functional.wait_tensor.default: _waited_for,
    torch.ops.aten._grouped_mm.default: _grouped_product,
}
"""What operators do with fake tensors where torch's own answer is not what the real ones do."""


@contextmanager
def undivided_on_cpu(name: str) -> Iterator[None]:
    """Meanwhile an operator of aten is one on fake tensors of a CPU: what has a kernel there is not taken apart."""

    def never(*_: Any) -> None:
        raise AssertionError(f"{name} is undivided on a CPU for tensors without data only")

    with torch.library._scoped_library("aten", "IMPL", "CPU") as operators:  # type: ignore[no-untyped-call,unused-ignore]
        operators.impl(name, never)  # type: ignore[no-untyped-call,unused-ignore]
        yield


_PLAIN = torch.empty(0)


def let_go_of_outputs(stage: Any) -> None:
    """Has a pipeline's stage hold outputs without data no longer than others: from 2.15 on it lets go of plain ones."""
    if not hasattr(stage, "_output_slot_is_releasable"):
        return
    of_plain = stage._output_slot_is_releasable
    stage._output_slot_is_releasable = lambda output: of_plain(
        output if getattr(output, "fake_mode", None) is None else _PLAIN
    )


def skip_warm_up(schedule: Any) -> None:
    """Takes from a pipeline's schedule the messages by which stages agree, from 2.13 on, that all know their shapes."""
    if not hasattr(schedule, "_warmup_p2p"):
        return
    from torch.distributed.pipelining._utils import InferenceMode

    def agreed(stages: list[Any], *arguments: Any) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    schedule._warmup_p2p = agreed
