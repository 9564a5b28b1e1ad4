"""What a machine should reach: a value with its interval, where it comes from, and of which machine it was learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Origin = Literal["file", "baseline", "calibrated", "typical", "datasheet"]
"""``file``: the user said so. ``baseline``: quantiles of runs of this cluster. ``calibrated``: fitted to runs of it.
``typical``: published of healthy machines with the same parts. ``datasheet``: a vendor's figure x a typical share."""

ORIGINS: tuple[Origin, ...] = get_args(Origin)
"""In the order in which they are believed: of two expectations of one figure the first counts."""


MEASURED: tuple[Origin, ...] = ("file", "baseline", "calibrated")
"""Origins that speak of the machine itself."""


@dataclass(frozen=True)
class Expectation:
    """A figure that something else is worked out from, or held against.

    Attributes
    ----------
    value, low, high
        In base units of ``unit``; with a probability of 80 % the machine's own figure lies between the two.
    source
        A file and line, a run, or who published it.

    Examples
    --------
    >>> Expectation(555e12, "FLOP/s", 530e12, 580e12, "calibrated", "8 runs").spread
    1.0471698113207548
    """

    value: float
    unit: str
    low: float
    high: float
    origin: Origin
    source: str

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.value <= self.high < float("inf"):
            raise ValueError(
                f"{self.value:g} must be above 0 and within its own interval, {self.low:g} to {self.high:g}"
            )

    @property
    def spread(self) -> float:
        """The larger of the two factors between value and ends of the interval."""
        return max(self.value / self.low, self.high / self.value)

    @property
    def belief(self) -> int:
        """Of two expectations of one figure the one with the smaller number is believed."""
        return ORIGINS.index(self.origin)
