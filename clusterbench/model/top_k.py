"""Gradients of which ranks send the largest elements and keep the rest, as a hook of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from clusterbench.engine.compat import all_gather_future

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket
    from torch.futures import Future


class TopK:
    """Sends of each weight's gradient the elements that are largest, and adds the others to the next (error feedback).

    Parameters
    ----------
    num_sent
        How many elements of a gradient with so many are sent.
    whole_steps
        As many first steps send whole gradients.

    Attributes
    ----------
    kept
        What is not sent yet, flat, by weight, in the order of DDP's buckets, which is the same on every rank.

    Notes
    -----
    One all-gather a bucket: of each rank its values, and behind them their places. Every rank adds up those of all
    ranks in the same order, so copies of a weight stay equal.

    Source
    ------
    Lin et al. 2018, arXiv:1712.01887, section 3; the error that is kept: Stich et al. 2018, arXiv:1809.07599, algorithm
    1.
    """

    def __init__(self, group: dist.ProcessGroup, num_sent: Callable[[int], int], whole_steps: int) -> None:
        self.group = group
        self.num_sent = num_sent
        self.kept: dict[Tensor, Tensor] = {}
        self._whole_steps = whole_steps
        self._starts: dict[tuple[int, ...], Tensor] = {}

    def hook(self, bucket: GradBucket) -> Future[Tensor]:
        """What DDP calls with the gradients of a bucket, and waits for."""
        if self._whole_steps:
            self._whole_steps -= 1 if bucket.is_last() else 0
            return allreduce_hook(self.group, bucket)
        gradients, sizes = bucket.buffer(), [gradient.numel() for gradient in bucket.gradients()]
        own = torch.cat(
            [
                self._largest(parameter, gradient)
                for parameter, gradient in zip(bucket.parameters(), torch.split(gradients, sizes), strict=True)
            ]
        )
        starts = self._starts_of(tuple(sizes), gradients.device)
        # Places are as wide as values, so that both are parts of one array and each begins where its type may.
        width = torch.int32 if gradients.element_size() == torch.int32.itemsize else torch.int64
        message = torch.cat([gradients[own + starts].view(width), own.to(width)])
        of_all = message.new_empty(self.group.size() * message.numel())

        def added(_: Future[Tensor]) -> Tensor:
            gradients.zero_()
            for of_rank in of_all.view(self.group.size(), -1):
                values, at = of_rank.chunk(2)
                gradients.index_add_(0, at + starts, values.view(gradients.dtype))
            return gradients.div_(self.group.size())

        return all_gather_future(of_all, message, self.group).then(added)

    def _largest(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Where the largest elements of a gradient are, to which what was kept is added; the others are kept."""
        if parameter not in self.kept:
            self.kept[parameter] = torch.zeros_like(gradient)
        kept = self.kept[parameter]
        gradient.add_(kept)
        _, at = gradient.abs().topk(self.num_sent(gradient.numel()), sorted=False)
        kept.copy_(gradient).index_fill_(0, at, 0)
        return at

    def _starts_of(self, sizes: tuple[int, ...], device: torch.device) -> Tensor:
        """Where in a bucket the weight begins whose element is sent, for each of these; weights have ``sizes``."""
        if sizes not in self._starts:  # made once: a host that counts waits for the device
            starts = torch.tensor([0, *accumulate(sizes[:-1])])
            times = torch.tensor([self.num_sent(numel) for numel in sizes])
            self._starts[sizes] = starts.repeat_interleave(times).to(device)
        return self._starts[sizes]
