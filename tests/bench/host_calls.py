"""How many calls in Python take the host as long as an operator, on this processor: what pricing takes them for.

A layer that DTensor cuts, that FSDP gathers or that is computed again has hundreds to thousands of them.
"""

from __future__ import annotations

import math

from clusterbench.pricing import CALLS_OF_AN_OPERATOR
from clusterbench.pricing.profiles.ours import OPERATORS_OF_A_LAYER, OPERATORS_WITHOUT_COPIES
from tests.bench import Result
from tests.host_steps import calls_of, layer_seconds
from tests.training.jobs import Case, name_of

PLAIN: Case = ("tp1", {}, {})
WRAPPED: list[Case] = [
    ("tp2", {}, {}),
    ("tp2+sp", {}, {}),
    ("dp2+zero3", {}, {}),
    ("tp1", {"recompute": "selective"}, {}),
]
ROUNDS = 3


def measure() -> list[Result]:
    cases = [PLAIN, *WRAPPED]
    calls = calls_of(cases)
    rounds = [layer_seconds(cases) for _ in range(ROUNDS)]
    plain, *wrapped = (min(of_case) for of_case in zip(*rounds, strict=True))
    operator_s = plain / (OPERATORS_OF_A_LAYER + OPERATORS_WITHOUT_COPIES)
    results = []
    for case, more, seconds in zip(WRAPPED, calls[1:], wrapped, strict=True):
        call_s = (seconds - plain) / (more["layer"] - calls[0]["layer"])
        note = (
            f"a layer {seconds * 1e3:.2f} ms, plain {plain * 1e3:.2f} ms; an operator {operator_s * 1e6:.1f} us, "
            f"a call {call_s * 1e6:.2f} us; priced as {CALLS_OF_AN_OPERATOR:g}"
        )
        results.append(
            Result(f"calls of an operator, {name_of(case)}", operator_s / call_s, "1", math.inf, "shown", note)
        )
    return results
