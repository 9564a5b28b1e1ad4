"""Cases to ``index.html``: seconds, megabytes and memory, with a planted benchmark and with ``train_step`` itself.

Training steps show what their own figures cost, and those that need more than one case: with 20,000 of them nothing may
look at every pair. 100,000 planted ones show that a page of any size is made, and still answers when one searches it.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path

from playwright.sync_api import sync_playwright

from clusterbench.benchmarks.matmul import Matmul
from clusterbench.benchmarks.train_step import TrainStep, job_of
from clusterbench.cluster import Cluster
from clusterbench.expected.flops import executed_by_rank
from clusterbench.job.passes import AT_REST, EXECUTED, MEMORY, TRACE, TRAFFIC, Executed, Moved, TracedStep
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import active_in, from_options
from clusterbench.report import render_report
from clusterbench.run_folder import RunFolder
from clusterbench.types import Case, Expected, Observation, Outcome, Place, metric_key, split_key
from tests.bench import ROOT, Result, at_most
from tests.report.synthetic import case, observation, outcome, plant, write_run

CASES, MANY = 20_000, 100_000
FILTER_S, PATIENCE_S = 0.3, 180.0
_CLUSTER = Cluster(1, 4, "cpu", cpu_name="AMD EPYC 7763", hosts=("laptop",))

Record = tuple[Outcome, Observation | None]


@dataclass(frozen=True)
class Targets:
    """Seconds until the page is there, its megabytes, gigabytes of resident memory, seconds until rows.csv is there."""

    page_s: float
    page_mb: float
    memory_gb: float
    rows_s: float | None = None


PLANTED = Targets(10.0, 10.0, 2.0)
TRAINING = Targets(8.0, 10.0, 2.0, rows_s=11.0)
HUGE = Targets(25.0, 40.0, 1.2)


def measure() -> list[Result]:
    return [
        *_measure("report_planted", "planted", _planted_cases(CASES), _planted_records, PLANTED),
        *_measure("report_train_step", "real", training_cases(CASES), training_records, TRAINING),
        *_measure("report_100k", "planted", _planted_cases(MANY), _planted_records, HUGE),
    ]


def _measure(
    name: str,
    kind: str,
    cases: list[Case],
    records: Callable[[list[Case]], Iterable[Record]],
    targets: Targets,
) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        run = write(Path(folder) / "run", cases, records(cases))
        # In a process of its own, which can be given up, and whose memory is not full of what was written here.
        command = [sys.executable, "-m", "tests.bench.report_size", str(run.path), kind]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return [
                Result(name, PATIENCE_S, "s", targets.page_s, "missed", "given up: at least this"),
                Result(f"{name}_page", None, "MB", targets.page_mb, "undecided", "there is no page"),
            ]
        if done.returncode:
            raise RuntimeError(f"no report: {done.stderr.strip()[-2000:]}")
        elapsed_s, size_bytes, with_rows_s, memory_bytes = json.loads(done.stdout)
        filter_s, opened_s = search(run.path / "index.html", "dp4 tp2")
    return [
        at_most(name, elapsed_s, "s", targets.page_s, f"{len(cases):,} cases; {with_rows_s:.1f} s with rows.csv"),
        *([] if targets.rows_s is None else [at_most(f"{name}_with_rows", with_rows_s, "s", targets.rows_s)]),
        at_most(f"{name}_page", size_bytes / 1e6, "MB", targets.page_mb),
        at_most(f"{name}_memory", memory_bytes / 1e9, "GB", targets.memory_gb, "most resident memory, rows.csv in it"),
        at_most(f"{name}_filter", filter_s, "s", FILTER_S, f"two words; chromium opened the page in {opened_s:.1f} s"),
    ]


def search(page: Path, words: str) -> tuple[float, float]:
    """Seconds until the table of cases shows what was searched for, the slowest of five; and until the page stood."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        tab = browser.new_page()
        start_s = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_function("document.getElementById('shown').textContent !== ''")
        opened_s = time.perf_counter() - start_s
        slowest_ms = max(float(tab.evaluate(_SEARCH, words if number % 2 else "")) for number in range(6))
        browser.close()
    return slowest_ms / 1e3, opened_s


