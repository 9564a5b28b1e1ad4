"""``at_least`` and ``at_most`` in a suite: how they are written, what they come to, and that a run keeps them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.cli import main
from clusterbench.cluster import Cluster
from clusterbench.errors import SuiteError
from clusterbench.planning import make_plan
from clusterbench.planning.text import plan_text
from clusterbench.planning.typical import typical_figures
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from clusterbench.types import Floor, MetricKind, Plan, split_key
from clusterbench.verdict import verdict
from tests.invented import HEAD, Ping
from tests.report.synthetic import good_run

H100 = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True, kw_only=True)
class Rated(Ping):
    """A ping that says what it yields."""

    metrics = (
        MetricKind("latency", "s", "lower", "of one"),
        MetricKind("rate", "B/s", "higher", "of all"),
        MetricKind("share", "fraction", "higher", "of the peak"),
        MetricKind("size", "B", "lower", "held"),
        MetricKind("rings", "1", "neither", "of the communicator"),
    )
    predicts = ("latency",)


KINDS = {"rated": Rated, "ping": Ping}
ITEM = HEAD + "  - benchmark: rated\n"


def planned(folder: Path, text: str, device: Any = "cuda", num_nodes: int = 1, kinds: Any = KINDS) -> Plan:
    path = folder / "s.yaml"
    path.write_text(text)
    return make_plan(load_suite(path, kinds), Cluster(num_nodes, 8, device))


def floors(folder: Path, text: str, **where: Any) -> list[Floor]:
    return [floor for case in planned(folder, text, **where).cases for floor in case.floors]


@pytest.mark.parametrize(
    ("line", "metric", "bound", "basis"),
    [
        ("at_least: {rate: 200 GB/s}", "rate", 200e9, "the suite's own figure"),
        ("at_most: {latency: 3 ms}", "latency", 0.003, "the suite's own figure"),
        ("at_most: {latency: 1.5 of expected}", "latency", 12e-6, "8.00 us: one microsecond a rank"),
        ("at_least: {share: 40 %}", "share", 0.4, "the suite's own figure"),
        ("at_least: {share: 0.4}", "share", 0.4, "the suite's own figure"),
        ("at_most: {size: 2GiB}", "size", 2.0**31, "the suite's own figure"),
        ("at_least: {rings: 16}", "rings", 16.0, "the suite's own figure"),
        ("at_most: {rings: 16}", "rings", 16.0, "the suite's own figure"),
        ("at_least:\n      share[axis=tp,part=a b]: 0.4", "share[axis=tp,part=a b]", 0.4, "the suite's own figure"),
    ],
)
def test_a_floor_comes_to_a_bound_with_its_reason(
    tmp_path: Path, line: str, metric: str, bound: float, basis: str
) -> None:
    (first, *others) = floors(tmp_path, ITEM + f"    {line}\n")
    assert (first.metric, first.bound, first.basis) == (metric, pytest.approx(bound), basis)
    assert len(others) == 1, "of each of the two cases"
    assert first.words == f"{metric} {line[:8].strip(':').replace('_', ' ')} {first.asked}"


SENTENCES = {
    "at_least: {rat: 1}": (
        "at_least: no metric 'rat'. Did you mean 'rate'?\nMetrics: latency, rate, rings, share, size."
    ),
    "at_least: {latency: 3 ms}": (
        "at_least: 'latency' under 'at_least', but its better side is lower: write it under 'at_most'."
    ),
    "at_most: {rate: 3 GB/s}": (
        "at_most: 'rate' under 'at_most', but its better side is higher: write it under 'at_least'."
    ),
    "at_least: {rate: 3 ms}": (
        "at_least: 'rate: 3 ms', which is in bytes per second: write a number with TB/s, GB/s, MB/s, kB/s or B/s, or a "
        "share such as '0.8 of baseline'."
    ),
    "at_least: {rate: 200}": (
        "at_least: 'rate: 200', which is in bytes per second: write a number with TB/s, GB/s, MB/s, kB/s or B/s, or a "
        "share such as '0.8 of baseline'."
    ),
    "at_most: {latency: fast}": (
        "at_most: 'latency: fast', which is in seconds: write a number with s, ms or us, or a share such as "
        "'0.8 of expected'."
    ),
    "at_least: {share: true}": (
        "at_least: 'share: True', which is in a part of one: write a number with % or without a unit, or a share such "
        "as '0.8 of baseline'."
    ),
    "at_most: {size: 2 GB}": (
        "at_most: 'size: 2 GB', which is in bytes: write a size such as 64MiB, or a share such as '0.8 of baseline'."
    ),
    "at_least: {rate: 0.8 of expected}": (
        "at_least: 'rate: 0.8 of expected', but it has no expectation of that metric: it has one of latency."
    ),
    "at_least: {rate: 0.8 of typicl}": (
        "at_least: 'rate: 0.8 of typicl': a share is one of expected, typical, baseline. Did you mean 'typical'?"
    ),
    "at_least: {rate: best 200 GB/s}": (
        "at_least: 'rate: best 200 GB/s', but it has no two ways to do the same work, of which one is the best: write "
        "'200 GB/s'."
    ),
    "at_least: {rate: 0 of typical}": (
        "at_least: 'rate: 0 of typical': the share must be above 0 and at most 100."
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", SENTENCES)
def test_a_mistake_is_one_sentence_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(SuiteError) as error:
        planned(tmp_path, ITEM + f"    {line}\n")
    assert str(error.value) == f"{tmp_path}/s.yaml:4: benchmark 'rated': {SENTENCES[line]}"
    assert error.value.exit_code == 2


def test_what_is_no_list_of_metrics_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"s.yaml:4: 'at_least' must be metrics and what is asked of each\."):
        planned(tmp_path, ITEM + "    at_least: 0.8 of expected\n")
    with pytest.raises(SuiteError, match="which is in bytes per second"):
        planned(tmp_path, ITEM + "    at_least: {rate: [1 GB/s, 2 GB/s]}\n")
    with pytest.raises(SuiteError, match="benchmark 'ping': at_least: no metric 'latency'"):
        planned(tmp_path, HEAD + "  - {benchmark: ping, at_least: {latency: 1 s}}\n")


def test_a_benchmark_without_expectations_says_so(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="it has no expectation of that metric: it has none of any metric"):
        planned(
            tmp_path, HEAD + "  - {benchmark: all_reduce, at_least: {busbw: 0.5 of expected}}\n", kinds=benchmarks()
        )


def test_floors_are_no_part_of_what_is_measured(tmp_path: Path) -> None:
    bare = planned(tmp_path, ITEM)
    asked = planned(tmp_path, ITEM + "    at_least: {rate: 1 GB/s}\n    at_most: {latency: 1.5 of expected}\n")
    assert [(case.id, case.hash) for case in asked.cases] == [(case.id, case.hash) for case in bare.cases]
    assert all(len(case.floors) == 2 for case in asked.cases)


def test_a_block_changes_a_floor_and_adds_others_on_its_device_alone(tmp_path: Path) -> None:
    text = ITEM + "    max_size: 8\n    at_least: {rate: 1 GB/s}\n    gpu: {at_least: {share: 0.4}}\n"
    text += "gpu:\n  rated: {at_least: {rate: 2 GB/s}}\n"
    assert [(floor.metric, floor.bound) for floor in floors(tmp_path, text)] == [("rate", 2e9), ("share", 0.4)]
    assert [(floor.metric, floor.bound) for floor in floors(tmp_path, text, device="cpu")] == [("rate", 1e9)]


def test_floors_for_a_device_leave_its_options_as_they_were_asked_for(tmp_path: Path) -> None:
    train = "  - benchmark: train_step\n    layouts: [dp2]\n    schedule: gpipe\n"
    for more in ("", "    gpu: {at_least: {tokens_per_s: 1 tokens/s}}\n"):
        with pytest.raises(SuiteError, match="option 'schedule' has no effect"):
            planned(tmp_path, HEAD + train + more, kinds=benchmarks())


def test_what_is_not_known_here_has_a_reason_in_place_of_a_bound(tmp_path: Path) -> None:
    text = (
        HEAD + "  - {benchmark: matmul, sizes: [8192], dtype: bfloat16, at_least: {flops_per_s_per_rank: 0.6 of %s}}\n"
    )
    asked = [
        (0.6 * 794.5e12, "typical", H100, "794.5 TFLOP/s: published by ml-engineering, mamf-finder"),
        (
            0.6 * 989e12,
            "expected",
            H100,
            "989.0 TFLOP/s: dense peak, an upper bound: NVIDIA H100 datasheet (its FLOP/s",
        ),
        (None, "typical", "NVIDIA L40S", "no published figure of it on 1 node x 8 GPUs (NVIDIA L40S) is on record"),
        (None, "typical", None, "no published figure of it on 1 node x 8 GPUs (unknown GPU) is on record"),
        (None, "expected", "NVIDIA L41S", "nothing is expected of it on 1 node x 8 GPUs (NVIDIA L41S)"),
    ]
    for bound, of, name, basis in asked:
        path = tmp_path / "s.yaml"
        path.write_text(text % of)
        for case in make_plan(load_suite(path), Cluster(1, 8, "cuda", name)).cases:
            (floor,) = case.floors
            assert floor.bound == (None if bound is None else pytest.approx(bound))
            assert floor.basis.startswith(basis)
    (floor,) = make_plan(load_suite(path), Cluster(1, 1, "cpu")).cases[0].floors
    assert (floor.bound, floor.basis) == (None, "nothing is expected of it on 1 node x 1 CPU rank")


def test_a_run_keeps_its_floors(tmp_path: Path) -> None:
    plan = planned(tmp_path, ITEM + "    at_least: {rate: 1 GB/s}\n    at_most: {latency: 1.5 of expected}\n")
    RunFolder.create(tmp_path / "run", b"suite: s\n", plan, {})
    lines = (tmp_path / "run" / "plan.jsonl").read_text().splitlines()
    kept = RunFolder.open(tmp_path / "run").plan()
    assert [case.floors for case in kept.cases] == [case.floors for case in plan.cases]
    old = [json.loads(line) for line in lines]
    for fields in old:
        fields.pop("floors", None)
    (tmp_path / "run" / "plan.jsonl").write_text("".join(json.dumps(fields) + "\n" for fields in old))
    older = RunFolder.open(tmp_path / "run")
    assert [case.floors for case in older.plan().cases] == [(), ()]
    assert older.problems == []


def test_a_run_keeps_what_is_asked_of_the_best(tmp_path: Path) -> None:
    text = TRAINED.format("best 0.6 of typical")
    plan = planned(tmp_path, text, kinds=benchmarks())
    path = RunFolder.create(tmp_path / "run", b"suite: s\n", plan, {}).path / "plan.jsonl"
    assert [case.floors for case in RunFolder.open(tmp_path / "run").plan().cases] == [
        case.floors for case in plan.cases
    ]
    assert all(floor.best for case in plan.cases for floor in case.floors)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for fields in lines[1:]:
        for floor in fields["floors"]:
            del floor["best"]
    path.write_text("".join(json.dumps(fields) + "\n" for fields in lines))
    older = RunFolder.open(tmp_path / "run")
    assert [floor.best for case in older.plan().cases for floor in case.floors] == [False] * len(plan.cases)
    assert older.problems == []


@pytest.mark.parametrize("damage", [{"metric": "rate[part"}, {"unit": "furlong"}])
def test_a_damaged_floor_is_named_and_its_case_left_out(tmp_path: Path, damage: dict[str, str]) -> None:
    plan = planned(tmp_path, ITEM + "    at_least: {rate: 1 GB/s}\n")
    path = RunFolder.create(tmp_path / "run", b"suite: s\n", plan, {}).path / "plan.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["floors"][0] |= damage
    path.write_text("".join(json.dumps(fields) + "\n" for fields in lines))
    run = RunFolder.open(tmp_path / "run")
    assert [case.id for case in run.plan().cases] == [plan.cases[1].id]
    assert run.problems[0].startswith("plan.jsonl:2 was left out: 'floors' asks for rate")


def test_the_plan_shows_what_is_asked(tmp_path: Path) -> None:
    text = ITEM + "    max_size: 8\n    at_least: {rate: 0.5 of typical}\n    at_most: {latency: 2 of expected}\n"
    lines = plan_text(planned(tmp_path, text)).splitlines()
    at = next(number for number, line in enumerate(lines) if "asked " in line and "bound" in line)
    shown = "\n".join(" ".join(line.split()) for line in lines[at:])
    assert "rated/1n8/8B rate at least 0.5 of typical not judged [1]" in shown
    assert "rated/1n8/8B latency at most 2 of expected 16.00 us [2]" in shown
    assert "# [1] no published figure of it on 1 node x 8 GPUs (unknown GPU) is on record" in shown
    assert "# [2] 8.00 us: one microsecond a rank" in shown


TRAINED = (
    "suite: s\nbenchmarks:\n  - benchmark: train_step\n    layouts: [dp8, tp8]\n    at_least: {{mfu: {}}}\n"
    "    shape: llama-8b\n    seq_len: 4096\n    dtype: bfloat16\n    global_batch_size: [8, 32]\n"
)


@pytest.mark.parametrize(
    ("written", "words", "bounds"),
    [
        ("best 0.6 of typical", "best mfu at least 0.6 of typical", (None, 0.6 * 0.4042)),
        ("best 40 %", "best mfu at least 40 %", (0.4, 0.4)),
        ("0.6 of typical", "mfu at least 0.6 of typical", (None, 0.6 * 0.4042)),
    ],
)
def test_a_floor_of_the_best_is_one_line_of_the_plan_for_all_that_train_the_same(
    tmp_path: Path, written: str, words: str, bounds: tuple[float | None, float]
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TRAINED.format(written))
    plan = make_plan(load_suite(path), Cluster(1, 8, "cuda", H100))
    asked = {case.point["global_batch_size"]: case.floors[0] for case in plan.cases}
    assert [asked[8].bound, asked[32].bound] == [bound and pytest.approx(bound) for bound in bounds]
    assert asked[8].words == (words if bounds[0] is None else asked[32].words)
    lines = [" ".join(line.split()) for line in plan_text(plan).splitlines() if " at least " in line]
    if asked[8].best:
        (first, second) = lines
        assert first.startswith(f"train_step/1n8/dp8-global_batch_size=8 and 1 more {asked[8].words} ")
        assert second.startswith(f"train_step/1n8/dp8-global_batch_size=32 and 1 more {asked[32].words} ")
    else:
        assert len(lines) == 4


def test_the_best_is_one_of_each_number_of_nodes(tmp_path: Path) -> None:
    text = TRAINED.format("best 40 %").replace("dp8, tp8", "dp*, dp*-tp8") + "num_nodes: [1, 2]\n"
    lines = plan_text(planned(tmp_path, text, num_nodes=2, kinds=benchmarks())).splitlines()
    assert [line.split()[0] for line in lines if " at least 40 % " in line] == [
        "train_step/1n8/dp8-global_batch_size=8",
        "train_step/1n8/dp8-global_batch_size=32",
        "train_step/2n16/dp2-tp8-global_batch_size=8",
        "train_step/2n16/dp16-global_batch_size=32",
    ]


# A baseline run

SHARE = "suite: s\nbaseline: {}\nbenchmarks:\n  - benchmark: matmul\n    sizes: [64]\n"
OF_BASELINE = SHARE + "    at_least: {{flops_per_s_per_rank: 0.9 of baseline}}\n"


def measured(folder: Path, time_s: float, suite: str) -> RunFolder:
    """A run of one rank whose every product took about so long."""
    from tests.report.synthetic import observation, outcome

    path = folder / "s.yaml"
    path.write_text(suite)
    plan = make_plan(load_suite(path), Cluster(1, 1, "cpu", hosts=("laptop",)))
    run = RunFolder.create(folder / f"run-{time_s:g}", path.read_bytes(), plan, {})
    for case in plan.cases:
        times_s = [time_s * (1 + 0.001 * (number % 3)) for number in range(20)]
        run.record(outcome(case), observation(case, [times_s]))
    return run


def test_a_share_of_a_baseline_run_is_judged_again_from_the_folder_alone(tmp_path: Path) -> None:
    base = measured(tmp_path, 0.01, SHARE.format("''").replace("baseline: ''\n", ""))
    for time_s, exit_code, words in ((0.0101, 0, "HEALTHY"), (0.02, 1, "SUSPECT")):
        run = measured(tmp_path, time_s, OF_BASELINE.format(base.path))
        (floor,) = run.plan().cases[0].floors
        assert floor.basis.endswith(f": median of 1 sample of {base.name}")
        assert floor.doubt > 0
        said = CliRunner().invoke(main, ["report", str(run.path)])
        assert (said.exit_code, words in said.output) == (exit_code, True), said.output
    assert "Floor: matmul/1n1/64-float32, flops_per_s_per_rank, 26.2 MFLOP/s, 44 % below 47.1 MFLOP/s" in said.output


def test_a_case_that_the_baseline_lacks_is_not_judged(tmp_path: Path) -> None:
    base = measured(tmp_path, 0.01, SHARE.format("''").replace("baseline: ''\n", "").replace("64", "128"))
    run = measured(tmp_path, 0.011, OF_BASELINE.format(base.path))
    (floor,) = run.plan().cases[0].floors
    assert (floor.bound, floor.basis) == (None, f"run {base.name} has no such figure of this case")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            SHARE.format("reports/x"),
            "s.yaml:2: 'baseline' has no effect: no floor under at_least or at_most is 'of baseline'.",
        ),
        (
            OF_BASELINE.format("reports/nowhere"),
            "s.yaml:2: 'baseline' must be a baseline's file or the folder of a run: ",
        ),
        (
            OF_BASELINE.format("x").replace("baseline: x\n", ""),
            "s.yaml:5: 'flops_per_s_per_rank: 0.9 of baseline' needs a baseline to hold it against.\n"
            "hint: write 'baseline: FILE' beside 'suite', or say --baseline FILE: what 'clusterbench baseline' "
            "wrote, or the folder of a run",
        ),
    ],
)  # fmt: skip
def test_a_baseline_is_there_where_it_is_asked_for_and_only_there(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SuiteError) as error:
        planned(tmp_path, text, kinds=benchmarks())
    assert sentence in str(error.value)


# What others published


def test_each_published_figure_is_of_a_metric_and_of_options_that_there_are() -> None:
    for figure in typical_figures():
        kind: type[Benchmark] = benchmarks()[figure.benchmark]
        units = {one.name: one.unit for one in kind.metrics}
        assert units[split_key(figure.metric)[0]] == figure.unit, figure
        assert figure.source
        assert min(figure.of.values()) > 0


def test_no_point_has_two_published_figures() -> None:
    for figure in typical_figures():
        for other in typical_figures():
            same = (figure.benchmark, figure.metric, figure.where) == (other.benchmark, other.metric, other.where)
            if figure is not other and same:
                assert not figure.of.keys() & other.of.keys(), (figure, other)


def test_the_verdict_of_a_run_without_floors_is_what_it_was(tmp_path: Path) -> None:
    from clusterbench import derive
    from clusterbench.diagnoses import examine

    read = derive.read(good_run(tmp_path / "run"))
    answers = examine(read)
    assert answers["floor"].state == "nothing to judge"
    assert "loor" not in verdict(read, answers).text()
    assert all(case == replace(case, floors=()) for case in read.plan.cases)
