from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import clusterbench
from clusterbench.layout import ParallelLayout
from clusterbench.shape import SHAPES
from tests.random_steps import ALTERING, KINDS_OF_STEPS, NAMED_SHAPES, drawn_step, drawn_suite, main, planned
from tests.training.layouts import layouts_on


def test_layouts_are_all_that_there_are() -> None:
    assert {str(layout) for layout in layouts_on(2)} > {"dp2", "dp2+zero3", "cp2+ep2", "tp2+sp", "tp2", "pp2"}
    assert all(layout.world_size == 4 for layout in layouts_on(4))


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_step_that_is_drawn_is_planned_and_a_seed_draws_the_same(num_ranks: int, tmp_path: Path) -> None:
    said = CliRunner().invoke(main, [str(num_ranks), "6", "--seed", "7"])
    assert said.exit_code == 0, said.output
    (tmp_path / "steps.yaml").write_text(said.stdout)
    plan = clusterbench.plan(tmp_path / "steps.yaml", clusterbench.Cluster(1, num_ranks, "cpu"))
    assert (len(plan.cases), plan.refusals) == (6, ())
    steps = yaml.safe_load(said.stdout)["benchmarks"]
    assert steps[:2] == drawn_suite(num_ranks, 2, 7)["benchmarks"]
    assert steps[:2] != drawn_suite(num_ranks, 2, 8)["benchmarks"]
    assert all(ParallelLayout.parse(step["layouts"][0]).world_size == num_ranks for step in steps)


def test_of_steps_that_are_alike_so_many_in_a_row_compute_the_same() -> None:
    steps = drawn_suite(4, 9, 7, compiled=0.0, alike=3)["benchmarks"]
    results = [{name: value for name, value in step.items() if name in ALTERING} for step in steps]
    assert results[:3] == results[:1] * 3 != results[3:6] == results[3:4] * 3
    assert len({step["layouts"][0] for step in steps}) > 3
    assert {"shape", "seed", "compress", "aux_loss", "float8"} <= ALTERING
    assert not ALTERING & {"layouts", "schedule", "warmup", "recompute"}


def test_no_step_is_drawn_twice(tmp_path: Path) -> None:
    """Two of one family drew the same layout and options, and a plan takes no case twice."""
    (tmp_path / "steps.yaml").write_text(yaml.safe_dump(drawn_suite(2, 60, 8102, compiled=0.0, alike=5)))
    plan = clusterbench.plan(tmp_path / "steps.yaml", clusterbench.Cluster(1, 2, "cpu"))
    assert (len(plan.cases), plan.refusals) == (60, ())


def test_steps_for_a_gpu_are_planned_for_ranks_that_share_it(tmp_path: Path) -> None:
    (tmp_path / "steps.yaml").write_text(yaml.safe_dump(drawn_suite(4, 6, 7, device="cuda"), sort_keys=False))
    plan = clusterbench.plan(tmp_path / "steps.yaml", clusterbench.Cluster(1, 4, "cuda", ranks_per_gpu=4))
    assert (len(plan.cases), plan.refusals) == (6, ())


@pytest.mark.parametrize("kind", KINDS_OF_STEPS[-4:], ids=str)
def test_of_every_kind_there_are_steps_that_are_taken(kind: dict[str, object], tmp_path: Path) -> None:
    rng = random.Random(7)
    drawn = [drawn_step(rng, ParallelLayout(dp=2), 0.0, kind) for _ in range(12)]
    assert all(kind.items() <= step.items() for step in drawn)
    assert any(planned(step, 2, tmp_path / "suite.yaml") for step in drawn)


def test_named_shapes_are_there_with_and_without_experts() -> None:
    for has_experts, names in NAMED_SHAPES.items():
        assert {SHAPES[name].has_experts for name in names} == {has_experts}
