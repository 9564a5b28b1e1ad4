"""Calls in Python that our step makes for each layer are those that its profile says, on the torch that is pinned."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from clusterbench.parallel import active_in, from_options, part_of
from clusterbench.pricing.profiles.ours import host_calls
from tests.host_steps import FEW, MANY, calls_of
from tests.share import some_of
from tests.training.jobs import Case, make_job, name_of

EVEN, MOE, HALF = {"routing": "balanced"}, {"shape": "moe-tiny"}, {"dtype": "bfloat16"}
PLAIN: Case = ("tp1", {}, {})
EVERY: list[Case] = [
    ("dp2", {}, {}),
    *((f"dp2+zero{stage}", {}, {}) for stage in (1, 2, 3)),
    ("tp2", {}, {}),
    *(("tp2+sp", {"recompute": again}, {}) for again in ("none", "full", "selective")),
    *(("tp1", {"recompute": again}, {}) for again in ("full", "selective")),
    *(("cp2", {"context": kind}, {}) for kind in ("ring", "zigzag", "all_gather", "ulysses")),
    ("cp4", {"context": "ring"}, {}),
    *(("pp2", {"schedule": schedule}, {}) for schedule in ("1f1b", "zbv")),
    ("pp2-tp2+sp", {"schedule": "1f1b"}, {}),
    *((layout, EVEN, MOE) for layout in ("tp1", "dp2+ep2", "tp2+sp")),
    ("dp2-tp2+sp+zero3", {}, {}),
    *((layout, {}, HALF) for layout in ("tp1", "tp2+sp", "dp2+zero3")),
]
CASES = some_of(EVERY, name_of)


@cache
def counted() -> dict[str, dict[str, float]]:
    cases = [PLAIN, *CASES]
    return dict(zip(map(name_of, cases), calls_of(cases), strict=True))


def said(case: Case) -> dict[str, float]:
    """What the profile says of a layer, and of what is around the layers, beside what a plain step calls."""
    layout, options, changes = case
    job = make_job(layout, **{"dtype": "float32", **changes})
    active = active_in(job.layout, from_options(options))

    def of_rank(layers: int) -> float:
        whole = replace(job, shape=replace(job.shape, num_layers=layers * job.layout.pp))
        return host_calls(active, part_of(whole, active, 0))

    layer = (of_rank(MANY) - of_rank(FEW)) / (MANY - FEW)
    return {"layer": layer, "ends": of_rank(FEW) - FEW * layer}


@pytest.mark.gloo
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_calls_are_those_of_the_profile(case: Case) -> None:
    plain, found, profile = counted()[name_of(PLAIN)], counted()[name_of(case)], said(case)
    assert profile["layer"] == pytest.approx(found["layer"] - plain["layer"], rel=0.1, abs=plain["layer"])
    # those around the layers are left out but for DTensor's, and FSDP's of groups of their own
    assert profile["ends"] == pytest.approx(found["ends"] - plain["ends"], rel=0.25, abs=1500)
