"""Small runs on disk with planted figures, for tests and for eyes: ``python -m tests.report.synthetic FOLDER``."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterbench.benchmarks import Benchmark
from clusterbench.cases import Reading
from clusterbench.cluster import Cluster
from clusterbench.rows import Row
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import History
from clusterbench.types import Case, Expected, Metric, Observation, Outcome, Place, Plan, Point, Refusal, Step

GIB, MIB = 2.0**30, 2.0**20


@dataclass(frozen=True, kw_only=True)
class Planted(Benchmark):
    """Yields its step time and whatever the test put into the pass ``figures``."""

    def points(self, place: Any) -> Iterable[Point]:
        return ()

    def label(self, point: Point) -> str:
        return ""

    @classmethod
    def prepare(cls, rig: Any, point: Point) -> Step:
        raise NotImplementedError

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        times_s = sorted(max(samples) for samples in zip(*observation.seconds, strict=True))
        yield Metric("step_time", "s", times_s[len(times_s) // 2], times_s[0], times_s[-1], len(times_s))
        for figure in observation.passes.get("figures", [[]])[0]:
            yield Metric(**figure)


def case(label: str, world_size: int = 4, **changes: Any) -> Case:
    """A case of the planted benchmark; ``changes`` are fields of Case."""
    fields: dict[str, Any] = {
        "id": f"planted/1n{world_size}/{label}",
        "benchmark": "planted",
        "version": 1,
        "point": {"label": label},
        "device": "cpu",
        "num_nodes": 1,
        "world_size": world_size,
        "iterations": 20,
        "warmup": 3,
        "time_limit_s": 60.0,
        "source": "suites/planted.yaml:7",
    }
    return Case(**{**fields, **changes})


def outcome(of: Case, status: Any = "ok", *, repeat: int = 0, attempt: int = 1, **changes: Any) -> Outcome:
    return Outcome(
        of.id, of.hash, repeat, attempt, status, **{"started": "2026-03-02T14:10:00", "elapsed_s": 2.5, **changes}
    )


def observation(
    of: Case,
    seconds: Sequence[Sequence[float]] | None = None,
    figures: Sequence[Mapping[str, Any]] = (),
    *,
    repeat: int = 0,
    attempt: int = 1,
    hosts: tuple[str, ...] = ("laptop",),
    **changes: Any,
) -> Observation:
    steady = [[0.010 + 0.0001 * (iteration % 3) for iteration in range(20)]] * of.world_size
    passes = {"figures": [list(figures), *([[]] * (of.world_size - 1))]}
    return Observation(of.id, of.hash, repeat, attempt, hosts, seconds or steady, passes=passes, **changes)


def write_run(
    path: Path,
    cases: Sequence[Case],
    records: Iterable[tuple[Outcome, Observation | None]],
    *,
    refusals: Sequence[Refusal] = (),
    question: str = "How fast is it?",
    suite: str = "planted",
    cluster: Cluster | None = None,
    environment: Mapping[str, Any] | None = None,
) -> RunFolder:
    cluster = cluster or Cluster(1, 4, "cpu", cpu_name="AMD EPYC 7763", hosts=("laptop",))
    repeats = max((planned.repeats for planned in cases), default=1)
    plan = Plan(suite, question, cluster, repeats, tuple(cases), tuple(refusals))
    run = RunFolder.create(path, b"suite: planted\n", plan, environment or {})
    for ended, seen in records:
        run.record(ended, seen)
    return run


def good_run(path: Path, cases: Sequence[Case] = (case("a"), case("b"))) -> RunFolder:
    """Everything as it should be."""
    return write_run(path, cases, [(outcome(planned), observation(planned)) for planned in cases])


ENVIRONMENT = {
    "clusterbench": "0.1.0",
    "hosts": {
        "laptop": {
            "cpu": "AMD EPYC 7763 64-Core Processor",
            "cores": 2,
            "memory": "23 GiB",
            "kernel": "6.8.0-45-generic",
            "python": "3.11.2",
            "variables": {"OMP_NUM_THREADS": "1"},
        }
    },
    "loaded": {"laptop": {"torch": "2.13.0", "gloo": "built in"}},
}

_SPEED = {"tp1": 5120, "tp2": 2810, "tp2+sp": 2640, "tp4": 1630, "tp4+sp": 1490, "tp8": 0, "tp8+sp": 610}
_PARTS = ("parameters", "gradients", "optimizer_state", "activations", "communication_buffers", "temporary")


def tp_scale_run(path: Path, noise: float = 0.02) -> RunFolder:
    """What ``suites/tp_scale.yaml`` looks like: tp1 to tp8 with and without SP, tp8 without memory, tp3 refused."""
    draw = random.Random(7)
    cases, records = [], []
    for layout, speed in _SPEED.items():
        degree, split = int(layout[2]), layout.endswith("+sp")
        expected = {
            f"peak_memory[category={part}]": Expected(size * 0.96, "B", "what the formula says")
            for part, size in list(_memory(degree, split).items())[:4]
        }
        expected |= {
            "traffic_bytes[axis=tp]": Expected(
                _traffic(degree), "B", "2 all-reduces a layer and direction, times 2(t-1)/t"
            ),
        }
        planned = case(
            layout,
            degree,
            id=f"train_step/1n{degree}/{layout}",
            layout=layout,
            repeats=3,
            expected=expected,
            expected_outcomes=("out_of_memory",),
            source="suites/tp_scale.yaml:12",
            point={
                "shape": "llama-tiny",
                "layout": layout,
                "seq_len": 256,
                "global_batch_size": 8,
                "micro_batch_size": 1,
                "dtype": "float32",
                "schedule": "1f1b",
                "recompute": "none",
            },
        )
        cases.append(planned)
        for repeat in range(3):
            if not speed:
                why = "rank 5 asked for 1.5 GiB and the host had 0.9 GiB left"
                ended = outcome(
                    planned,
                    "out_of_memory",
                    repeat=repeat,
                    reason=why,
                    rank=5,
                    host="laptop",
                    phase="rendezvous",
                    log="logs/start-0006-rank-0005.log",
                )
                records.append((ended, None))
                break
            step_s = 2048 / speed / degree
            shared = [step_s * draw.gauss(1, noise) for _ in range(20)]
            seconds = [[second * draw.gauss(1, 0.002) for second in shared] for _ in range(degree)]
            figures = _figures(degree, split, step_s)
            records.append((outcome(planned, repeat=repeat), observation(planned, seconds, figures, repeat=repeat)))
    refusal = Refusal(
        "train_step/1n3/tp3",
        "train_step",
        {"shape": "llama-tiny", "layout": "tp3"},
        1,
        "layout 'tp3' does not divide 8 query heads",
        "suites/tp_scale.yaml:12",
        "tp must divide heads and kv heads: 1, 2, 4 or 8",
    )
    return write_run(
        path,
        cases,
        records,
        refusals=[refusal],
        suite="tp_scale",
        question="How far does tensor parallelism scale, and what does sequence parallelism save?",
        cluster=Cluster(1, 8, "cpu", cpu_name="AMD EPYC 7763", hosts=("laptop",)),
        environment=ENVIRONMENT,
    )


def _memory(degree: int, split: bool) -> dict[str, float]:
    state = 22 * MIB / degree
    activations = 30 * MIB / degree + (12 * MIB / degree if split else 12 * MIB)
    sizes = (state, state, 2 * state, activations, 1.5 * MIB * (degree > 1), 3 * MIB)
    return dict(zip(_PARTS, sizes, strict=True))


def _traffic(degree: int) -> float:
    return 4 * 4 * 8 * 256 * 256 * 4 * 2 * (degree - 1) / degree


def _figures(degree: int, split: bool, step_s: float) -> list[dict[str, Any]]:
    speed = 2048 / step_s / degree
    figures: list[dict[str, Any]] = [
        {"name": "tokens_per_s", "unit": "tokens/s", "value": speed * degree},
        {
            "name": "tokens_per_s_per_rank",
            "unit": "tokens/s",
            "value": speed,
            "low": speed * 0.95,
            "high": speed * 1.04,
        },
        {
            "name": "mfu",
            "unit": "fraction",
            "value": 0.41 * speed / 5120,
            "detail": {"flops_convention": "palm", "peak": "measured"},
        },
        {
            "name": "mfu",
            "unit": "fraction",
            "value": None,
            "detail": {"flops_convention": "palm", "peak": "datasheet"},
            "basis": "A CPU has no peak FLOP/s on record, so mfu against a datasheet is left empty.",
        },
    ]
    for category, size in _memory(degree, split).items():
        figures.append({"name": "peak_memory", "unit": "B", "value": size, "detail": {"category": category}})
    total = 0.93 * sum(_memory(degree, split).values())
    figures.append({"name": "peak_memory", "unit": "B", "value": total, "detail": {"category": "total"}})
    figures.append({"name": "traffic_bytes", "unit": "B", "value": _traffic(degree), "detail": {"axis": "tp"}})
    figures.append({"name": "scaling_efficiency", "unit": "fraction", "value": speed / 5120})
    for name in ("parity_loss", "parity_gradients", "parity_parameters"):
        limit = {"expected": 1e-5, "basis": "float32 sums in another order"}
        figures.append({"name": name, "unit": "1", "value": 3.1e-7 * degree, **limit})
    return figures


def all_reduce_run(path: Path) -> RunFolder:
    """A sweep over message sizes on two hosts, with everything wrong that a diagnosis looks for."""
    draw, cases, records = random.Random(3), [], []
    for power in range(3, 29):
        size_bytes = 2**power
        planned = case(
            f"{size_bytes}B", 8, num_nodes=2, point={"size_bytes": size_bytes, "dtype": "float32"}, device="cuda"
        )
        cases.append(planned)
        if power == 20:
            why = "<script>alert('reason')</script> made no progress for 60 s"
            ended = outcome(
                planned, "timeout", reason=why, rank=5, host="gpu-02", phase="warm", log="logs/start-0001-rank-0005.log"
            )
            records.append((ended, None))
            continue
        time_s = 12e-6 + size_bytes * 1.75 / 350e9
        slow = [1.0] * 5 + [1.3] + [1.0] * 2
        seconds = [[time_s * factor * draw.gauss(1, 0.01) for _ in range(30)] for factor in slow]
        figures = [
            {"name": "latency", "unit": "s", "value": time_s, "low": time_s * 0.95, "high": time_s * 1.2},
            {
                "name": "busbw",
                "unit": "B/s",
                "value": size_bytes * 1.75 / time_s,
                "low": size_bytes * 1.6 / time_s,
                "high": size_bytes * 1.8 / time_s,
                "expected": 400e9 if power == 28 else None,
                "basis": "one direction of NVLink",
            },
        ]
        hot = {"gpu-02": {"GPU-77": {"index": 1, "throttle_reasons": {"hw_thermal_slowdown": 0.4}}}}
        records.append(
            (outcome(planned), observation(planned, seconds, figures, hosts=("gpu-01", "gpu-02"), telemetry=hot))
        )
    cluster = Cluster(2, 4, "cuda", "NVIDIA H100 80GB HBM3", hosts=("gpu-01", "gpu-02"))
    return write_run(
        path,
        cases,
        records,
        suite="fabric",
        question="Are all links as fast as they should be?",
        cluster=cluster,
        environment={"loaded": {"gpu-01": {"torch": "2.13.0", "cuda": "13.0", "nccl": "2.28.3", "driver": "580.65"}}},
    )


def plant() -> Callable[[], None]:
    """Makes the planted benchmark the only one that derive knows; what it returns undoes that."""
    patch = pytest.MonkeyPatch()
    for module in ("derive", "derive.figures", "derive.rows_of_cases"):
        patch.setattr(f"clusterbench.{module}.benchmarks", lambda: {"planted": Planted})
    return patch.undo


def reading(*records: tuple[Outcome, Observation | None], cases: Sequence[Case], rows: Sequence[Row] = ()) -> Reading:
    """What a diagnosis sees, without a disk."""
    histories = tuple(
        History(
            planned,
            tuple(ended for ended, _ in records if ended.hash == planned.hash),
            tuple(seen for ended, seen in records if seen is not None and ended.hash == planned.hash),
        )
        for planned in cases
    )
    plan = Plan("planted", "?", Cluster(1, 4, "cpu"), 1, tuple(cases), ())
    return Reading("run", plan, histories, list(rows))


def of_rows(rows: Iterable[Row]) -> Reading:
    """What a chart sees where rows are all that it looks at."""
    return reading(cases=[], rows=list(rows))


def row(of: Case, metric: str = "step_time", value: float | None = 1.0, **changes: Any) -> Row:
    fields: dict[str, Any] = {
        "run": "run",
        "case": of.id,
        "benchmark": of.benchmark,
        "version": 1,
        "status": "ok",
        "point": of.point,
        "num_nodes": of.num_nodes,
        "world_size": of.world_size,
        "hosts": "laptop",
        "device": of.device,
        "metric": metric,
        "unit": "s",
        "value": value,
    }
    return Row(**{**fields, **changes})


def plain_row(benchmark: str, metric: str, value: float | None, options: Mapping[str, Any], **changes: Any) -> Row:
    """A figure of two hosts with two GPUs each, at a point with these options and variables."""
    fields: dict[str, Any] = {
        "run": "r",
        "case": f"{benchmark}/{sorted(options.items())}",
        "benchmark": benchmark,
        "version": 1,
        "status": "ok",
        "point": options,
        "num_nodes": 2,
        "world_size": 4,
        "hosts": "node-a node-b",
        "device": "cuda",
        "metric": metric,
        "unit": "B/s",
        "value": value,
    }
    return Row(**{**fields, **changes})


if __name__ == "__main__":
    from clusterbench.report import render_report

    plant()
    folder = Path(sys.argv[1])
    for name, make in (("tp_scale", tp_scale_run), ("fabric", all_reduce_run), ("good", good_run)):
        print(render_report(make(folder / name)).path)
