"""Our step on one rank against a decoder, AdamW and clipping in plain loops: what no comparison of layouts can see."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import from_options
from clusterbench.shape import ModelShape
from clusterbench.training.step import TrainingStep
from tests.model import by_loops

EXACT = 1e-12
"""Relative; 4e-14 was seen. A weight of 1 is known to 2e-16, and two steps change it by 6e-4."""

GIVEN: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 12,
    "ffn_hidden_size": 10,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 6,
    "vocab_size": 23,
    "tied_embeddings": False,
}
ROUTED = {"num_experts": 4, "experts_per_token": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], float | None]] = {
    "dense": ({}, {}, 1.0),
    "tied": ({"tied_embeddings": True}, {}, 1.0),
    "MQA": ({"num_kv_heads": 1}, {}, 1.0),
    "MHA": ({"num_kv_heads": 4}, {}, 1.0),
    "below the limit of the norm": ({}, {}, 1e3),
    "never clipped": ({}, {}, None),
    "MoE": (ROUTED, {}, 1.0),
    "MoE balanced by its loss": (ROUTED, {"aux_loss": 0.05}, 1.0),
    "MoE of one a token": ({**ROUTED, "experts_per_token": 1}, {}, 1.0),
    "MoE of one a token, balanced by its loss": ({**ROUTED, "experts_per_token": 1}, {"aux_loss": 0.05}, 1.0),
    "MoE of four a token": ({**ROUTED, "experts_per_token": 4}, {"aux_loss": 0.05}, 1.0),
    "MoE with two shared": ({**ROUTED, "num_shared_experts": 2}, {}, 1.0),
    "MoE with two shared, balanced by its loss": ({**ROUTED, "num_shared_experts": 2}, {"aux_loss": 0.05}, 1.0),
    "MoE routed evenly": (ROUTED, {"routing": "balanced"}, 1.0),
}
"""What the shape has other than :func:`make_step` says, the options, and ``max_grad_norm``."""


def make_step(
    changes: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    max_grad_norm: float | None = 1.0,
    sizes: tuple[int, int, int] = (6, 6, 2),
) -> TrainingStep:
    """Three micro-batches of two sequences of 6 tokens; every size differs, and epsilon and rotary base show."""
    shape = ModelShape(name="tiny", rope_theta=50.0, norm_eps=0.01, source="", **GIVEN | (changes or {}))
    job = TrainingJob(shape, ParallelLayout(), *sizes, dtype="float64", max_grad_norm=max_grad_norm, seed=3)
    return TrainingStep(job, from_options(options or {}), None, torch.device("cpu"))


@contextmanager
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def off(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("name", CASES)
def test_two_steps_are_those_in_plain_loops(name: str) -> None:
    changes, options, max_grad_norm = CASES[name]
    _expect_as_in_loops(make_step(changes, options, max_grad_norm), options, max_grad_norm)


def test_two_steps_are_those_in_plain_loops_beyond_the_sizes_of_a_twin() -> None:
    """Of what one rank and many share no comparison of the two tells anything, at any size."""
    larger = {"num_layers": 4, "num_heads": 2, "num_kv_heads": 1, "head_dim": 10, "vocab_size": 300}
    with_experts = {**larger, **ROUTED, "num_shared_experts": 1}
    _expect_as_in_loops(make_step(with_experts, {"aux_loss": 0.05}, sizes=(20, 8, 2)), {"aux_loss": 0.05}, 1.0)


def _expect_as_in_loops(step: TrainingStep, options: dict[str, Any], max_grad_norm: float | None) -> None:
    before = {name: part.value.clone() for name, part in step.parts().items()}
    with in_float64():
        reference = by_loops.two_steps(before, step.job.shape, step.micro_batches, max_grad_norm, **options)
    assert reference.norms[0] > 1.2  # or a limit of 1 would not be seen

    first = step.observed()
    second = step()
    assert [float(first.loss), float(second)] == pytest.approx(reference.losses, rel=EXACT)
    if max_grad_norm is None:
        assert first.norm is None
        assert step.last_norm is None
    else:
        assert first.norm is not None
        assert step.last_norm is not None
        assert [float(first.norm), float(step.last_norm)] == pytest.approx(reference.norms, rel=EXACT)
    assert set(first.gradients) == set(reference.gradients)
    gradients = {name: off(got, reference.gradients[name]) for name, got in first.gradients.items()}
    assert {name: value for name, value in gradients.items() if not value <= EXACT} == {}
    updates = {name: off(part.value - before[name], reference.changes[name]) for name, part in step.parts().items()}
    assert {name: value for name, value in updates.items() if not value <= EXACT} == {}


def test_a_step_takes_every_sequence_once_and_labels_are_the_next_token() -> None:
    step = make_step()
    tokens, labels = (torch.cat(parts) for parts in zip(*step.micro_batches, strict=True))
    assert [part.shape for part, _ in step.micro_batches] == [(2, 6)] * 3
    for sequence in range(6):
        row = [noise(3, "tokens", sequence, position) % 23 for position in range(7)]
        assert tokens[sequence].tolist() == row[:6]
        assert labels[sequence].tolist() == row[1:]
    assert len({tuple(row) for row in tokens.tolist()}) == 6


@pytest.mark.parametrize("name", ["dense", "MoE"])
def test_weights_start_as_documented(name: str) -> None:
    """Norms about 1 with a spread of 0.02, matrices uniform with the variance 1 over their columns."""
    for weight, part in make_step(CASES[name][0]).parts().items():
        table = part.value.reshape(-1, part.value.shape[-1])  # experts one below the other
        columns = table.shape[1]
        mean, spread = (1.0, 0.02) if weight.endswith("norm.weight") else (0.0, columns**-0.5)
        for row in range(0, len(table), 7):
            unit = [noise(3, weight, row, column) / 2**31 - 1 for column in range(columns)]
            assert table[row].tolist() == pytest.approx([mean + spread * 3**0.5 * value for value in unit], rel=1e-14)


def noise(seed: int, name: str, row: int, column: int) -> int:
    """What stands at a place of a named table: "lowbias32" of Chris Wellons' hash-prospector, once for each index."""

    def lowbias32(x: int) -> int:
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return x ^ x >> 16

    key = int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest(), "little")
    return lowbias32(lowbias32((row + key) % 2**32) ^ column)