_SEARCH = """async (words) => {
  const start = performance.now();
  const field = document.getElementById("filter");
  field.value = words;
  field.dispatchEvent(new Event("input"));
  await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
  return performance.now() - start;
}"""


def _render(path: str, kind: str) -> None:
    if kind == "planted":
        plant()
    start_s = time.time()
    page = render_report(RunFolder.open(Path(path))).path.stat()
    # Until the page is there; rows.csv follows it.
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([page.st_mtime - start_s, page.st_size, time.time() - start_s, memory_bytes]))


def write(path: Path, cases: list[Case], records: Iterable[Record]) -> RunFolder:
    # Written in one go: RunFolder.record waits for the disk after each case, and that is not what is timed here.
    run = write_run(path, cases, [], cluster=_CLUSTER)
    with open(path / "outcomes.jsonl", "w") as outcomes, open(path / "observations.jsonl", "w") as observations:
        for ended, seen in records:
            outcomes.write(json.dumps(ended, default=vars) + "\n")
            if seen is not None:
                observations.write(json.dumps(seen, default=vars) + "\n")
    return run


# With the planted benchmark

_AXES = [str(ParallelLayout(pp=pp, dp=dp, tp=tp)) for pp in (1, 2, 4) for dp in (1, 2, 4) for tp in (1, 2, 4, 8)]


def _planted_cases(number: int) -> list[Case]:
    return [_planted_case(each) for each in range(number)]


def _planted_case(number: int) -> Case:
    layout = _AXES[number % len(_AXES)]
    if number % 7 == 0 and ("tp2" in layout or "tp4" in layout):
        layout += "+sp"
    point = {
        "shape": f"llama-{number % 5}b",
        "layout": layout,
        "seq_len": 1024 * (1 + number % 4),
        "global_batch_size": 8 + number // 144,
        "micro_batch_size": 1 + number % 3,
        "dtype": "bfloat16",
    }
    return case(
        f"{number}-{layout}",
        4,
        layout=layout,
        point=point,
        expected={"traffic_bytes[axis=tp]": Expected(2.0**24, "B", "formula")},
    )


def _planted_records(cases: list[Case]) -> Iterator[Record]:
    draw = random.Random(1)
    for number, planned in enumerate(cases):
        if number % 50 == 0:
            yield _out_of_memory(planned), None
            continue
        step_s = draw.uniform(0.2, 2.0)
        figures = [
            {"name": "tokens_per_s", "unit": "tokens/s", "value": 8e3 / step_s},
            {"name": "tokens_per_s_per_rank", "unit": "tokens/s", "value": 2e3 / step_s},
            {
                "name": "mfu",
                "unit": "fraction",
                "value": 0.4 / step_s,
                "detail": {"flops_convention": "palm", "peak": "datasheet"},
            },
            {"name": "peak_memory", "unit": "B", "value": 2.0**33 / step_s, "detail": {"category": "total"}},
            {"name": "peak_memory", "unit": "B", "value": 2.0**32 / step_s, "detail": {"category": "parameters"}},
            {"name": "peak_memory", "unit": "B", "value": 2.0**32 / step_s, "detail": {"category": "activations"}},
            {"name": "traffic_bytes", "unit": "B", "value": 2.0**24, "detail": {"axis": "tp"}},
            {"name": "scaling_efficiency", "unit": "fraction", "value": 0.5 / step_s},
        ]
        yield outcome(planned), observation(planned, _seconds(draw, step_s, 4), figures)


# With train_step, and the matmul whose rate its mfu is held against


def training_cases(number: int) -> list[Case]:
    return list(islice(_training_cases(), number))


