"""What this rank computes in one step: FLOPs of matrix products and attention, counted where operators are dispatched.

The counter sees the operators on the tensors that are really there: below DTensor, below autograd, of backward and
recomputation too. It knows nothing of the layout, nor of the formulas it is compared with. Compiled layers run
uncompiled while it counts, as torch has it under a dispatch mode. Not seen: kernels that are called without an
operator of torch, and operators in the callbacks of futures (PowerSGD's second factor), on threads of the backend.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, Self

from torch.utils.flop_counter import flop_registry

from clusterbench.engine.compat import (
    COMMUNICATION_NAMESPACES,
    TorchDispatchMode,
    active_fake_mode,
    in_backward,
    is_wrapper_type,
)
from clusterbench.job.flops import (
    ATTENTION,
    BACKWARD,
    BATCHED_PRODUCTS,
    CAUSAL_ATTENTION,
    FLOAT8_GRADIENTS,
    FLOAT8_PRODUCTS,
    FORWARD,
    GROUPED_PRODUCTS,
    PRODUCTS,
    UNKNOWN,
)
from clusterbench.job.passes import Executed

Formula = Callable[..., int]


def _attention(q_BNSD: Any, k_BKTD: Any, v_BKTD: Any, *arguments: Any, **options: Any) -> int:
    """Two products, of every query with every key and of the scores with the values, masked or not."""
    *rows, size = q_BNSD.shape
    return int(2 * prod(rows) * k_BKTD.shape[2] * (size + v_BKTD.shape[3]))


def _attention_backward(gradient: Any, q_BNSD: Any, k_BKTD: Any, v_BKTD: Any, *arguments: Any, **options: Any) -> int:
    """Five: the scores once more, and the gradients of scores, values, queries and keys."""
    *rows, size = q_BNSD.shape
    return int(2 * prod(rows) * k_BKTD.shape[2] * (3 * size + 2 * v_BKTD.shape[3]))


def _grouped_product(x: Any, matrices: Any, offs: Any = None, *arguments: Any, **options: Any) -> int:
    """Of every group 2 x rows x inputs x outputs.

    Of a table of rows cut into groups those up to the last group's end count, which is data: whatever no group has is
    not multiplied. The same where the groups are cut from what is summed over, for the gradient of the matrices.

    Source: ``aten/src/ATen/native/GroupedMMUtils.h`` of torch 2.13, which lists the four arrangements.
    """
    if offs is None:  # as many matrices on both sides
        return int(2 * x.shape[0] * x.shape[1] * x.shape[2] * matrices.shape[-1])
    in_groups = _rows_in_groups(x, matrices, offs)
    if x.dim() == 2 and matrices.dim() == 2:  # groups of what is summed over
        return int(2 * x.shape[0] * in_groups * matrices.shape[1])
    if x.dim() == 2:  # groups of rows
        return int(2 * in_groups * x.shape[1] * matrices.shape[-1])
    return int(2 * x.shape[1] * x.shape[2] * in_groups)  # groups of columns


def _rows_in_groups(x: Any, matrices: Any, offs: Any) -> int:
    """Up to the last group's end; all of them in a dry run, which has no data and spreads rows evenly."""
    if active_fake_mode() is not None:
        return int(
            x.shape[-1] if x.dim() == matrices.dim() == 2 else x.shape[0] if x.dim() == 2 else matrices.shape[-1]
        )
    return int(offs[-1]) if len(offs) else 0


OWN: dict[str, Formula] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "aten::_grouped_mm": _grouped_product,
}
"""Formulas of operators for which torch.utils.flop_counter has none, or in 2.11 one that knows no grouped heads.
Attention is counted as it counts that of CUDA."""

WITHOUT_PRODUCTS = COMMUNICATION_NAMESPACES | {
    "prim",
    "prims",
    "profiler",
    "fsdp",
    "inductor",
    "rngprims",
    "streams",
}
"""Namespaces of torch whose operators multiply no matrices."""

