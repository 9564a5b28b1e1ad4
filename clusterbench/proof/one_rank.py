"""What one rank loses by its own rounding, of which layouts are allowed a multiple: no more than it has to."""

from __future__ import annotations

from collections.abc import Mapping

from clusterbench.expected.tolerances import ONE_RANK
from clusterbench.proof.two_steps import ALL, Deviations

_LAYERS = 2
_OF_BFLOAT16, _OF_FLOAT8 = (0.032, 0.101), (0.26, 0.39)
"""How far the gradient of the worst weight was off in float64's eyes, and what two steps changed of all weights: the
most of 11 shapes with two layers, of 4 with float8."""


def beyond_rounding(
    of_one_rank: Deviations, num_layers: int, coarse: bool, keeps_half: bool, by_sums: Mapping[str, float]
) -> Deviations:
    """Deviations of one rank from float64, over the largest of healthy ones.

    What is changed is off by the root of what gradients are, for Adam turns the sign of an
    update where the gradient is smaller than its error.

    Parameters
    ----------
    coarse
        Whether products are in float8.
    keeps_half
        Whether weights are kept in bfloat16: what two steps changed of them says nothing then.
    by_sums
        How many times as far the gradient of a weight may be off for sums in bfloat16.
    """
    growth = growth_of(num_layers)
    of_gradient, of_update = _OF_FLOAT8 if coarse else _OF_BFLOAT16
    found = {name: off / (of_gradient * growth) for name, off in of_one_rank["parity_gradients"].items()}
    if not keeps_half:
        found[ALL] = of_one_rank["parity_update"][ALL] / (of_update * growth**0.5)
    return {ONE_RANK: {name: off / by_sums.get(name, 1.0) for name, off in found.items()}}


def growth_of(num_layers: int) -> float:
    """How many times as far rounding in bfloat16 goes as in a twin of two layers.

    Gradients and losses of the twins of llama-8b and llama-70b with 8, 16 and 32 layers were off by the fourth root of
    their number more, within 15 %.

    >>> growth_of(32)
    2.0
    """
    return float((max(num_layers, _LAYERS) / _LAYERS) ** 0.25)
