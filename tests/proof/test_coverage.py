"""A weight that ranks hold too seldom, too often or in part is wrong before anything of it is compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig

pytestmark = pytest.mark.gloo

NORM = "layers.0.attention_norm.weight"
DEFECTS = {
    "honest": "",
    "left out": f"an element of {NORM} is on 0 ranks of 2; it should be on 2.",
    "left out on rank 1": f"an element of {NORM} is on 1 rank of 2; it should be on 2.",
    "half of it": f"an element of {NORM} is on 0 ranks of 2; it should be on 2.",
    "whole where it is cut": "an element of embedding.weight is on 2 ranks of 2; it should be on 1.",
}


MORE = "one more on rank 1"


def verdicts(layout: str) -> dict[str, str]:
    """What is said of parts that were changed; the step below them is the honest one."""
    import torch.distributed as dist

    from clusterbench.errors import WrongResult
    from clusterbench.parallel import active_in, from_options
    from clusterbench.proof.coverage import check_coverage
    from clusterbench.trainers.ours import Ours
    from clusterbench.training.step import TrainingStep

    job, every = make_job(layout), from_options({})
    rig = make_rig(job.layout)
    step: Any = TrainingStep(job, every, rig.grid, rig.device)
    parts = dict(step.parts())
    norm, embedding = parts[NORM], parts["embedding.weight"]
    without = {name: part for name, part in parts.items() if name != NORM}
    size = job.shape.hidden_size
    changed = {
        "honest": parts,
        "left out": without,
        "left out on rank 1": without if dist.get_rank() == 1 else parts,
        MORE: {**parts, "layers.0.bias": norm} if dist.get_rank() == 1 else parts,
        "half of it": {**parts, NORM: replace(norm, place=(slice(0, size // 2),))},
        "whole where it is cut": {
            **parts,
            "embedding.weight": replace(embedding, place=(slice(0, job.shape.vocab_size), slice(0, size))),
        },
    }
    said = {}
    for defect, held in changed.items():
        step.parts = lambda held=held: held
        try:
            check_coverage(step, Ours().copies(step.job, active_in(job.layout, every)), rig.device)
            said[defect] = ""
        except WrongResult as error:
            said[defect] = str(error)
    return said


def test_every_element_of_every_weight_is_on_as_many_ranks_as_the_layout_says() -> None:
    """At f044351 a weight that no rank held deviated by 0."""
    first, second = run_ranks(2, verdicts, "tp2")
    of_more = first.pop(MORE), second.pop(MORE)
    assert [said.partition(". ")[0] for said in of_more] == [
        "tp2 holds a weight that the model does not have",
        "tp2 holds a weight that the model does not have: layers.0.bias",
    ]
    assert first == second
    assert first.pop("honest") == ""
    for defect, what in first.items():
        assert what == f"tp2 does not hold its weights as it says: {DEFECTS[defect]}"
