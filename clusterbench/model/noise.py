"""Random numbers that are a function of where they stand, so that any rank can compute any part of anything.

A counter-based generator: no state, no order, the same bits on every device and for every way of cutting a tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_MASK = 0xFFFF_FFFF
_BLOCK = 1 << 22  # elements hashed at once: the temporaries stay near 100 MB


def noise(seed: int, name: str, rows: Tensor, columns: Tensor) -> Tensor:
    """A table of integers in [0, 2**32), each a function of seed, name, its row and its column alone.

    Parameters
    ----------
    rows, columns
        int64 indices below 2**32, shapes (R,) and (C,), on the device that is to compute.

    Returns
    -------
    int64 of shape (R, C).

    Examples
    --------
    Any part of the table is that part of the whole:

    >>> whole = noise(0, "tokens", torch.arange(4), torch.arange(6))
    >>> part = noise(0, "tokens", torch.arange(2, 4), torch.arange(3, 6))
    >>> torch.equal(part, whole[2:, 3:])
    True
    """
    key = int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest(), "little")
    return _scramble(_scramble((rows + key) & _MASK)[:, None] ^ columns)


def _scramble(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers under which neighbours end up unrelated.

    Source: "lowbias32" of Chris Wellons' hash-prospector. Products stay below 2**64, of which the low half is kept.
    """
    x = (x >> 16) ^ x
    for factor, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):  # in place: half of the time went into new memory
        x *= factor
        x &= _MASK
        x ^= x >> shift
    return x


def fill_weight(part: Tensor, seed: int, name: str, offset: Sequence[int], whole: Sequence[int]) -> None:
    """Fills a part of a weight with its initial values; ``whole`` is its shape, the rest as in :func:`fill_uniform`.

    Norms are about 1. A matrix keeps the size of what passes through it, so the twin of a 405b model is as
    well-conditioned as a tiny one.
    """
    is_norm = len(whole) == 1
    mean, std = (1.0, 0.02) if is_norm else (0.0, whole[-1] ** -0.5)
    fill_uniform(part, seed, name, offset, mean, std)


def fill_uniform(part: Tensor, seed: int, name: str, offset: Sequence[int], mean: float, std: float) -> None:
    """Fills a part of a named weight with its values, block by block.

    Parameters
    ----------
    part
        One or two dimensions, any floating type; all types get the same values up to their rounding. May be empty.
    offset
        Where the part begins in the whole weight.
    """
    with torch.no_grad():
        for rows, columns, (block,) in blocks([part], offset):
            values = noise(seed, name, rows, columns).double().div_(2**31).sub_(1)  # uniform in [-1, 1), variance 1/3
            block.copy_(values.mul_(std * 3**0.5).add_(mean))


def blocks(parts: Sequence[Tensor], offset: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Sequence[Tensor]]]:
    """Of tensors of one shape block after block, with the rows and columns of the whole that it has.

    Parameters
    ----------
    parts
        Of one or two dimensions, all at the same place; may be empty.
    offset
        As of :func:`fill_uniform`.
    """
    first = parts[0]
    if first.numel() == 0:
        return
    tables = parts if first.dim() == 2 else [part[None] for part in parts]
    num_rows, num_columns = tables[0].shape
    first_row, first_column = offset if first.dim() == 2 else (0, *offset)
    columns = torch.arange(first_column, first_column + num_columns, device=first.device)
    rows_per_block = max(1, _BLOCK // num_columns)
    for start in range(0, num_rows, rows_per_block):
        stop = min(start + rows_per_block, num_rows)
        rows = torch.arange(first_row + start, first_row + stop, device=first.device)
        yield rows, columns, [table[start:stop] for table in tables]
