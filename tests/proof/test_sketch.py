"""From the sketches of two gradients it can be told how far they are apart, wherever their parts are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from clusterbench.job.passes import PROJECTIONS, kind_of_projection, projection
from clusterbench.measured.agreement import distances
from clusterbench.proof.sketch import _projected
from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig


def apart(gradient: tuple[float, ...], wanted: tuple[float, ...]) -> float:
    return distances({"w": gradient}, {"w": wanted})["w"]


def _of(mean: torch.Tensor, name: str = "layers.0.attention.key.weight") -> tuple[float, ...]:
    """Norm and projections, as they are recorded."""
    place = tuple(slice(0, length) for length in mean.shape)
    square, *projections = _projected(name, mean, place, mean.shape).tolist()
    return (square**0.5, *projections)


@pytest.mark.parametrize("size", [(64,), (48, 80), (1, 7)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_projections_of_two_gradients_are_as_far_apart_as_the_gradients(size, dtype):
    torch.manual_seed(0)
    found = []
    for seed in range(64):
        gradient, other = (torch.randn(size, dtype=torch.float64).to(dtype) for _ in range(2))
        off = float((other.double() - gradient.double()).norm() / gradient.double().norm())
        found.append(apart(_of(other, f"weight {seed}"), _of(gradient, f"weight {seed}")) / off)
    assert sum(ratio**2 for ratio in found) / len(found) == pytest.approx(1, abs=0.15)
    assert 0.2 < min(found) < max(found) < 2.5


def test_a_gradient_in_another_order_has_the_same_norm_and_other_projections():
    torch.manual_seed(1)
    gradient = torch.randn(64, 32)
    same = [gradient.flip(0), gradient.flip(1), gradient.roll(1, 0), -gradient]
    for other in same:
        assert _of(other)[0] == pytest.approx(_of(gradient)[0])
        assert apart(_of(other), _of(gradient)) > 0.7
    half = gradient.clone()
    half[-8:] = half[-8:].flip(0)
    assert 0.2 < apart(_of(half), _of(gradient)) < 1.0


def test_gradients_of_two_layers_that_are_exchanged_differ():
    """Weights of one kind are added up: each has signs of its own."""
    torch.manual_seed(2)
    first, second = torch.randn(16, 16), torch.randn(16, 16)

    def together(of_first: torch.Tensor, of_second: torch.Tensor) -> tuple[float, ...]:
        both = zip(_of(of_first, "layers.0.up"), _of(of_second, "layers.1.up"), strict=True)
        norm, *projections = (a + b for a, b in both)
        return (norm, *projections)

    assert apart(together(second, first), together(first, second)) > 0.5


def test_a_part_has_the_signs_of_its_place():
    torch.manual_seed(3)
    gradient = torch.randn(12, 10, dtype=torch.float64)
    whole = _projected("w", gradient, (slice(0, 12), slice(0, 10)), (12, 10))
    for cuts in ([(0, 4), (4, 12)], [(0, 12)]):
        for columns in ([(0, 5), (5, 10)], [(0, 10)]):
            places = [(slice(*rows), slice(*of_columns)) for rows in cuts for of_columns in columns]
            parts = [_projected("w", gradient[place], place, (12, 10)) for place in places]
            assert torch.allclose(torch.stack(parts).sum(0), whole)


def test_what_is_widened_at_a_time_does_not_matter(monkeypatch):
    torch.manual_seed(4)
    gradient = torch.randn(12, 10, dtype=torch.float64)
    whole = _of(gradient)
    monkeypatch.setattr("clusterbench.proof.sketch._MOST_ELEMENTS", 30)
    assert _of(gradient) == pytest.approx(whole)


def _sketches(layouts: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> list[Any]:
    """Of the first step of each layout what all its ranks have, and what one rank has."""
    from clusterbench.parallel import from_options
    from clusterbench.proof.sketch import Sketch
    from clusterbench.training.step import TrainingStep

    found = []
    for layout, options, changes in layouts:
        job, every = make_job(layout, **changes), from_options(options)
        rig = make_rig(job.layout)
        step = TrainingStep(job, every, rig.grid, rig.device)
        step()
        numbers = Sketch(step).numbers(rig)
        model = tuple(parallelism for parallelism in every if parallelism.changes_model)
        alone = TrainingStep(job.on_one_rank(), model, None, rig.device)
        alone()
        found.append((numbers, Sketch(alone).numbers()))
    return found


@pytest.mark.gloo
def test_ranks_have_together_what_one_rank_has():
    """Each part once, whoever has copies of it, of shards, states that are shared out, stages and experts."""
    layouts = [
        ("dp2", {}, {}, 1e-5),
        ("tp2+sp", {}, {"shape": "llama-tiny-tied"}, 1e-5),
        ("pp2", {}, {"shape": "llama-tiny-tied", "global_batch_size": 8}, 1e-5),
        ("dp2+zero1", {}, {}, 1e-5),
        ("dp2+zero3", {"offload": True}, {}, 1e-5),
        ("cp2", {}, {}, 1e-5),
        ("dp2+ep2", {}, {"shape": "moe-tiny"}, 1e-5),
        ("dp2", {}, {"dtype": "bfloat16", "precision": "bfloat16_moments"}, 0.02),
    ]
    of_both = run_ranks(2, _sketches, [(layout, options, changes) for layout, options, changes, _ in layouts])
    for (layout, *_, limit), of_ranks in zip(layouts, zip(*of_both, strict=True), strict=True):
        for numbers, alone in of_ranks:
            kinds = {kind_of_projection(name) for name in alone}
            assert len(kinds) >= 11, layout
            for kind in kinds:
                got, due = (tuple(of[projection(kind, n)] for n in range(1 + PROJECTIONS)) for of in (numbers, alone))
                assert apart(got, due) < limit, (layout, kind)
                assert got[0] == pytest.approx(due[0], rel=limit)
