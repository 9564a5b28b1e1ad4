"""A step that was to be compiled and was not is wrong, whoever made its model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from clusterbench.errors import WrongResult
from clusterbench.parallel.compile import Compile
from clusterbench.proof.compiled import FRAMES, PLAIN, CompiledStep


@pytest.mark.parametrize("name", ["layers", "blocks"])
def test_a_model_of_another_trainer_is_wrong_too_of_which_nothing_was_to_be_compiled(name: str) -> None:
    model = nn.Module()
    model.add_module(name, nn.Sequential(nn.Identity(), nn.Identity()))
    step: Any = SimpleNamespace(job=SimpleNamespace(layout="dp2+zero3", dtype="float32"), modules=[model])
    compiled = CompiledStep(step, [Compile(compile=True)])
    with pytest.raises(WrongResult, match=r"dp2\+zero3 was to be compiled, and nothing was on rank 0"):
        compiled.judge([compiled.found()[FRAMES]], [compiled.found()[PLAIN]])
    assert CompiledStep(step).found() == {}
