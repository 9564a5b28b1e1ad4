"""Lists of hosts in brackets, as Slurm and Flux write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product


def expand_hosts(text: str) -> Iterator[str]:
    """Every host of a list, in its order.

    Source: Slurm's scontrol(1), ``show hostnames``; Flux's RFC 29.

    >>> list(expand_hosts("cb[1-2,4],gpu-a[01-02]b,x"))
    ['cb1', 'cb2', 'cb4', 'gpu-a01b', 'gpu-a02b', 'x']
    """
    for piece in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        parts = re.split(r"\[([^\]]*)\]", piece)
        choices = [list(_numbers(part)) if index % 2 else [part] for index, part in enumerate(parts)]
        yield from ("".join(chosen) for chosen in product(*choices))


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not last:
            yield first
        else:
            yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
