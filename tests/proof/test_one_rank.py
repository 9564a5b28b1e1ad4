"""One rank's own rounding, of which layouts are allowed a multiple: healthy, and more than rounding leaves."""

from __future__ import annotations

import pytest

from clusterbench.expected.tolerances import ONE_RANK
from clusterbench.proof.one_rank import beyond_rounding
from clusterbench.proof.two_steps import ALL


def of(gradient: float, update: float) -> dict[str, dict[str, float]]:
    return {"parity_gradients": {"head.weight": 0.01, "norm.weight": gradient}, "parity_update": {ALL: update}}


@pytest.mark.parametrize(
    ("num_layers", "coarse", "gradient", "update"),
    [
        (2, False, 0.025, 0.086),  # llama-8b
        (8, False, 0.036, 0.109),
        (32, False, 0.055, 0.134),
        (2, True, 0.262, 0.370),
        (32, True, 0.431, 0.510),
    ],
)
def test_what_twins_of_llama_8b_lost_is_near_one_whatever_their_layers(
    num_layers: int, coarse: bool, gradient: float, update: float
) -> None:
    found = beyond_rounding(of(gradient, update), num_layers, coarse, False, {})[ONE_RANK]
    assert 0.75 < found["norm.weight"] < 1.05
    assert 0.75 < found[ALL] < 1.05


def test_each_of_both_is_seen_by_itself() -> None:
    of_gradient = beyond_rounding(of(0.1, 0.1), 2, False, False, {})[ONE_RANK]
    assert of_gradient["norm.weight"] == pytest.approx(3.1, abs=0.1)
    assert max(of_gradient["head.weight"], of_gradient[ALL]) < 1
    of_update = beyond_rounding(of(0.03, 0.3), 2, False, False, {})[ONE_RANK]
    assert of_update[ALL] == pytest.approx(3.0, abs=0.1)


def test_of_weights_in_sixteen_bits_only_gradients_say_something() -> None:
    assert ALL not in beyond_rounding(of(0.03, 0.7), 2, False, True, {})[ONE_RANK]


def test_what_sums_in_bfloat16_add_is_allowed() -> None:
    assert beyond_rounding(of(0.1, 0.1), 2, False, False, {"norm.weight": 3.0})[ONE_RANK]["norm.weight"] < 1.1
