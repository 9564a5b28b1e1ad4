"""Lists of hosts in brackets, as Slurm and Flux write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, product
from math import prod

MOST_HOSTS = 100_000
"""Of one piece of a list: as many as ``--num-nodes`` takes."""


def expand_hosts(text: str) -> Iterator[str]:
    """Every host of a list, in its order.

    Source: Slurm's scontrol(1), ``show hostnames``; Flux's RFC 29.

    Raises
    ------
    ValueError
        If brackets are not closed, hold no numbers, or make more than :data:`MOST_HOSTS` names.

    >>> list(expand_hosts("cb[1-2,4],gpu-a[01-02]b,x"))
    ['cb1', 'cb2', 'cb4', 'gpu-a01b', 'gpu-a02b', 'x']
    """
    if text.count("[") != text.count("]"):
        raise ValueError(f"{text} has brackets that are not closed")
    for piece in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        parts = re.split(r"\[([^\]]*)\]", piece)
        choices = [
            list(islice(_numbers(part), MOST_HOSTS + 1)) if index % 2 else [part] for index, part in enumerate(parts)
        ]
        if prod(map(len, choices)) > MOST_HOSTS:
            raise ValueError(f"{piece} makes more than {MOST_HOSTS:,} names of hosts")
        yield from ("".join(chosen) for chosen in product(*choices))


def _numbers(text: str) -> list[str]:
    """One more than are allowed are too many: of a list of millions none is made."""
    return list(islice(_every_number(text), MOST_HOSTS + 1))


def _every_number(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not last:
            yield first
        else:
            yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
