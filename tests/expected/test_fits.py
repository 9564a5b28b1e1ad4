"""Whether a step fits a card that is sold with fewer bytes than its driver shows."""

from __future__ import annotations

import pytest

from clusterbench.cluster import accelerators
from clusterbench.expected.fits import fit, fit_words

SHOWN_MIB = {
    "a100-sxm4-80gb": 81_920,
    "h100-sxm-80gb": 81_559,
    "h200-sxm-141gb": 143_771,
    "b200-sxm": 183_359,
    "mi300x": 196_592,
    "rtx-4090": 24_564,
}
"""What nvidia-smi and amd-smi print of a card's memory."""


@pytest.mark.parametrize("card", SHOWN_MIB)
def test_what_a_driver_shows_is_not_said_to_be_too_much(card: str) -> None:
    sold, shown = accelerators()[card].memory_bytes, SHOWN_MIB[card] * 2**20
    assert sold is not None
    assert sold < shown
    assert fit(shown, sold) == "close, measure it"
    assert fit(1.01 * shown, sold) == "does not fit"


def test_a_step_of_8b_is_close_on_an_h200() -> None:
    """Tensors of 145.6 GB, and nvidia-smi shows 150.8."""
    assert fit_words(145.6e9, 141e9) == (
        "close, measure it: 4.6 GB above what is sold, and the driver shows at most 151.4 GB"
    )
