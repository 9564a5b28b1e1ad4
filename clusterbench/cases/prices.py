"""What training cases should have taken, by rates that were known of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterbench.expected.fits import Fit
from clusterbench.formulas.attribution import BUBBLE, COMPUTE, EXPOSED, IMBALANCE, REST, Part
from clusterbench.pricing import Price

COMPARED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "computing": (("compute", "memory", "optimizer"), COMPUTE),
    "communication": (("tp", "cp", "ep", "p2p", "dp", "latency"), EXPOSED),
    "pipeline bubble": (("bubble",), BUBBLE),
    "waiting for ranks with the same work": ((), IMBALANCE),
    "the rest": (("launch", "overhead"), REST),
}
"""Parts of a price, and the part of a measured step that they are held against; of a price each part is in one."""


@dataclass(frozen=True)
class PricedCase:
    """A training case with its price.

    Attributes
    ----------
    basis
        Which rates it rests on, and how sure it is: the sentence beside the figure.
    memory_bytes
        Of the fullest stage, as predicted.
    fits
        Whether that goes into the card; empty where its memory is not on record.
    tokens
        Of a step, all ranks together.
    doubts
        Why a step that takes longer says nothing of the machine, beside rates that were not measured on it.
    """

    price: Price
    basis: str
    tokens: int
    memory_bytes: float = 0.0
    fits: Fit | None = None
    doubts: tuple[str, ...] = ()

    @property
    def is_judged(self) -> bool:
        """Whether a step that takes longer than it may is a finding."""
        return not self.doubts and not self.price.unmeasured

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks."""
        return self.tokens / self.price.step_s


@dataclass(frozen=True)
class PartOff:
    """A part of a step as it was priced and as it was measured, in seconds."""

    name: str
    priced_s: float
    measured_s: float

    @property
    def off_s(self) -> float:
        """By how much longer it took."""
        return self.measured_s - self.priced_s


def parts_off(price: Price, measured: Mapping[Part, float]) -> list[PartOff]:
    """Every part of a step, the one that is farthest off first; empty where no parts were measured.

    >>> price = Price(3.0, {"compute": 2.0, "tp": 1.0}, 2.0, 4.0)
    >>> [(part.name, part.off_s) for part in parts_off(price, {("compute", ""): 2.5, (EXPOSED, "tp"): 3.0})[:2]]
    [('communication', 2.0), ('computing', 0.5)]
    """
    if not measured:
        return []
    parts = [
        PartOff(
            name,
            sum(price.parts.get(part, 0.0) for part in of_price),
            sum(seconds for (part, _), seconds in measured.items() if part == of_step),
        )
        for name, (of_price, of_step) in COMPARED.items()
    ]
    return sorted(parts, key=lambda part: -abs(part.off_s))


@dataclass(frozen=True)
class Prices:
    """Prices by case.

    Attributes
    ----------
    reasons
        Of training cases that have none.
    unused
        Why rates that the run was given are not used, each in words.
    """

    by_case: Mapping[str, PricedCase] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
