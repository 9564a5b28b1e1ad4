"""What this rank sends and receives in one step, counted where operators are dispatched.

The counter sees every call of the communication library, by any caller: DDP's reducer in C++, DTensor, FSDP2,
ZeroRedundancyOptimizer, pipeline schedules, or a call by hand. It knows nothing of the formulas it is compared with,
and nothing of what a backend puts on the wire (Gloo's reduce_scatter is an all_reduce there). Not seen:
device-initiated communication (NVSHMEM, symmetric memory outside ``torch.ops.symm_mem``, DeepEP's kernels), and what
passes through the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch.distributed as dist

from clusterbench.engine.compat import (
    COMMUNICATION_NAMESPACES,
    TorchDispatchMode,
    group_of,
    has_dispatch_mode,
    is_wrapper_type,
    tensors_in,
)
from clusterbench.formulas.collectives import link_bytes
from clusterbench.layout import UNKNOWN, WORLD

OPS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "gather_into_tensor_": "gather",
    "scatter_": "scatter",
    "send": "send",
    "isend": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
    "irecv": "recv",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
    "fused_all_gather_matmul": "all_gather",
    "fused_matmul_reduce_scatter": "reduce_scatter",
}
"""Operator of torch -> canonical name. Coalesced calls are one collective that carries the sum of their tensors."""

IN_PRODUCTS = frozenset({"fused_all_gather_matmul", "fused_matmul_reduce_scatter"})
"""Operators that multiply, too: what is gathered, or summed and cut, need be no argument or result of theirs."""

WAITS = frozenset({"wait_tensor", "wait_tensors"})
"""Operators that wait for others; 2.15 has the second."""

SILENT = WAITS | {"_wrap_tensor_autograd", "check_for_nan", "mesh_get_process_group"}
"""Operators of the same namespaces that move nothing."""


@dataclass(frozen=True)
class Collective:
    """One intercepted call, as this rank saw it."""

    op: str
    """Canonical name, or ``namespace::operator`` for one this version of clusterbench does not know."""
    axis: str
    """Axis of the mesh, ``world`` for the default group, ``?`` for a group without a name."""
    size_bytes: int
    """The larger of what goes in and what comes out on this rank; 0 for a barrier."""
    dtype: str
    group_size: int
    """Ranks in the group, 0 if the group could not be read off the call."""
    is_in_product: bool = False
    """Whether it is one operator with a product."""


@dataclass(frozen=True)
class Total:
    """All calls of one op along one axis."""

    count: int
    size_bytes: int
    traffic_bytes: float | None
    """``size_bytes`` times the bus factor, summed; None if the op has no factor."""


class TrafficCounter(TorchDispatchMode):
    """Records every collective this rank issues while the context is open, in order, of backward and optimizer too.

    Dispatch modes travel with autograd's thread-local state, so backward threads of CUDA devices are seen too. They do
    not reach the callbacks of futures, which run on threads of the backend and from which PowerSGD's hook reduces its
    second factor; there the call of ``all_reduce`` brings the counter along. Compiled functions stay compiled, and
    their collectives are seen as the compiler left them. Keep it out of timed iterations: each operator passes through
    Python.

    Parameters
    ----------
    axes
        Name of a process group -> axis, as :meth:`clusterbench.engine.grid.Grid.names` has them.
    """

    supports_higher_order_operators = True  # such as compiled functions call: they pass through

    def __init__(self, axes: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.axes = dict(axes or {})
        self.collectives: list[Collective] = []

    def __enter__(self) -> Self:
        self._all_reduce = dist.all_reduce

        def all_reduce(*args: Any, **kwargs: Any) -> Any:
            if has_dispatch_mode():
                return self._all_reduce(*args, **kwargs)
            with _CallbackCounter(self):
                return self._all_reduce(*args, **kwargs)

        dist.all_reduce = all_reduce
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        dist.all_reduce = self._all_reduce

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch asks: the mode wants none of the operators that a compiler makes one of; it sees what that calls."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_wrapper_type(kind) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self.saw(func, args, kwargs or {}, result)
        return result

    def saw(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Records a call if it communicates."""
        # Higher-order operators have no namespace and never communicate themselves.
        if getattr(func, "namespace", None) not in COMMUNICATION_NAMESPACES:
            return
        name: str = func._schema.name.split("::")[1]
        if name in SILENT:
            return
        axis, group_size = self.axis_of(args, kwargs)
        if axis == UNKNOWN and group_size == 1:  # a library's own group of one rank, which sends nothing
            return
        if name == "batch_p2p_ops":  # (op_list, peer_list, tag_list, tensors, group_name)
            for kind, tensor in zip(args[0], args[3], strict=True):
                self.collectives.append(Collective(OPS[kind], axis, *_size([tensor]), group_size))
            return
        op = OPS.get(name, func._schema.name)
        if name in IN_PRODUCTS:  # (A, Bs, dim, group) or (A, B, sum, dim, group) -> its part of the sum of products
            part = args[0] if op == "all_gather" else result
            size_bytes, dtype = _size([part])
            whole = size_bytes * group_size
            self.collectives.append(Collective(op, axis, whole, dtype, group_size, is_in_product=True))
            return
        size_bytes, dtype = _size([*args, *kwargs.values(), result])
        # The tensor of a barrier is a dummy that tells the backend its device.
        self.collectives.append(Collective(op, axis, 0 if op == "barrier" else size_bytes, dtype, group_size))

    def axis_of(self, args: Iterable[object], kwargs: Mapping[str, object]) -> tuple[str, int]:
        """Along which axis a call of an operator communicates, and how many ranks its group has."""
        group = next((group for group in map(group_of, (*args, *kwargs.values())) if group is not None), None)
        if group is None:
            return UNKNOWN, 0
        default = dist.distributed_c10d.GroupMember.WORLD
        unnamed = WORLD if default is not None and default.group_name == group.group_name else UNKNOWN
        return self.axes.get(group.group_name, unnamed), group.size()

    def totals(self) -> dict[tuple[str, str], Total]:
        """Sums of what was recorded, by ``(axis, op)``."""
        return totals(self.collectives)