_WORDS = re.compile(
    r"(?:^|_)(?:\w*matmul|(?:sspadd|hsp|s|add|b|baddb|addb)?mm|\w*gemm\w*|(?:add)?mv|dot|vdot|vecdot|inner|tensordot|einsum"
    r"|(?:bi|tri)?linear|(?:slow_|thnn_)?\w*conv(?:\d|_|olution|$)\w*|\w*attention|lstm|gru|rnn|cdist|kron|chain|multi_dot"
    r"|transformer)(?:_|$|\d)"
)


class FlopCounter(TorchDispatchMode):
    """Adds up the FLOPs this rank executes while the context is open, by operator, forward and backward apart.

    What backward computes again counts as backward. Operators are taken by the formulas that torch.utils.flop_counter
    has registered, and those of :data:`OWN`. One that by its name multiplies matrices, or that is none of torch's, and
    has no formula is kept as unknown, so that it cannot be missed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fake_mode: object | None = None
        self._sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])

    def __enter__(self) -> Self:
        self._fake_mode = active_fake_mode()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_wrapper_type(kind) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        # DTensor asks for shapes with operators that compute nothing, on fakes that are not those of a dry run
        if active_fake_mode() is self._fake_mode:
            self.saw(func, args, kwargs or {}, result)
        return result

    def saw(self, func: Any, args: Any, kwargs: Any, result: Any) -> tuple[str, int] | None:
        """Counts one operator: its kind and FLOPs; None where it multiplies nothing."""
        if not _counts(func):
            return None
        name, formula = name_of(func), formula_of(func)
        flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=result))
        kind = UNKNOWN if formula is None else _kind(name, func, args, kwargs)
        total = self._sums[name, kind, BACKWARD if in_backward() else FORWARD]
        total[0] += 1
        total[1] += flops
        return kind, flops

    def executed(self) -> list[Executed]:
        """What was counted, in the order of names."""
        return [Executed(*key, count, flops) for key, (count, flops) in sorted(self._sums.items())]


@cache
def _counts(func: Any) -> bool:
    return formula_of(func) is not None or (multiplies(name_of(func)) and _takes_tensors(func))


def _takes_tensors(func: Any) -> bool:
    """Not a question such as ``mkldnn::_is_mkldnn_fp16_supported``; of an operator of higher order nothing is known."""
    schema = getattr(func, "_schema", None)
    return schema is None or any("Tensor" in str(argument.type) for argument in schema.arguments)


def name_of(func: Any) -> str:
    """Of an operator, as ``aten::mm``."""
    schema = getattr(func, "_schema", None)  # operators of higher order have none
    return schema.name if schema is not None else str(func)


def formula_of(func: Any) -> Formula | None:
    """Gives the FLOPs of an operator from its arguments; None where no formula is known."""
    if own := OWN.get(name_of(func)):
        return lambda *args, out_val=None, **kwargs: own(*args, **kwargs)
    return flop_registry.get(getattr(func, "overloadpacket", func))


def multiplies(name: str) -> bool:
    """Whether an operator, by its name, may multiply matrices.

    >>> [multiplies(name) for name in ("aten::addmm", "aten::digamma", "flash_attn::forward", "aten::_scaled_mm_v2")]
    [True, False, True, True]
    """
    namespace, _, operator = name.partition("::")
    if namespace in WITHOUT_PRODUCTS:
        return False
    return namespace != "aten" or _WORDS.search(operator) is not None


def _kind(name: str, func: Any, args: Any, kwargs: Any) -> str:
    if "grouped_mm" in name:
        return GROUPED_PRODUCTS
    if "scaled_mm" in name:
        return FLOAT8_GRADIENTS if "e5m2" in f"{args[0].dtype} {args[1].dtype}" else FLOAT8_PRODUCTS
    if "attention" not in name:
        return BATCHED_PRODUCTS if "bmm" in name else PRODUCTS
    names = [argument.name for argument in func._schema.arguments] if hasattr(func, "_schema") else []
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return CAUSAL_ATTENTION if given.get("is_causal", False) or given.get("causal", False) else ATTENTION
