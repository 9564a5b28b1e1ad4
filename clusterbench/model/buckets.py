"""DistributedDataParallel for tensors without data, which its reducer would read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable


class Bucket:
    """Gradients that travel together, as a hook that compresses them sees them."""

    def __init__(self, index: int, parameters: Sequence[nn.Parameter], is_last: bool) -> None:
        self._index, self._parameters, self._is_last = index, list(parameters), is_last
        numel = sum(parameter.numel() for parameter in parameters)
        self._buffer = torch.empty(numel, dtype=parameters[0].dtype, device=parameters[0].device)
        self.pending = len(self._parameters)

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._is_last

    def buffer(self) -> Tensor:
        return self._buffer

    def parameters(self) -> list[nn.Parameter]:
        return self._parameters

    def gradients(self) -> list[Tensor]:
        sizes = [parameter.numel() for parameter in self._parameters]
        return [
            part.view_as(parameter)
            for part, parameter in zip(torch.split(self._buffer, sizes), self._parameters, strict=True)
        ]


class BucketedModel(nn.Module):
    """Holds and sends what DDP does with ``gradient_as_bucket_view``; nothing it sums has a value.

    Parameters
    ----------
    limits
        Bytes at which the first bucket is full, and the others.

    Notes
    -----
    Buckets are assigned by torch's own function: one of all parameters at first, and after the first backward in the
    order in which gradients came.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup, limits: Sequence[int]) -> None:
        super().__init__()
        self.module = module
        self._group = process_group
        self._limits = limits
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        self._parameters_in_buckets = [p for name, p in module.named_parameters() if name not in ignored]
        self._came: list[nn.Parameter] = []
        self._is_rebuilt = False
        self._sends = True
        self._hook: Callable[[Bucket], Any] | None = None
        self._under_way: list[tuple[Bucket, Any]] = []
        self._assign(self._parameters_in_buckets[::-1], [sys.maxsize])
        for parameter in self._parameters_in_buckets:
            parameter.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]

    def forward(self, *inputs: Any) -> Any:
        if self._came and not self._is_rebuilt:
            self._assign(self._came, self._limits)
            self._is_rebuilt = True
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, gradients add up and are not sent."""
        before, self._sends = self._sends, False
        try:
            yield
        finally:
            self._sends = before

    def register_comm_hook(self, state: object, hook: Callable[[Any, Any], Any]) -> None:
        """``hook(state, bucket)`` sends a bucket, and gives a future of its sum."""
        self._hook = lambda bucket: hook(state, bucket)

    def _assign(self, parameters: Sequence[nn.Parameter], limits: Sequence[int]) -> None:
        indices, _ = dist._compute_bucket_assignment_by_size(  # type: ignore[attr-defined]
            list(parameters), list(limits), [False] * len(parameters)
        )
        groups = [[parameters[index] for index in group] for group in indices]
        self._buckets = [Bucket(at, group, at == len(groups) - 1) for at, group in enumerate(groups)]
        self._place = {
            parameter: (bucket, view)
            for bucket in self._buckets
            for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True)
        }
        for parameter, (_, view) in self._place.items():
            if parameter.grad is not None:
                parameter.grad = view.copy_(parameter.grad)

    def _ready(self, parameter: nn.Parameter) -> None:
        if not self._sends:
            return
        bucket, view = self._place[parameter]
        if parameter.grad is not None and parameter.grad.untyped_storage()._cdata != view.untyped_storage()._cdata:
            parameter.grad = view.copy_(parameter.grad)
        if not self._is_rebuilt:
            self._came.append(parameter)
        if not self._under_way and all(each.pending == len(each.parameters()) for each in self._buckets):
            Variable._execution_engine.queue_callback(self._finish)
        bucket.pending -= 1
        if bucket.pending == 0:
            self._under_way.append((bucket, self._send(bucket)))

    def _send(self, bucket: Bucket) -> Any:
        if self._hook is not None:
            return self._hook(bucket)
        bucket.buffer().div_(self._group.size())
        return dist.all_reduce(bucket.buffer(), group=self._group, async_op=True)

    def _finish(self) -> None:
        for bucket, sent in self._under_way:
            result = sent.wait()
            if isinstance(result, Tensor) and result is not bucket.buffer():
                bucket.buffer().copy_(result)
            bucket.pending = len(bucket.parameters())
        self._under_way.clear()