class _CallbackCounter(TorchDispatchMode):
    """The same counter on a thread that its mode did not reach."""

    ignore_compile_internals = TrafficCounter.ignore_compile_internals

    def __init__(self, counter: TrafficCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._counter.__torch_dispatch__(func, types, args, kwargs)


def totals(collectives: list[Collective]) -> dict[tuple[str, str], Total]:
    """Sums by ``(axis, op)``.

    >>> totals([Collective("all_reduce", "dp", 1000, "float32", 4)] * 2)
    {('dp', 'all_reduce'): Total(count=2, size_bytes=2000, traffic_bytes=3000.0)}
    """
    sums: dict[tuple[str, str], Total] = {}
    for collective in collectives:
        key = collective.axis, collective.op
        before = sums.get(key, Total(0, 0, 0.0))
        traffic_bytes = link_bytes(collective.op, collective.size_bytes, collective.group_size)
        is_known = traffic_bytes is not None and before.traffic_bytes is not None
        sums[key] = Total(
            before.count + 1,
            before.size_bytes + collective.size_bytes,
            before.traffic_bytes + traffic_bytes if is_known else None,  # type: ignore[operator]
        )
    return sums


def _size(values: list[Any]) -> tuple[int, str]:
    """Bytes of the largest of some arguments (a list of tensors counts as one), and the dtype of its tensors."""
    largest, dtype = 0, ""
    for value in values:
        tensors = tensors_in(value)
        size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if tensors and (size_bytes > largest or not dtype):
            largest, dtype = size_bytes, str(tensors[0].dtype).removeprefix("torch.")
    return largest, dtype
