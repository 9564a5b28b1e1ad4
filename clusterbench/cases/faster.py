"""Cases that differ in one choice alone: which choice is faster, by how much, and whether samples tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterbench.cases.ranking import noise
from clusterbench.cases.trained import Trained
from clusterbench.run_folder.attempts import History


@dataclass(frozen=True)
class Faster:
    """The fastest case of some that differ in one choice.

    Attributes
    ----------
    choice
        What it is with.
    case, second
        The fastest, and the fastest of another choice.
    longer_by
        By which fraction the second takes longer.
    is_told_apart
        Whether samples tell the two apart.
    """

    choice: str
    case: Trained
    second: Trained
    longer_by: float
    is_told_apart: bool


def speed_of(case: Trained) -> float:
    """Throughput per rank, in tokens/s; 0 where there is none."""
    return case.value("tokens_per_s_per_rank") or 0.0


def fastest_of(
    groups: Iterable[Sequence[Trained]], choice: Callable[[Trained], str], histories: Mapping[str, History]
) -> Iterator[Faster]:
    """Of each group, which has at least two choices with a figure."""
    for group in groups:
        best: dict[str, Trained] = {}
        for case in sorted(group, key=speed_of, reverse=True):
            if speed_of(case):
                best.setdefault(choice(case), case)
        (name, first), (_, second), *_ = best.items()
        told, _ = noise(first, second, histories)
        yield Faster(name, first, second, speed_of(first) / speed_of(second) - 1, told is True)


def won_by(found: Iterable[Faster]) -> list[tuple[str, list[Faster]]]:
    """Those told apart by the choice that is faster, the one that is so most often first."""
    won: dict[str, list[Faster]] = defaultdict(list)
    for each in found:
        if each.is_told_apart:
            won[each.choice].append(each)
    return sorted(won.items(), key=lambda of_choice: -len(of_choice[1]))
