"""What training cases should have taken, by rates that were known of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterbench.expected.fits import Fit
from clusterbench.pricing import Price


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
        Why a step that takes longer is no finding, each in words; none where it is one.
    """

    price: Price
    basis: str
    tokens: int
    memory_bytes: float = 0.0
    fits: Fit | None = None
    doubts: tuple[str, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks."""
        return self.tokens / self.price.step_s


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