def _training_cases() -> Iterator[Case]:
    """Every matmul, then layouts, shapes and batches, and all of them again with the next seed, without end."""
    place = Place(_CLUSTER, 1)
    matmul = Matmul(sizes=(1024,))
    for point in matmul.points(place):
        label, world_size = matmul.label(point), matmul.world_size(point, place)
        yield case(label, world_size, id=f"matmul/1n{world_size}/{label}", benchmark="matmul", point=point)
    variants = [
        (point, benchmark.predict(point, place))
        for shape in ("llama-tiny", "llama-small", "llama-1b", "llama-8b")
        for seq_len in (256, 512, 1024, 2048)
        for global_batch_size in (8, 16, 32, 64)
        for benchmark in (_train_step(shape, seq_len, global_batch_size),)
        for point in benchmark.points(place)
    ]
    numbers = count()
    for seed in count():
        for point, expected in variants:
            layout = point["layout"]
            world_size = ParallelLayout.parse(layout).world_size
            yield case(
                layout,
                world_size,
                id=f"train_step/1n{world_size}/{next(numbers)}-{layout}",
                benchmark="train_step",
                version=TrainStep.version,
                layout=layout,
                point={**point, "seed": seed},
                expected=expected,
            )


def _train_step(shape: str, seq_len: int, global_batch_size: int) -> TrainStep:
    layouts = ("tp1", "tp2", "tp2+sp", "tp4", "tp4+sp", "dp2", "dp4", "dp2-tp2", "dp2-tp2+sp")
    return TrainStep(shape=shape, seq_len=seq_len, global_batch_size=global_batch_size, layouts=layouts)


def training_records(cases: list[Case]) -> Iterator[Record]:
    draw = random.Random(1)
    for number, planned in enumerate(cases):
        if number % 50 == 49:
            yield _out_of_memory(planned), None
            continue
        step_s = draw.uniform(0.2, 2.0)
        seen = observation(planned, _seconds(draw, step_s, planned.world_size))
        if planned.benchmark == "train_step":
            evidence = {"parity_loss": 1e-8, "parity_gradients": 3e-7, "parity_parameters": 2e-5}
            traced = TracedStep(0.3 * step_s, 0.7 * step_s, 0.1 * step_s, overlap_fraction=2 / 3, step_s=step_s)
            passes = {
                MEMORY.name: _memory(planned),
                TRAFFIC.name: _traffic(planned),
                EXECUTED.name: _executed(planned),
                TRACE.name: traced,
            }
            seen = replace(
                seen,
                evidence=[evidence] * planned.world_size,
                passes={name: [record] * planned.world_size for name, record in passes.items()},
            )
        yield outcome(planned), seen


def _memory(planned: Case) -> dict[str, int]:
    """As expected, at its peak and at rest, and what nobody forecasts."""
    named = [(*split_key(key), int(value.value)) for key, value in planned.expected.items()]
    peaks = {detail["category"]: size for metric, detail, size in named if metric == "peak_memory"}
    at_rest = {detail["category"] + AT_REST: size for metric, detail, size in named if metric == "memory_at_rest"}
    return {"total": sum(peaks.values()), **peaks, **at_rest, "communication_buffers": 2**20, "temporary": 2**21}


def _traffic(planned: Case) -> list[Moved]:
    """As expected, in as many collectives: in others all of it would be void, and each case wrong."""
    expected = planned.expected
    axes = [split_key(key)[1]["axis"] for key in planned.expected_of("traffic_bytes")]
    sizes = [expected[metric_key("traffic_bytes", axis=axis)].value for axis in axes]
    counts = [int(expected[metric_key("collectives", axis=axis)].value) for axis in axes]
    return [
        Moved(axis, "all_reduce", count, int(size_bytes), size_bytes)
        for axis, count, size_bytes in zip(axes, counts, sizes, strict=True)
    ]


def _executed(planned: Case) -> list[Executed]:
    """As expected; none of the layouts has ranks that differ."""
    job = job_of(planned.point)
    flops = executed_by_rank(active_in(job.layout, from_options(planned.point)), job)
    return [Executed("aten::mm", *work, 100, number) for work, number in flops.items()]


# With both


def _seconds(draw: random.Random, step_s: float, world_size: int) -> list[list[float]]:
    return [[step_s * draw.gauss(1, 0.03) for _ in range(10)] for _ in range(world_size)]


def _out_of_memory(planned: Case) -> Outcome:
    rank = planned.world_size - 1
    return outcome(planned, "out_of_memory", reason=f"rank {rank} asked for 17 GiB", rank=rank, host="n1", phase="warm")


if __name__ == "__main__":
    _render(*sys.argv[1:])
