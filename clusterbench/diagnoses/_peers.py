"""What takes so many seconds in a case, beside its like on other hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A host, or a rank of one, in one case; ``usual_s`` is the median of its like on all hosts."""

    host: str
    case: str
    seconds: Sequence[float]
    usual_s: float = 0.0

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def ratio(self) -> float:
        return self.median_s / self.usual_s

    def is_slower(self, longer: float, at_best: float) -> bool:
        """Whether it takes so many times as long as usual in the median, and so many times in its best iteration."""
        return self.median_s > longer * self.usual_s and min(self.seconds) > at_best * self.usual_s

    @classmethod
    def beside(cls, peers: Sequence[Self]) -> list[Self]:
        """The same, each with what they take in the median."""
        usual_s = median(peer.median_s for peer in peers)
        return [replace(peer, usual_s=usual_s) for peer in peers]
