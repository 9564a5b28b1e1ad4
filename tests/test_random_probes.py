from __future__ import annotations

import random
from pathlib import Path

import yaml
from click.testing import CliRunner

import clusterbench
from clusterbench.benchmarks import benchmarks
from tests.random_probes import NO_PROBES, ON_GPUS, drawn_probe, drawn_suite, main


def test_every_probe_that_is_drawn_is_planned_and_a_seed_draws_the_same(tmp_path: Path) -> None:
    said = CliRunner().invoke(main, ["4", "30", "--seed", "7"])
    assert said.exit_code == 0, said.output
    (tmp_path / "probes.yaml").write_text(said.stdout)
    plan = clusterbench.plan(tmp_path / "probes.yaml", clusterbench.Cluster(1, 4, "cpu"))
    drawn = yaml.safe_load(said.stdout)
    assert len(drawn["benchmarks"]) == 30
    assert {case.benchmark for case in plan.cases} == {probe["benchmark"] for probe in drawn["benchmarks"]}
    assert drawn["benchmarks"][:5] == drawn_suite(4, 5, 7)["benchmarks"]
    assert drawn["benchmarks"][:5] != drawn_suite(4, 5, 8)["benchmarks"]


def test_what_is_left_out_exists() -> None:
    assert set(NO_PROBES) | set(ON_GPUS) < set(benchmarks())


def test_every_number_may_be_its_least_and_a_matrix_any_that_is_made() -> None:
    rng = random.Random(7)
    probes = [drawn_probe(rng, "all_to_all_v", 4) for _ in range(60)]
    assert {probe["matrix"] for probe in probes if "matrix" in probe} == {"uniform", "skewed"}
    assert 0 in {probe.get("warmup") for probe in probes}
