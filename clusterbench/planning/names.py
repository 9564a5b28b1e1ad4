"""What cases are called: a name of its own for each, which says no more than tells it from the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def unique_names(names: Sequence[str], features: Callable[[int], Mapping[str, Any]]) -> list[str]:
    """The same names where each stands once; those that several share get what they differ in.

    ``features`` gives what may tell the name of an index from its likes, the most telling first; it is asked only where
    a name is shared. Where features do not tell them apart either, a number does.

    >>> options = [{"seq_len": 128}, {"seq_len": 256}, {}]
    >>> unique_names(["train/dp2", "train/dp2", "train/tp2"], options.__getitem__)
    ['train/dp2-seq_len=128', 'train/dp2-seq_len=256', 'train/tp2']
    """
    alike: dict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(names):
        alike[name].append(index)
    unique = list(names)
    taken = {name for name, indices in alike.items() if len(indices) == 1}
    for name, indices in alike.items():
        if len(indices) == 1:
            continue
        for index, suffix in zip(indices, _differences([features(index) for index in indices]), strict=True):
            suffixed, number = f"{name}{suffix}", 1
            while (candidate := suffixed if number == 1 else f"{suffixed}-{number}") in taken:
                number += 1
            taken.add(candidate)
            unique[index] = candidate
    return unique


def _differences(alike: Sequence[Mapping[str, Any]]) -> list[str]:
    """``-seq_len=512`` for each, with as few features as tell them all apart."""
    suffixes = [""] * len(alike)
    for name in {name: None for features in alike for name in features}:
        parts = [f"-{name}={tidy(features[name])}" if name in features else "" for features in alike]
        longer = [suffix + part for suffix, part in zip(suffixes, parts, strict=True)]
        if len(set(longer)) > len(set(suffixes)):
            suffixes = longer
        if len(set(suffixes)) == len(alike):
            break
    return suffixes


def tidy(value: Any) -> str:
    """As part of an id: no spaces and no slashes.

    >>> tidy("8 MiB/rank"), tidy(True)
    ('8_MiB_rank', 'true')
    """
    text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return re.sub(r"[^A-Za-z0-9_.,:=+*-]", "_", text)[:120]
