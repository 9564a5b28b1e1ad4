"""This rank's part of a tensor that may be a DTensor."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """A plain tensor: of a DTensor the part that this rank has, in the same memory; any other as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
