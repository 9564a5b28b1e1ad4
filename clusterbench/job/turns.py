"""What a step sends in order: stretches that come again, as the layers of a model do, are written once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterbench.job.dry import Sent

LONGEST = 64
"""Turns of a stretch that is looked for; what repeats in longer ones is written as often as it comes."""


@dataclass(frozen=True)
class Repeated:
    """``turns`` that follow each other ``times`` times."""

    times: int
    turns: tuple[Turn, ...]


Turn = Sent | Repeated


@dataclass(frozen=True)
class Line:
    """One of a list: ``sent``, or None at the head of the ``count`` times that deeper lines below it come."""

    depth: int
    count: int
    sent: Sent | None = None

    def words(self, indent: str = "  ") -> str:
        """``2 all_gather on tp``, or ``32 times:``, behind an ``indent`` for each list that it is in."""
        what = f"{self.count:,} {self.sent.op} on {self.sent.axis}" if self.sent else f"{self.count:,} times:"
        return indent * self.depth + what


def lines_in_order(sent: Sequence[Sent]) -> list[Line]:
    """What is sent, one line a kind of call in a row.

    >>> gather, reduce = (Sent("tp", op, 8, "bfloat16", 2, 1) for op in ("all_gather", "reduce_scatter"))
    >>> print("\\n".join(line.words() for line in lines_in_order([gather, reduce, gather, reduce, gather])))
    2 times:
      1 all_gather on tp
      1 reduce_scatter on tp
    1 all_gather on tp
    """
    return list(_lines(_folded(list(sent)), 0))


def _lines(turns: Sequence[Turn], depth: int) -> Iterator[Line]:
    for turn in turns:
        if isinstance(turn, Sent):
            yield Line(depth, turn.count, turn)
            continue
        yield Line(depth, turn.times)
        yield from _lines(turn.turns, depth + 1)


def _folded(turns: list[Turn]) -> list[Turn]:
    """Short stretches first, so that long ones are made of what is folded already."""
    length = 1
    while length <= min(LONGEST, len(turns) // 2):
        shorter = _fold_stretches_of(length, turns)
        length = 1 if len(shorter) < len(turns) else length + 1
        turns = shorter
    return turns


def _fold_stretches_of(length: int, turns: list[Turn]) -> list[Turn]:
    folded: list[Turn] = []
    at = 0
    while at < len(turns):
        alike = 0
        while at + length + alike < len(turns) and turns[at + alike] == turns[at + length + alike]:
            alike += 1
        if alike < length:
            folded.append(turns[at])
            at += 1
            continue
        times = 1 + alike // length
        folded.append(Repeated(times, tuple(turns[at : at + length])))
        at += times * length
    return folded
