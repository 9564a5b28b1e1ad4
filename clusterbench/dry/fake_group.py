"""A process group that sends nothing: torch's fake one, made to hold what a real one holds.

What comes out of a collective has the right shape and no meaning, which is all that fake tensors need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import device_mesh
from torch.futures import Future

from clusterbench.engine.compat import fake_store, reduce_scatter_names


@contextmanager
def fake_group(rank: int, world_size: int, device_type: str) -> Iterator[None]:
    """The default group of this process is that of one rank of many, none of which is there.

    One a process: torch resolves groups of a second one to those of the first.

    Parameters
    ----------
    device_type
        Of the job: ``cpu`` holds what Gloo holds, ``cuda`` what NCCL does.
    """
    dist.init_process_group("fake", store=fake_store(), rank=rank, world_size=world_size)
    kind: Any = dist.ProcessGroup
    replaced = {(kind, "send"): _held(kind.send), (dist, "all_reduce"): _with_result(dist.all_reduce)}
    for owner in (dist, device_mesh):
        replaced[owner, "new_group"] = _if_member(dist.new_group, rank)
    for name in reduce_scatter_names() if device_type == "cpu" else ():
        replaced[kind, name] = _copying(getattr(kind, name))
    before = {(owner, name): getattr(owner, name) for owner, name in replaced}
    for (owner, name), function in replaced.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name), function in before.items():
            setattr(owner, name, function)
        dist.destroy_process_group()


class _Held(dist.Work):
    """A message under way: it holds its tensors for as long as somebody may wait for it."""

    def __init__(self, work: dist.Work, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._work, self._tensors = work, tensors

    def wait(self, *arguments: Any) -> bool:
        return self._work.wait(*arguments)

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Future[Sequence[Tensor]]:
        """What the fake group's own has not: the result."""
        future: Future[Sequence[Tensor]] = Future()
        future.set_result(self._tensors)
        return future


def _held(send: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    def held(group: dist.ProcessGroup, tensors: Sequence[Tensor], *arguments: Any) -> dist.Work:
        return _Held(send(group, tensors, *arguments), tensors)

    return held


def _if_member(new_group: Callable[..., Any], rank: int) -> Callable[..., Any]:
    """Groups of others are not made: a mesh of 131,072 ranks has a hundred thousand."""

    def if_member(ranks: Sequence[int] | None = None, *arguments: Any, **options: Any) -> Any:
        if ranks is not None and rank not in ranks:
            return dist.GroupMember.NON_GROUP_MEMBER
        return new_group(ranks, *arguments, **options)

    return if_member


def _with_result(all_reduce: Callable[..., dist.Work | None]) -> Callable[..., dist.Work | None]:
    def with_result(tensor: Tensor, *arguments: Any, **options: Any) -> dist.Work | None:
        work = all_reduce(tensor, *arguments, **options)
        return None if work is None else _Held(work, [tensor])

    return with_result


def _copying(reduce_scatter: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    """Gloo sums a copy of the whole input, of which each rank then takes its part."""

    def copying(group: dist.ProcessGroup, output: Tensor, whole: Tensor, *arguments: Any) -> dist.Work:
        work = reduce_scatter(group, output, whole, *arguments)
        copy = torch.ops._c10d_functional.wait_tensor(whole.clone())  # an operator of communication: it is a buffer
        return _Held(work, [output, copy])

    return copying
