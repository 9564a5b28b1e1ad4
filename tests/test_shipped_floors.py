"""The floors of the shipped suites, on invented runs of every GPU suite at published speeds and at half of them.

Typical speeds are those of ``hardware/typical``; of memory 0.8 of the data sheet, which is what aiconfigurator
multiplies it by (systems/*.yaml, mem_bw_empirical_scaling_factor). No speed follows from a floor. What further
publications found on healthy machines must meet the floors, too.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from clusterbench import derive
from clusterbench.benchmarks import Benchmark, benchmarks, same_work
from clusterbench.cases import Reading
from clusterbench.cluster import Cluster, accelerators
from clusterbench.diagnoses import Answer, examine
from clusterbench.diagnoses.floor import Floor
from clusterbench.errors import SuiteError
from clusterbench.floors import is_meant
from clusterbench.formulas.transformer import model_flops_per_token
from clusterbench.planning import make_plan
from clusterbench.planning.typical import typical_of
from clusterbench.run_folder import RunFolder
from clusterbench.shape import named_shape
from clusterbench.suite import Suite, load_suite
from clusterbench.types import SAMPLES, Case, Observation, Outcome, Place, Plan
from clusterbench.verdict import Verdict, verdict
from tests.report.synthetic import outcome
from tests.share import some_of

SUITES = sorted(Path(__file__).parents[1].glob("suites/*.yaml"))
OF_THE_BEST = {"engines", "pp_schedules", "pp_vs_zero3", "top_configs", "zero_stages"}
"""Those that ask of the best of cases that train the same."""
WITH_FLOORS = OF_THE_BEST | {
    *("acceptance", "compute", "fabric", "gpu_direct", "links", "nccl_collectives", "rdma", "recompute", "tp_scale")
}
MEMORY_SHARE = 0.8
OTHERS_SHARE = 0.45
"""Of the best one's speed: that of all others that train the same. It is below every floor."""
UNKNOWN = "NVIDIA L41S"

TRAINING = {
    *("compression", "cp_scale", "ep_scale", "input_pipeline", "layouts_5d", "memory_savings", "rank_order"),
    "sp_scale",
}
ONE_GPU = {"one_gpu", "one_gpu_ceilings", "one_gpu_fake", "one_gpu_memory", "one_gpu_ranks", "one_gpu_smoke"}
WITHOUT = TRAINING | ONE_GPU | {"calibrate", "embedding", "faults", "mpi", "nccl_tuning", "storage"}


@cache
def loaded(name: str) -> Suite:
    return load_suite(Path(__file__).parents[1] / "suites" / f"{name}.yaml")


def plan_on(suite: str, gpu: str | None) -> Plan:
    """A host with as many of these GPUs as its published figures are of; of a suite for two nodes, two."""
    num_nodes = 2 if suite == "rdma" else 1
    plan = make_plan(
        loaded(suite), Cluster(num_nodes, 4 if gpu == "NVIDIA GB200" else 8, "cuda", gpu, hosts=("a", "b"))
    )
    cases = tuple(replace(case, repeats=1) for case in plan.cases if case.floors)
    # each case once, not again and again for a time: a run that ends before it is over is incomplete
    return replace(plan, repeats=1, for_s=0.0, cases=cases, refusals=())


def speed(case: Case, place: Place) -> float | None:
    """What is published of the figure that a case's floor is about."""
    sheet = place.cluster.accelerator
    if case.benchmark == "device_copy" and case.expected and sheet and sheet.memory_bytes_per_s:
        return MEMORY_SHARE * sheet.memory_bytes_per_s
    (figure,) = [*typical_of(case.benchmark, case.point, place).values()] or [None]
    return None if figure is None else figure.value


