"""A step behind the timed ones is what one rank makes of the same weights, however many updates are behind it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbench.job.passes import DUE, GRADIENT_OF
from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig

MOE = {"shape": "moe-tiny"}


def _late(layout: str, options: dict[str, Any], changes: dict[str, Any], updates: int = 3, wrong: str = "") -> Any:
    """What the step behind so many shows."""
    from clusterbench.parallel import from_options
    from clusterbench.proof import late_step
    from clusterbench.training.step import TrainingStep

    job, every = make_job(layout, **changes), from_options(options)
    rig = make_rig(job.layout)
    late_step.MOST_SECONDS = 0.0 if wrong == "takes long" else 600.0
    step = TrainingStep(job, every, rig.grid, rig.device)
    for _ in range(updates):
        step()
    _break(step, wrong)
    return late_step.late_step(step, every, rig)


def _off(seen: dict[str, float]) -> tuple[float, float, float]:
    """How far loss, norm and the worst gradient are from one rank."""
    loss, norm = (abs(seen[name] / seen[f"{name}{DUE}"] - 1) for name in ("loss", "norm"))
    gradients = {name: off for name, off in seen.items() if name.startswith(GRADIENT_OF)}
    assert len(gradients) >= 10, gradients
    return loss, norm, max(gradients.values())


def _break(step: Any, wrong: str) -> None:
    """Makes a step do from now on what a late one may."""
    reduce, forward_backward = step.reduce, step.forward_backward
    others = [(inputs.flip(1), labels) for inputs, labels in step.micro_batches]

    def turned() -> None:
        reduce()
        for weight in step.weights:
            if weight.name.endswith(wrong):
                weight.gradient.mul_(2 if wrong.endswith("down") else -1)

    def of_other_tokens() -> Any:
        step.micro_batches = others
        return forward_backward()

    if wrong == "loss":
        step.forward_backward = of_other_tokens
    elif wrong:
        step.reduce = turned


HEALTHY = [
    ("dp2", {}, {}),
    ("dp2+zero1", {}, {"max_grad_norm": None}),
    ("pp2-tp2+sp", {}, {"shape": "llama-tiny-tied", "global_batch_size": 8}),
    ("cp2", {"context": "ring"}, {}),
    ("dp2-tp2+zero3", {"offload": True}, {}),
    ("dp4+ep2", {"aux_loss": 0.01}, MOE),
    ("dp3+zero3", {}, {}),
]


@pytest.mark.gloo
@pytest.mark.parametrize(("layout", "options", "changes"), HEALTHY, ids=str)
def test_a_layout_shows_what_one_rank_makes_of_its_weights(layout: str, options: Any, changes: Any) -> None:
    seen, *others = run_ranks(make_job(layout).layout.world_size, _late, layout, options, changes)
    assert seen["seconds"] > 0
    assert seen["num_updates"] == 3
    loss, norm, gradients = _off(seen)
    assert max(loss, norm) < 1e-12
    assert gradients < 5e-5
    assert all(of_rank == {} for of_rank in others)


@pytest.mark.gloo
@pytest.mark.parametrize("changes", [{}, MOE], ids=str)
def test_rounding_of_many_updates_makes_no_late_step_wrong(changes: dict[str, Any]) -> None:
    changes = {**changes, "dtype": "bfloat16", "seq_len": 32}
    loss, norm, gradients = _off(run_ranks(2, _late, "tp2+sp", {}, changes, 12)[0])
    most = (0.015, 0.09, 1.5) if changes.get("shape") else (0.003, 0.015, 0.45)
    assert 0 < loss < 0.7 * most[0]
    assert 0 < norm < 0.7 * most[1]
    assert 0 < gradients < 0.7 * most[2]


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "changes", "wrong", "at_least"),
    [
        ("tp2", {}, "loss", (0.01, 0, 0)),
        ("dp2+ep2", MOE, "experts.down", (0, 0.1, 0)),
        ("tp2", {}, "attention.key.weight", (0, 0, 1)),
    ],
    ids=["loss", "norm", "gradient"],
)
def test_what_a_late_step_does_otherwise_shows(
    layout: str, changes: dict[str, Any], wrong: str, at_least: tuple[float, float, float]
) -> None:
    """After 12 updates in bfloat16, where losses and norms of two layouts say nothing any more."""
    changes = {**changes, "dtype": "bfloat16", "seq_len": 32, "max_grad_norm": None}
    off = _off(run_ranks(2, _late, layout, {}, changes, 12, wrong)[0])
    assert all(found >= least for found, least in zip(off, at_least, strict=True)), off


@pytest.mark.gloo
def test_what_would_take_one_rank_long_is_left_out() -> None:
    assert run_ranks(2, _late, "dp2", {}, {}, 1, "takes long") == [{}, {}]
