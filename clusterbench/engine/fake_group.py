"""A process group that sends nothing: torch's fake one, made to hold what a real one holds.

What comes out of a collective has the right shape and no meaning, which is all that fake tensors need. Where tensors
have data, all of it is finite: what others would have sent is a copy of the rank's own part, their share of a sum is
nothing, and a message that is received is noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import device_mesh
from torch.futures import Future

from clusterbench.engine.compat import active_fake_mode, fake_store, reduce_scatter_flat, reduce_scatter_names
from clusterbench.engine.fake_results import written_results

NAME = "fake"


def sends_nothing(group: dist.ProcessGroup | None = None) -> bool:
    """Whether a group is torch's fake one."""
    return bool(dist.get_backend(group) == NAME)


@contextmanager
def fake_group(rank: int, world_size: int, device_type: str, has_data: bool = False) -> Iterator[None]:
    """The default group of this process is that of one rank of many, none of which is there.

    One a process: torch resolves groups of a second one to those of the first.

    Parameters
    ----------
    device_type
        Of the job: ``cpu`` holds what Gloo holds, ``cuda`` what NCCL does.
    has_data
        Whether tensors have data, which is to stay finite.
    """
    dist.init_process_group(NAME, store=fake_store(), rank=rank, world_size=world_size)
    kind: Any = dist.ProcessGroup
    replaced = {
        (kind, "send"): _held(kind.send, holds=device_type == "cpu"),
        (dist, "all_reduce"): _with_result(dist.all_reduce),
    }
    for owner in (dist, device_mesh):
        replaced[owner, "new_group"] = _if_member(dist.new_group, rank)
    for name in reduce_scatter_names() if device_type == "cpu" else ():
        replaced[kind, name] = _copying(getattr(kind, name))
    if has_data:
        replaced[kind, "recv"] = _with_noise(kind.recv)
    before = {(owner, name): getattr(owner, name) for owner, name in replaced}
    for (owner, name), function in replaced.items():
        setattr(owner, name, function)
    try:
        with written_results(device_type) if has_data and not _gives_numbers(world_size) else nullcontext():
            yield
    finally:
        for (owner, name), function in before.items():
            setattr(owner, name, function)
        dist.destroy_process_group()


class _Held(dist.Work):
    """What is under way: it holds its tensors for as long as somebody may wait for it."""

    def __init__(self, work: dist.Work, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._work, self._tensors = work, tensors

    def wait(self, *arguments: Any) -> bool:
        return self._work.wait(*arguments)

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Future[Sequence[Tensor]]:
        """What the fake group's own has not: the result."""
        # of tensors on a card a future has to know where they are
        devices: list[int | str | torch.device] = [tensor.device for tensor in self._tensors if tensor.is_cuda]
        has_data = active_fake_mode() is None
        future: Future[Sequence[Tensor]] = Future(devices=devices if devices and has_data else None)
        future.set_result(self._tensors)
        return future


def _held(send: Callable[..., dist.Work], holds: bool) -> Callable[..., dist.Work]:
    """Gloo holds what it sends; NCCL does not, once its kernel is launched."""

    def held(group: dist.ProcessGroup, tensors: Sequence[Tensor], *arguments: Any) -> dist.Work:
        return _Held(send(group, tensors, *arguments), tensors if holds else ())

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


_HAS_NOISE = "_clusterbench_noise"


def _with_noise(recv: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    """A buffer gets noise when it is first received into. What is left there may be no number, and zeros cost a GPU
    less power than a message does."""

    def with_noise(group: dist.ProcessGroup, tensors: Sequence[Tensor], *arguments: Any) -> dist.Work:
        for tensor in tensors:
            if not hasattr(tensor, _HAS_NOISE):
                setattr(tensor, _HAS_NOISE, True)
                with torch.no_grad():
                    tensor.uniform_(-1, 1) if tensor.is_floating_point() else tensor.zero_()
        return recv(group, tensors, *arguments)

    return with_noise


def _gives_numbers(world_size: int) -> bool:
    """Whether a reduce-scatter leaves in its result what is a number."""
    result, everyone = torch.full((1,), float("nan")), dist.group.WORLD
    assert everyone is not None
    reduce_scatter_flat(result, torch.zeros(world_size), everyone)
    return bool(result.isfinite())