def observed(case: Case, place: Place, value: float) -> Observation:
    """A record of a case whose figure with a floor is so high: by its time, or as a program prints it."""
    metric = case.floors[0].metric
    record = Observation(case.id, case.hash, 0, 1, ("a",), [[1.0] * 20] * case.world_size)
    kind: type[Benchmark] = benchmarks()[case.benchmark]
    figures = kind.derive(case, record, place)
    in_a_second = [figure.value for figure in figures if is_meant(metric, figure.key) and figure.value]
    if in_a_second:
        # of 20 iterations, which differ by a percent
        times_s = [in_a_second[0] / value * (1 + 0.005 * (number % 3 - 1)) for number in range(20)]
        return replace(record, seconds=[times_s] * case.world_size)
    key = "copy_bandwidth[category=peer,part=1,source=0]" if case.benchmark == "peer_copy" else metric
    samples = [{key: [value]}, *({} for _ in range(case.world_size - 1))]
    return replace(record, passes={SAMPLES: samples})


def relative_speeds(suite: str, cases: Sequence[Case]) -> Iterator[float]:
    """Of published speed. Of cases that train the same the third has it, and the first finds no room: 0."""
    seen: Counter[object] = Counter()
    for case in cases:
        seen[same_work(case)] += 1
        number = seen[same_work(case)] if suite in OF_THE_BEST else 3
        yield {1: 0.0, 3: 1.0}.get(number, OTHERS_SHARE)


def invented(folder: Path, suite: str, gpu: str | None, share: float) -> tuple[Reading, set[str]]:
    """A run of the cases that a suite has floors for, and the cases that have, times ``share``, a published speed."""
    plan = plan_on(suite, gpu)
    RunFolder.create(folder, b"suite: s\n", plan, {})
    known: set[str] = set()
    records: list[tuple[Outcome, Observation | None]] = []
    for case, relative in zip(plan.cases, relative_speeds(suite, plan.cases), strict=True):
        place = Place(plan.cluster, case.num_nodes)
        typical = speed(case, place)
        known |= {case.id} if typical and relative == 1 else set()
        seen = observed(case, place, relative * share * (typical or 1e9)) if relative else None
        records.append((outcome(case, "ok" if seen else "out_of_memory"), seen))
    # at once: of thousands of records each would wait for the disk
    for name, column in zip(("outcomes.jsonl", "observations.jsonl"), zip(*records, strict=True), strict=True):
        (folder / name).write_text("".join(json.dumps(record, default=vars) + "\n" for record in column if record))
    return derive.read(RunFolder.open(folder)), known


def judged(reading: Reading) -> tuple[Answer, Verdict]:
    """The floors' answer, and the verdict of a run of which nothing else is judged."""
    answer = Floor().answer(reading)
    others = {name: Answer() for name in examine(replace(reading, histories=(), rows=[]))}
    return answer, verdict(reading, {**others, "floor": answer})


OFTEN = ("a100-sxm4-80gb", "h100-sxm-80gb", "mi300x")
ON_GPUS = [
    (suite, card.nvml_names[0])
    for card in accelerators().values()
    for suite in sorted(WITH_FLOORS)
    if card.name in OFTEN or suite in ("fabric", "compute")
]
"""Each suite with floors on three GPUs, and the two acceptance suites and compute on all others."""

UNPUBLISHED = [
    *((suite, gpu) for suite in sorted(OF_THE_BEST) for gpu in ("AMD Instinct MI300X", "NVIDIA H200")),
    ("rdma", "AMD Instinct MI300X"),
    ("fabric", "NVIDIA H100 NVL"),
]
"""Those of which nothing is published that a floor could follow from."""


@pytest.mark.parametrize(("suite", "gpu"), UNPUBLISHED)
def test_nothing_is_judged_where_nothing_is_published(tmp_path: Path, suite: str, gpu: str) -> None:
    reading, known = invented(tmp_path / "run", suite, gpu, 0.001)
    answer, found = judged(reading)
    assert known == set()
    assert (answer.findings, answer.healthy) == ((), ())
    assert answer.not_judged
    assert found.machine.word == "NOT JUDGED"


def test_every_suite_is_one_with_floors_or_one_without() -> None:
    assert {path.stem for path in SUITES} == WITH_FLOORS | WITHOUT
    for name in WITH_FLOORS:
        assert plan_on(name, "NVIDIA H100 80GB HBM3").cases
    for path in SUITES:
        assert "at_least" not in path.read_text() or path.stem in WITH_FLOORS


