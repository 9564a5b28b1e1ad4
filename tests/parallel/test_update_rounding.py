"""Weights that are rounded by chance: copies of one stay copies, and what cannot be is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from clusterbench.parallel import from_options
from tests.training.jobs import Case, Together, make_job, name_of, objection_to

BY_CHANCE = {"update_rounding": "stochastic"}
PURE = {"dtype": "bfloat16", "precision": "pure_bfloat16"}


def after_steps(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """This rank's part of each weight after three steps: where it lies, and its bits."""
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_rig

    job = make_job(layout, **PURE, **changes)
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options({**BY_CHANCE, **options}), rig.grid, rig.device)
    before = {name: part.value.clone() for name, part in step.parts().items()}
    for _ in range(3):
        step()
    changed = {name: not torch.equal(part.value, before[name]) for name, part in step.parts().items()}
    assert all(changed.values()), changed
    return {
        name: ([(part.start, part.stop) for part in part.place], part.value.view(torch.int16).tolist())
        for name, part in step.parts().items()
    }


COPIED: list[tuple[Case, Callable[[str], bool]]] = [
    (("dp2", {}, {}), lambda name: True),
    (("dp2+zero1", {}, {}), lambda name: True),
    (("dp2", {"compile": True}, {}), lambda name: True),
    (("cp2", {}, {}), lambda name: True),
    (("tp2", {}, {}), lambda name: "norm" in name),
    (("tp2+sp", {}, {}), lambda name: "norm" in name),
    (("dp2+ep2", {}, {"shape": "moe-tiny"}), lambda name: ".experts." not in name),
]
"""With which weights both ranks have copies of."""

STEPPED = Together(after_steps, [case for case, _ in COPIED])


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize(("case", "copies"), [pytest.param(*each, id=name_of(each[0])) for each in COPIED])
def test_copies_of_a_weight_stay_equal_to_the_bit(case: Case, copies: Callable[[str], bool]) -> None:
    assert objection_to((case[0], {**BY_CHANCE, **case[1]}, {**PURE, **case[2]})) is None
    first, second = STEPPED(case)
    of_both = {name for name in first if first[name][0] == second[name][0]}
    assert of_both == {name for name in first if copies(name)}
    assert {name for name in of_both if first[name] != second[name]} == set()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dtype": "bfloat16"}, "precision float32_master in bfloat16 keeps them in float32"),
        (
            {"dtype": "bfloat16", "precision": "bfloat16_moments"},
            "precision bfloat16_moments in bfloat16 keeps them in float32",
        ),
        ({"dtype": "float32"}, "precision float32_master in float32 keeps them in float32"),
    ],
    ids=str,
)
def test_weights_that_are_not_in_bfloat16_are_refused(changes: dict[str, Any], why: str) -> None:
    assert objection_to(("dp2", BY_CHANCE, changes)) == (
        f"update_rounding stochastic rounds weights in bfloat16 (precision pure_bfloat16), and {why}"
    )
