"""In which dtypes weights, gradients and the optimizer's moments are kept; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MASTER = "float32_master"

WIDE, NARROW = "float32", "bfloat16"
GRADIENT_DTYPES = WIDE, NARROW
"""In which gradients of float32 weights add up and are reduced, where the arithmetic is in bfloat16."""


@dataclass(frozen=True)
class Precision:
    """Bytes of one number of each, where the arithmetic is in bfloat16.

    Weights in float32 have a copy in bfloat16 beside them, or are gathered in it: of that the words say nothing.
    """

    weight: int
    moment: int

    @property
    def words(self) -> str:
        """What is kept, with the bytes a parameter that it takes with its gradient."""
        each = {2: "bfloat16", 4: "float32"}
        total = 2 * self.weight + 2 * self.moment
        return f"{each[self.weight]} weights and gradients, {each[self.moment]} moments: {total} bytes a parameter"


PRECISIONS: Mapping[str, Precision] = {
    MASTER: Precision(weight=4, moment=4),
    "bfloat16_moments": Precision(weight=4, moment=2),
    "pure_bfloat16": Precision(weight=2, moment=2),
}
"""By the names that a suite gives them."""