@pytest.mark.parametrize(("suite", "gpu"), some_of([pair for pair in ON_GPUS if pair not in UNPUBLISHED], ", ".join))
def test_at_typical_speed_all_is_met_and_at_half_each_is_missed(tmp_path: Path, suite: str, gpu: str) -> None:
    reading, known = invented(tmp_path / "typical", suite, gpu, 1.0)
    answer, found = judged(reading)
    assert answer.findings == ()
    assert answer.healthy[0].startswith(f"{len(known)} floor")
    assert set(found.failing) <= {"not-judged"}
    assert found.exit_code == bool(answer.not_judged and reading.plan.fail_on)
    reading, known = invented(tmp_path / "half", suite, gpu, 0.5)
    answer, found = judged(reading)
    assert {finding.where.partition(",")[0] for finding in answer.findings} == known
    assert (found.machine.word, found.exit_code) == ("SUSPECT", 1)
    for case in known:
        assert any(case in title for title in (found.machine.parts or {})["suspects"])


@pytest.mark.parametrize("suite", sorted(WITH_FLOORS))
@pytest.mark.parametrize("gpu", [UNKNOWN, None])
def test_another_gpu_is_not_judged_and_that_is_said(tmp_path: Path, suite: str, gpu: str | None) -> None:
    answer, found = judged(invented(tmp_path / "run", suite, gpu, 0.001)[0])
    assert (answer.findings, answer.healthy) == ((), ())
    assert answer.not_judged
    assert all(gpu is None or UNKNOWN in part.why for part in answer.not_judged)
    assert found.machine.word == "NOT JUDGED"
    assert found.exit_code == (suite in ("acceptance", "fabric", "links")), (
        "acceptance suites fail on what is not judged"
    )


@pytest.mark.parametrize("suite", sorted(WITH_FLOORS))
def test_cpu_forms_have_no_floors(suite: str) -> None:
    made = make_plan(loaded(suite), Cluster(1, loaded(suite).cpu.num_ranks or 2, "cpu"))
    assert [case.id for case in made.cases if case.floors] == []


PUBLISHED = [
    # Ultra-Scale Playbook, all_reduce of 256 MB on one node of 8 H100: median 436 GB/s, 5th percentile 422
    ("NVIDIA H100 80GB HBM3", "all_reduce", 422.3e9),
    # Azure's own limits for nodes in service: check_nccl_allreduce of 16 GiB
    ("NVIDIA A100-SXM4-80GB", "all_reduce", 228e9),
    ("NVIDIA H200", "all_reduce", 431e9),
    # ROCm Validation Suite, conf/MI300X and MI325X, gst_single.conf, bfloat16 at both data patterns
    ("AMD Instinct MI300X", "matmul", 552e12),
    ("AMD Instinct MI325X", "matmul", 554e12),
    # gist.github.com/Chillee/2ec89696db8b7ed1c24461159e325405, one product of bfloat16 in torch
    ("NVIDIA H100 80GB HBM3", "matmul", 780e12),
    # NVIDIA's blog on nvbandwidth: host_to_device_memcpy_ce of an H100, 55.63 GB/s
    ("NVIDIA H100 80GB HBM3", "host_copy", 55.63e9),
]


@pytest.mark.parametrize(("gpu", "benchmark", "value"), PUBLISHED)
def test_what_others_found_on_healthy_machines_meets_the_floors(gpu: str, benchmark: str, value: float) -> None:
    suite = {"all_reduce": "fabric", "matmul": "compute", "host_copy": "compute"}[benchmark]
    bounds = [
        floor.bound
        for case in plan_on(suite, gpu).cases
        if case.benchmark == benchmark
        for floor in case.floors
        if floor.bound is not None
    ]
    assert bounds
    assert max(bounds) < value


TRAINED = [
    # torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 1: eager FSDP at 8,192 tokens, cards held at 500 W
    ("NVIDIA H100 80GB HBM3", "llama-8b", "llama-8b", 8192, 5762),
    # Ultra-Scale Playbook, micro-batches of one sequence: DDP, ZeRO-1, tp2-dp4, pp8
    ("NVIDIA H100 80GB HBM3", "llama-1b", "playbook-1b", 4096, 39273),
    ("NVIDIA H100 80GB HBM3", "llama-3b", "playbook-3b", 4096, 16341),
    ("NVIDIA H100 80GB HBM3", "llama-8b", "playbook-8b", 4096, 7141),
    ("NVIDIA H100 80GB HBM3", "playbook-8b", "playbook-8b", 4096, 6807),
]
"""The floor of a shape, and tokens/s per GPU that others saw of a shape and length."""


