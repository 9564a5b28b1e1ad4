"""Numbers in the results of torch's fake collectives, which up to 2.12 leaves some of them as it found the memory.

2.13 copies the rank's own part in its C++. Here the operators do it themselves, above the level at which a device's
kernel is chosen: so calls of ``torch.distributed``, of DTensor and of compiled layers all get it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.library import Library

from clusterbench.engine.compat import active_fake_mode, below_autograd


@contextmanager
def written_results(device_type: str) -> Iterator[None]:
    """Meanwhile reduce-scatters and all-to-alls of one tensor give a part of what this rank gave.

    Parameters
    ----------
    device_type
        ``cpu`` or ``cuda``: where the tensors are.
    """
    key = f"Autograd{device_type.upper()}"
    libraries, new_library = [], cast(Callable[..., Any], Library)
    for namespace, operators in _WRITERS.items():
        library: Any = new_library(namespace, "IMPL")
        for name, written in operators.items():
            library.impl(name, written(getattr(getattr(torch.ops, namespace), name).default), key)
        libraries.append(library)
    try:
        yield
    finally:
        for library in libraries:
            library._destroy()


def _write(result: Tensor, given: Tensor) -> None:
    if active_fake_mode() is not None:
        return  # a compiler looks on, and would leave out a collective whose whole result is written over
    numel = min(result.numel(), given.numel())
    result.view(-1)[:numel].copy_(given.reshape(-1)[:numel])


def _into(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Of an operator that takes the result, or a list of results, and what is given."""

    def into(results: Any, given: Any, *more: Any) -> Any:
        with below_autograd():
            work = operator(results, given, *more)
            is_one = isinstance(results, Tensor)
            for result, part in [(results, given)] if is_one else zip(results, given, strict=True):
                _write(result, part)
        return work

    return into


def _returning(operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def returning(given: Tensor, *more: Any) -> Tensor:
        with below_autograd():
            result = operator(given.contiguous(), *more)
            _write(result, given)
        return result

    return returning


_WRITERS: dict[str, dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "c10d": {"_reduce_scatter_base_": _into, "reduce_scatter_tensor_coalesced_": _into, "alltoall_base_": _into},
    "_c10d_functional": {"reduce_scatter_tensor": _returning, "all_to_all_single": _returning},
}
