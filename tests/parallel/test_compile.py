"""Compiled layers compute what plain ones do, and are refused where torch cannot compile them."""

from __future__ import annotations

import shutil

import pytest

from clusterbench.parallel.compile import Compile
from clusterbench.parallel.pipeline import Pipeline
from tests.ranks import run_ranks
from tests.training.jobs import make_job, parity_of

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, with which torch compiles on a CPU")


@pytest.mark.gloo
@needs_compiler
def test_a_compiled_step_equals_a_plain_one() -> None:
    evidence = run_ranks(1, parity_of, "tp1", {"compile": True}, {"dtype": "float32"}, timeout_s=300)[0]
    assert evidence["parity_gradients"] < 1e-5


def test_what_cannot_be_compiled_is_said() -> None:
    assert Compile(compile=True).objection(make_job("tp2")) == (
        "compile and tp2: layers see their parts of the weights as DTensors that are made outside of them, which "
        "torch.compile cannot trace"
    )
    clash = Compile(compile=True).clash(make_job("pp2"), [Pipeline(schedule="zbv")])
    assert clash == "compile and zbv: it splits backward, which compiled layers have in one piece"
    assert Compile(compile=True).clash(make_job("pp2"), [Pipeline(schedule="1f1b")]) is None