@pytest.mark.parametrize(("gpu", "shape", "trained", "seq_len", "tokens_per_s"), TRAINED)
def test_what_others_trained_with_meets_the_floors_by_a_quarter(
    gpu: str, shape: str, trained: str, seq_len: int, tokens_per_s: float
) -> None:
    bounds = {
        floor.bound
        for suite in OF_THE_BEST
        for case in plan_on(suite, gpu).cases
        if case.point["shape"] == shape
        for floor in case.floors
    }
    (bound,) = bounds
    sheet = Cluster(1, 8, "cuda", gpu).accelerator
    assert bound is not None
    assert sheet is not None
    flops_per_s = tokens_per_s * model_flops_per_token(named_shape(trained), seq_len)
    assert flops_per_s / sheet.peak_flops_per_s["bfloat16"] > 1.25 * bound


def test_the_documentation_says_of_each_suite_without_floors_why() -> None:
    page = (Path(__file__).parents[1] / "docs" / "floors.md").read_text()
    said = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert said >= WITHOUT
    assert not said & WITH_FLOORS


def test_the_fastest_that_a_board_is_wired_for_is_not_asked_of_another() -> None:
    """Pairs on a host with four GPUs have a third of the links: published figures of eight say nothing of them."""
    for count in (1, 2, 4):
        plan = make_plan(loaded("fabric"), Cluster(1, count, "cuda", "NVIDIA H100 80GB HBM3"))
        bounds = {(case.benchmark, floor.bound) for case in plan.cases for floor in case.floors}
        known = {benchmark for benchmark, bound in bounds if bound is not None}
        assert known == {"device_copy", "matmul"}


@pytest.mark.parametrize("suite", ["acceptance", "fabric", "links"])
def test_on_several_hosts_each_floor_of_an_acceptance_suite_has_a_reference(suite: str) -> None:
    """Of fabric's collectives over two hosts and more nothing is published: no such machine could be accepted.

    What each host does by itself is judged on all of them, and not on the first alone.
    """
    plan = make_plan(loaded(suite), Cluster(4, 8, "cuda", "NVIDIA H100 80GB HBM3"))
    bounds: dict[tuple[str, str, int], list[float | None]] = defaultdict(list)
    for case in plan.cases:
        for floor in case.floors:
            bounds[case.benchmark, floor.metric, case.num_nodes].append(floor.bound)
    assert [about for about, of_all in bounds.items() if not any(of_all)] == []
    assert 4 in {num_nodes for benchmark, _, num_nodes in bounds if benchmark in ("all_reduce", "peer_copy")}


def test_a_figure_of_one_host_holds_for_each_of_several_that_talk_within_themselves() -> None:
    point = {"size_bytes": 2**28, "dtype": "bfloat16", "axis": "tp", "layout": "dp4-tp8", "group_size": 8}
    hosts = Place(Cluster(4, 8, "cuda", "NVIDIA H100 80GB HBM3"), 4)
    assert typical_of("all_reduce", point, hosts) == typical_of("all_reduce", point, replace(hosts, num_nodes=1))
    others = [{"axis": "dp"}, {"group_size": 4}, {"group_size": 16}, {"rank_order": "torchtitan"}]
    assert typical_of("all_reduce", point, hosts)
    assert [typical_of("all_reduce", {**point, **other}, hosts) for other in others] == [{}] * 4
    of_two = Place(Cluster(8, 4, "cuda", "NVIDIA H100 80GB HBM3"), 8)
    assert typical_of("all_reduce", point, of_two) == {}


def test_a_suite_for_two_nodes_cannot_be_planned_on_one() -> None:
    with pytest.raises(SuiteError):
        make_plan(loaded("rdma"), Cluster(1, 8, "cuda", "NVIDIA H100 80GB HBM3"))
