from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterbench.errors import WrongResult
from clusterbench.proof import copies
from clusterbench.proof.copies import Copies, check_copies


def pairs(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Masters in float32 and their copies, which are right."""
    masters = [torch.linspace(0, place + 1, 10) for place in range(number)]
    return [(master, master.to(torch.bfloat16)) for master in masters]


@pytest.mark.parametrize("stale", [[], [0], [2], [0, 1, 2]])
def test_each_copy_that_is_out_of_date_counts_whichever_it_is(
    stale: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first alone was looked at in a defect that no test saw."""
    held = pairs(3)
    monkeypatch.setattr(copies, "masters_and_copies", lambda module: held)
    step: Any = SimpleNamespace(modules=["one"], parts=dict, copies=dict)
    for place in stale:
        held[place][1][-1] += 1
    assert Copies(step).num_stale() == len(stale)


def test_copies_of_every_module_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"one": pairs(1), "two": pairs(2)}
    monkeypatch.setattr(copies, "masters_and_copies", held.__getitem__)
    before = Copies(SimpleNamespace(modules=["one", "two"], parts=dict, copies=dict))  # type: ignore[arg-type]
    assert before.num_stale() == 0
    held["two"][1][1].zero_()
    assert before.num_stale() == 1


def test_a_stale_copy_is_wrong_with_its_dtype() -> None:
    job: Any = SimpleNamespace(layout="tp2", dtype="bfloat16")
    check_copies(0, job)
    with pytest.raises(WrongResult, match=r"tp2 computes with 1 copy of weights in bfloat16"):
        check_copies(1, job)
