"""One rank of a layout that is not there computes for real, and nothing of it is a speed, a ranking or a proof."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

from clusterbench.benchmarks.rank_step import RankStep
from clusterbench.benchmarks.train_step import job_of, rank_of
from clusterbench.cases import Reading
from clusterbench.charts import charts
from clusterbench.cluster import Cluster
from clusterbench.compare import compare_readings
from clusterbench.derive import read
from clusterbench.diagnoses import examine
from clusterbench.dry.processes import dry_ranks
from clusterbench.engine import fake_group, fake_results
from clusterbench.engine.launches import count_operators
from clusterbench.engine.rig import Rig
from clusterbench.engine.traffic import TrafficCounter
from clusterbench.errors import SuiteError
from clusterbench.launch.dry import dry_plan
from clusterbench.layout import ParallelLayout
from clusterbench.measured.speed import without_speed
from clusterbench.parallel import from_options
from clusterbench.planning import make_plan
from clusterbench.report.statements import cannot_say
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import History
from clusterbench.suite import load_suite
from clusterbench.trainers.ours import Ours
from clusterbench.training.data import of_own_vocabulary
from clusterbench.training.step import TrainingStep
from clusterbench.types import Case, Metric, Observation, Place, Plan
from clusterbench.verdict import verdict
from tests.ranks import run_ranks
from tests.training.jobs import make_job

ROOT = Path(__file__).parents[2]
ONE = Cluster(1, 1, "cpu")
SMALL = "shape: llama-flat-tiny, seq_len: 32, global_batch_size: 4, iterations: 3, warmup: 1, parity: false"


def suite(folder: Path, *lines: str) -> Path:
    path = folder / "suite.yaml"
    path.write_text(
        "suite: s\nquestion: q?\nbenchmarks:\n" + "".join(f"  - {{benchmark: train_step, {line}}}\n" for line in lines)
    )
    return path


def plan_of(folder: Path, *lines: str, cluster: Cluster = ONE) -> Plan:
    return make_plan(load_suite(suite(folder, *lines)), cluster)


# What is planned


def test_a_layout_of_any_size_is_one_process(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "shape: llama-8b, layouts: [pp4-tp8+sp], global_batch_size: 8, communication: fake")
    (case,) = plan.cases
    assert (case.id, case.benchmark, case.world_size, case.layout) == ("rank_step/1n1/pp4-tp8+sp", "rank_step", 1, None)
    assert case.point["communication"] == "fake"
    assert not case.expected_of("tokens_per_s")
    assert not [key for key in case.expected if key.startswith("parity")]


def test_a_profiler_that_saw_no_kernel_does_not_say_that_nothing_was_computed(tmp_path: Path) -> None:
    (case,) = plan_of(tmp_path, "layouts: [tp2], global_batch_size: 4, communication: fake").cases
    for own_s, value in (([0.0, 0.0], None), ([0.5, 0.5], 0.5)):
        seen = Observation("c", "h", 1, 1, ("a",), [[1.0, 1.0]], passes={"own_seconds": [own_s]})
        figures = {metric.name: metric for metric in RankStep.derive(case, seen, Place(ONE, 1))}
        assert figures["compute_time"].value == value
        assert figures["compute_time"].basis.startswith("the profiler recorded nothing") == (value is None)


def test_times_of_the_rank_have_their_median_and_their_ends(tmp_path: Path) -> None:
    (case,) = plan_of(tmp_path, "layouts: [tp2], global_batch_size: 4, communication: fake").cases
    seen = Observation("c", "h", 1, 1, ("a",), [[4.0, 1.0, 2.0]], passes={"own_seconds": [[0.5, 3.0, 1.0]]})
    figures = {metric.name: metric for metric in RankStep.derive(case, seen, Place(ONE, 1))}
    ends = [(figures[name].low, figures[name].value, figures[name].high) for name in ("rank_time", "compute_time")]
    assert ends == [(1.0, 2.0, 4.0), (0.5, 1.0, 3.0)]


def test_by_default_it_is_the_first_rank_of_the_middle_stage(tmp_path: Path) -> None:
    asked = "layouts: [pp4-tp2], global_batch_size: 4, communication: fake"
    plan = plan_of(tmp_path, asked, f"{asked}, fake_rank: 1")
    basis = [case.expected["executed_flops_per_rank[source=nothing sent]"].basis for case in plan.cases]
    assert [text.split(",")[0] for text in basis] == ["rank 4", "rank 1"]


def test_a_step_that_sends_is_the_case_that_it_was(tmp_path: Path) -> None:
    said, unsaid = (plan_of(tmp_path, f"layouts: [tp1]{more}").cases[0] for more in (", communication: real", ""))
    assert (said.benchmark, said.hash) == ("train_step", unsaid.hash)
    assert not {"communication", "fake_rank"} & unsaid.point.keys()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("layouts: [tp1], communication: fake", "no effect on tp1, whose one rank sends nothing"),
        ("layouts: [tp2], communication: fake, fake_rank: 2", "tp2 has the ranks 0 to 1, and fake_rank is 2"),
        ("layouts: [tp2], communication: fake, parity: true", "where nothing is sent nothing is proven"),
        ("layouts: [tp1], fake_rank: 0", "with communication: real every rank of a layout is run"),
        ("layouts: [dp2], communication: fake, trainer: plain_ddp", "runs the step of ours, and not that of plain_ddp"),
        ("layouts: [dp2+ep2], shape: moe-tiny, communication: fake", "brings no data from other ranks: routing real"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(SuiteError, match=why):
        plan_of(tmp_path, line)


def test_it_is_no_benchmark_that_a_suite_can_name(tmp_path: Path) -> None:
    path = suite(tmp_path, "iterations: 1")
    path.write_text(path.read_text().replace("train_step", "rank_step"))
    with pytest.raises(SuiteError, match="'communication: fake' makes its cases of train_step's"):
        make_plan(load_suite(path), ONE)


# What is run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process runs a rank of layouts of two, beside a step that needs no other."""
    folder = tmp_path_factory.mktemp("alone")
    fake = f"{SMALL.removesuffix(', parity: false')}, communication: fake"
    path = suite(folder, f"layouts: [tp1], {SMALL}", f"layouts: [tp2+sp, pp2, cp2, dp2+zero1], {fake}")
    command = [sys.executable, "-m", "clusterbench.cli", "run", str(path), "--device", "cpu", "--num-ranks", "1"]
    ended = subprocess.run(
        [*command, "--out", str(folder / "run")], cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "with communication: fake (one rank alone, nothing sent)" in ended.stdout + ended.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def reading(run: Path) -> Reading:
    return read(RunFolder.open(run))


@pytest.mark.in_turn
@pytest.mark.gloo
def test_every_step_ends_finite_and_says_that_nothing_was_sent(reading: Reading) -> None:
    alone = reading.lone_ranks
    assert [history.case.point["layout"] for history in alone] == ["tp2+sp", "pp2", "cp2", "dp2+zero1"]
    assert {history.status for history in reading.histories} == {"ok"}, "a loss that is not finite is wrong"
    for history in alone:
        rows = [row for row in reading.by_case[history.case.id] if not row.metric.startswith("time_")]
        assert {row.detail["source"] for row in rows} == {"nothing sent"}
        (time,) = (row for row in rows if row.metric == "rank_time")
        assert time.value
        assert "alone: nothing was sent" in time.basis


@pytest.mark.gloo
def test_its_collectives_bytes_and_flops_are_those_of_the_formulas(reading: Reading) -> None:
    for history in reading.lone_ranks:
        rows = reading.by_case[history.case.id]
        for metric in ("collectives", "traffic_bytes", "executed_flops_per_rank"):
            found = {row.detail.get("axis"): (row.value, row.expected) for row in rows if row.metric == metric}
            assert found
            assert all(value == expected for value, expected in found.values()), (history.case.id, metric, found)


@pytest.mark.in_turn
@pytest.mark.gloo
def test_it_holds_what_the_same_rank_holds_in_a_dry_run(reading: Reading) -> None:
    for history in reading.lone_ranks:
        point, rows = history.case.point, reading.by_case[history.case.id]
        job, every, rank = job_of(point), from_options(point), rank_of(point)
        (dry,) = dry_ranks(Ours(), job, every, str(point["rank_order"]), [rank])
        held = {row.detail["category"]: row.value for row in rows if row.metric == "peak_memory"}
        assert held["total"] == pytest.approx(dry.memory["total"], rel=0.002), history.case.id
        for state in ("parameters", "gradients", "optimizer_state"):
            assert held[state] == dry.memory[state], (history.case.id, state)


SPEEDS = {"tokens_per_s", "tokens_per_s_per_rank", "mfu", "hfu", "model_flops_per_s_per_rank", "step_time"}
SPEEDS |= {"scaling_efficiency", "scaling_loss_part", "energy_per_token", "executed_flops_per_s_per_rank", "agreement"}


@pytest.mark.gloo
def test_it_has_no_speed_and_is_in_no_ranking_heatmap_or_scaling(reading: Reading) -> None:
    alone = {history.case.id for history in reading.lone_ranks}
    assert not {row.metric for row in reading.rows if row.case in alone} & SPEEDS
    assert {case.row.point["layout"] for case in reading.trained} == {"tp1"}
    assert {name for name in charts() if shown(name, reading) & alone} <= {"lone_rank", "traffic", "stability"}, (
        "these show each case by itself, or hold it against its own formula"
    )


def shown(chart: str, reading: Reading) -> set[str]:
    """The cases that a chart shows."""
    kind: Any = charts()[chart]()
    data = kind.select(reading)
    panels = [] if data is None else kind.draw(data)
    stories = [entry.story for panel in panels for entry in panel.entries if entry.story is not None]
    entries = {entry.case for panel in panels for entry in panel.entries}
    return entries | {case for story in stories for case in story.cases}


@pytest.mark.gloo
def test_it_is_not_proven_which_is_no_failure(reading: Reading) -> None:
    judged = verdict(reading, examine(reading))
    assert judged.proven.word == "NOT PROVEN"
    assert "4 with communication: fake (one rank alone, nothing sent)" in judged.proven.sentence
    assert judged.exit_code == 0
    assert any(
        "communication: fake" in said and said.startswith("Speed of the layouts") for said in cannot_say(reading)
    )


@pytest.mark.gloo
def test_the_page_says_so_beside_its_answer_and_explains_the_word(run: Path) -> None:
    page = (run / "index.html").read_text()
    said = "One rank of a layout computed alone, and nothing was sent: its time is no speed of that layout."
    assert said in page.partition("<h2>Findings</h2>")[0]
    assert "<dt>Fake communication</dt>" in page


def test_it_has_no_dry_run(tmp_path: Path) -> None:
    (refusal,) = dry_plan(plan_of(tmp_path, "layouts: [tp2], communication: fake")).refusals
    assert refusal.reason.startswith("a rank that is to compute has no dry run")


@pytest.mark.gloo
def _at_another_time(history: History) -> History:
    """With the same figures, of calls of which nothing says when they were."""
    return replace(history, observations=tuple(replace(seen, timing=[]) for seen in history.observations))


def test_it_is_compared_with_no_other_run(reading: Reading) -> None:
    later = replace(reading, histories=tuple(map(_at_another_time, reading.histories)))
    compared = compare_readings(reading, later, "base", "new")
    assert {difference.case.split("/")[0] for difference in compared.differences} == {"train_step"}
    assert "4 cases of one rank that computed alone, with nothing sent, cannot be compared" in compared.cautions
    only = replace(reading, histories=tuple(reading.lone_ranks))
    with pytest.raises(SuiteError, match=r"nothing to compare\. 4 cases of one rank"):
        compare_readings(only, only, "base", "new")


def test_a_rate_that_is_derived_of_it_has_no_value() -> None:
    """Planted: nothing derives one."""
    case = Case("rank_step/1n1/tp8", "rank_step", 1, {}, "cpu", 1, 1, 1, 0, 60.0)
    planted = [Metric("tokens_per_s", "tokens/s", 5.0), Metric("mfu", "fraction", 0.5), Metric("rank_time", "s", 1.0)]
    assert [metric.value for metric in without_speed(planted, case, ONE)] == [None, None, 1.0]
    assert without_speed(planted, case, ONE)[0].basis == "void: one rank computed alone, and nothing was sent"
    shared = replace(ONE, device="cuda", ranks_per_gpu=2)
    assert [metric.value for metric in without_speed(planted, case, shared)] == [None, None, None]


# A group in which nothing is sent


def alone(layout: str, rank: int) -> Rig:
    rig = Rig(rank=0, world_size=1, local_rank=0, host="a", device=torch.device("cpu"))
    rig.be_one_of(ParallelLayout.parse(layout), rank, "megatron")
    return rig


def results_of(layout: str, rank: int) -> dict[str, Any]:
    rig = alone(layout, rank)
    group = rig.communicator("tp")
    own, nothing = torch.arange(4.0), torch.full((4,), float("nan"))
    gathered, part, swapped = torch.full((8,), float("nan")), torch.full((2,), float("nan")), nothing.clone()
    group.all_gather(gathered, own)
    group.reduce_scatter(part, own)
    group.all_to_all(swapped, own)
    received = nothing.clone()
    dist.recv(received, src=1 - rank)
    first = received.clone()
    dist.recv(received, src=1 - rank)
    return {
        "gathered": gathered.tolist(),
        "part": part.tolist(),
        "swapped": swapped.tolist(),
        "received": bool(first.isfinite().all()) and len(set(first.tolist())) == 4,
        "again": torch.equal(first, received),
        "ranks": (dist.get_rank(), dist.get_world_size()),
    }


@pytest.mark.gloo
def test_what_others_would_send_is_a_copy_of_the_own_part_and_a_message_is_noise() -> None:
    (seen,) = run_ranks(1, results_of, "tp2", 1)
    assert seen == {
        "gathered": [0, 1, 2, 3, 0, 1, 2, 3],
        "part": [2, 3],
        "swapped": [0, 1, 2, 3],
        "received": True,
        "again": True,
        "ranks": (1, 2),
    }


def results_written_here() -> dict[str, Any]:
    """As on a torch whose fake group writes nothing."""
    fake_group._gives_numbers = lambda world_size: False
    rig = alone("tp2", 1)
    assert rig.grid is not None
    group = rig.grid.group("tp")
    lost, given = torch.full((2,), float("nan")), torch.arange(4.0)
    operator = fake_results._into(lambda result, whole, *more: "work")
    work = operator(lost, given)
    listed = torch.full((2,), float("nan"))
    operator([listed], [given])
    returned = fake_results._returning(lambda whole, *more: torch.full((4,), float("nan")))(given)

    @torch.compile
    def compiled(x: Tensor) -> Tensor:
        return functional.reduce_scatter_tensor(2 * x, "sum", 0, group) + 1

    with TrafficCounter() as counter:
        through = compiled(given)
    return {
        "into": (work, lost.tolist(), listed.tolist()),
        "returned": returned.tolist(),
        "compiled": through.tolist(),
        "counted": [each.op for each in counter.collectives],
    }


@pytest.mark.in_turn
@pytest.mark.gloo
def test_where_a_fake_group_writes_nothing_operators_give_a_part_of_what_was_given() -> None:
    (seen,) = run_ranks(1, results_written_here)
    assert seen["into"] == ("work", [0, 1], [0, 1])
    assert seen["returned"] == [0, 1, 2, 3]
    assert seen["compiled"] == [1, 3]
    assert seen["counted"] == ["reduce_scatter"]


def norms_of_own_vocabulary_and_of_all() -> list[float]:
    rig, job = alone("tp2+sp", 0), make_job("tp2+sp", shape="llama-tiny", seq_len=64, global_batch_size=2)
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    norms = []
    for batches in (of_own_vocabulary(step.micro_batches, job, 0), step.micro_batches):
        step.micro_batches = batches
        step()
        assert step.last_norm is not None
        norms.append(float(step.last_norm))
    return norms


@pytest.mark.gloo
def test_tokens_that_no_rank_embeds_would_make_gradients_grow_beyond_measure() -> None:
    ((own, every),) = run_ranks(1, norms_of_own_vocabulary_and_of_all)
    assert own < 100
    assert every > 1e6


def test_tokens_of_the_own_vocabulary_are_the_ranks_part() -> None:
    job = make_job("tp2", shape="llama-tiny")
    half = job.shape.vocab_size // 2
    batch = [(torch.arange(2 * half), torch.arange(2 * half).flip(0))]
    for rank in (0, 1):
        ((inputs, labels),) = of_own_vocabulary(batch, job, rank)
        assert {int(part) for tokens in (inputs, labels) for part in tokens // half} == {rank}


def test_operators_that_launch_are_counted_and_views_are_not() -> None:
    assert count_operators(lambda: torch.ones(4).view(2, 2).mul(2).t().add(1)) == 3
