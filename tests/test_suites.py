"""The suites that come with it: every one can be planned on CPU ranks and on nodes of GPUs, and asks what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterbench.cluster import Cluster
from clusterbench.expected.fits import fit
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.parallel.context import KINDS
from clusterbench.planning import make_plan
from clusterbench.suite import load_suite
from clusterbench.types import Case, Plan

SUITES = sorted(Path(__file__).parent.parent.glob("suites/*.yaml"))
PLANNED_IN_A_BLINK = [path for path in SUITES if path.stem not in ("top_configs", "faults")]


ON_A_SECOND_NODE = {"calibrate": 3}
"""Steps for two nodes: on one they are refused, and 'clusterbench calibrate' names the one that would tell most."""


FEWEST_HOSTS = {"link_matrix": 2, "congestion": 4}
"""What acceptance asks of the network between hosts, and of how many at least."""


def test_they_come_along_where_the_package_is_installed_and_are_found_by_name(tmp_path: Path) -> None:
    """What is installed has no folder ``suites`` beside it: 'list suites' was empty there, and none could be run."""
    elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    verb = [sys.executable, "-P", "-m", "clusterbench", "list", "suites"]
    said = subprocess.run(verb, cwd=tmp_path, env=elsewhere, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in said.splitlines()[1:]] == [path.stem for path in SUITES]


def on_cpu(path: Path) -> Plan:
    suite = load_suite(path)
    return make_plan(suite, Cluster(1, suite.cpu.num_ranks or 2, "cpu"))


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_on_a_cpu_nothing_is_refused_and_each_has_its_question(path: Path) -> None:
    plan = on_cpu(path)
    assert plan.suite == path.stem
    assert plan.question.endswith("?")
    assert plan.cases
    reasons = [refusal.reason for refusal in plan.refusals]
    assert len(reasons) == ON_A_SECOND_NODE.get(path.stem, 0), reasons
    assert all("needs 8 ranks, but 1 node x 4 CPU ranks give 4." in reason for reason in reasons)


@pytest.mark.parametrize("path", PLANNED_IN_A_BLINK, ids=lambda path: path.stem)
def test_on_two_nodes_of_eight_gpus_something_runs(path: Path) -> None:
    assert make_plan(load_suite(path), Cluster(2, 8, "cuda", "NVIDIA H100 80GB HBM3")).cases


OF_ALL_HOSTS = ("acceptance", "fabric", "links", "mpi", "nccl_collectives", "nccl_tuning")


@pytest.mark.parametrize("name", OF_ALL_HOSTS)
def test_who_asks_about_every_part_of_a_machine_uses_all_hosts(name: str) -> None:
    """Of 64 hosts 'fabric' tried two, and 'links' sixteen; a slow one among the others was found by neither."""
    suite = load_suite(next(path for path in SUITES if path.stem == name))
    plan = make_plan(suite, Cluster(20, 8, "cuda", "NVIDIA H100 80GB HBM3"))
    on_all = {case.benchmark for case in plan.cases if case.num_nodes == 20}
    assert on_all
    if name in ("acceptance", "fabric", "links"):
        assert "link_matrix" in on_all


TOTAL, MUST_FIT = "peak_memory[category=total]", 0.4

ON_80_GB = [path for path in PLANNED_IN_A_BLINK if path.stem != "one_gpu"]
"""All but the ladder of one H200 of 141 GB."""


@pytest.mark.parametrize("path", ON_80_GB, ids=lambda path: path.stem)
def test_training_steps_fit_a_gpu_of_80_gb(path: Path) -> None:
    """Some do not, and are there to show it; but of ep_scale no case fitted any GPU once, and of cp_scale 16 of 52.

    Of pp_schedules 12 of 30 do: pp2, and the orders that hold all micro-batches, need more.
    """
    cases = make_plan(load_suite(path), Cluster(2, 8, "cuda", "NVIDIA H100 80GB HBM3")).cases
    needed = [case.expected[TOTAL].value for case in cases if TOTAL in case.expected]
    fit_in = [fit(size, 80e9) != "does not fit" for size in needed]
    assert sum(fit_in) >= MUST_FIT * len(fit_in)


@pytest.mark.parametrize(
    ("name", "smallest"), [("tp_scale", "tp1"), ("sp_scale", "tp2"), ("ep_scale", "dp16+ep2+zero1")]
)
def test_what_an_axis_is_scaled_from_fits_a_gpu_of_80_gb(name: str, smallest: str) -> None:
    suite = load_suite(Path(__file__).parent.parent / "suites" / f"{name}.yaml")
    cases = make_plan(suite, Cluster(2, 8, "cuda", "NVIDIA H100 80GB HBM3")).cases
    needed = [case.expected[TOTAL].value for case in cases if case.layout == smallest]
    assert fit(min(needed), 80e9) != "does not fit"


@pytest.mark.parametrize("num_nodes", [1, 3, 4, 6, 64])
def test_acceptance_runs_on_one_host_and_on_all_and_each_floor_is_judged_on_h100(num_nodes: int) -> None:
    suite = load_suite(Path(__file__).parent.parent / "suites" / "acceptance.yaml")
    plan = make_plan(suite, Cluster(num_nodes, 8, "cuda", "NVIDIA H100 80GB HBM3"))
    assert (plan.repeats, plan.fail_on) == (2, ("not-judged",))
    assert {case.num_nodes for case in plan.cases} == {1, num_nodes}
    assert [floor for case in plan.cases for floor in case.floors if floor.bound is None] == []
    over_all = {case.benchmark for case in plan.cases if case.num_nodes == num_nodes}
    between_hosts = {name for name, fewest in FEWEST_HOSTS.items() if num_nodes >= fewest}
    asked = {item.benchmark for item in suite.items}
    by_themselves = {"node_step"} if num_nodes > 1 else set()
    assert over_all == asked - FEWEST_HOSTS.keys() | between_hosts | by_themselves
    refused = {refusal.benchmark for refusal in plan.refusals}
    on_one_host = {"host_copy"} if num_nodes > 1 else set()
    assert refused == FEWEST_HOSTS.keys() | on_one_host


def test_layouts_5d_uses_every_parallelism() -> None:
    cases = on_cpu(Path(__file__).parent.parent / "suites" / "layouts_5d.yaml").cases
    assert len(cases) >= 32
    assert {case.world_size for case in cases} == {8, 16}
    assert _values(cases, "schedule") == set(SCHEDULES)
    assert _values(cases, "context") == set(KINDS)
    assert _values(cases, "recompute") == {"none", "selective", "full"}
    assert _values(cases, "zero") == {0, 1, 2, 3}
    assert _values(cases, "routing") == {"real", "balanced"}
    assert {True, False} <= _values(cases, "sp") & _values(cases, "expert_overlap")
    assert any(case.point.get("shard_group_size") for case in cases)
    assert all(any(case.point[axis] > 1 for case in cases) for axis in ("pp", "dp", "cp", "tp", "ep"))


def test_a_swept_option_that_does_not_concern_a_layout_gives_it_once(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "suite: s\nbenchmarks:\n  - {benchmark: train_step, layouts: [tp1, pp2], schedule: [1f1b, gpipe]}\n"
    )
    cases = make_plan(load_suite(path), Cluster(1, 2, "cpu")).cases
    assert [(case.point["layout"], case.point.get("schedule")) for case in cases] == [
        ("tp1", None),
        ("pp2", "1f1b"),
        ("pp2", "gpipe"),
    ]


def _values(cases: tuple[Case, ...], name: str) -> set[object]:
    return {case.point[name] for case in cases if name in case.point}
