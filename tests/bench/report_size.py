"""20,000 cases to ``index.html``: seconds and megabytes, each against its target."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from clusterbench.layout import ParallelLayout
from clusterbench.report import render_report
from clusterbench.run_directory import RunDirectory
from clusterbench.types import Case, Expected, Observation, Outcome
from tests.report.synthetic import case, observation, outcome, plant, write_run

CASES, TARGET_S, TARGET_B = 20_000, 10.0, 10e6
_AXES = [str(ParallelLayout(pp=pp, dp=dp, tp=tp)) for pp in (1, 2, 4) for dp in (1, 2, 4) for tp in (1, 2, 4, 8)]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        run = _big_run(Path(folder) / "run")
        plant()
        start_s = time.perf_counter()
        size = render_report(run).path.stat().st_size
        elapsed_s = time.perf_counter() - start_s
    within = [
        _line("report_20000_cases", elapsed_s, TARGET_S, "s"),
        _line("report_page", size / 1e6, TARGET_B / 1e6, "MB"),
    ]
    return 0 if all(within) else 1


def _line(name: str, value: float, target: float, unit: str) -> bool:
    verdict = "within" if value < target else "missed"
    print(f"{name:24} {value:8.2f} {unit:3} target < {target:g} {unit:3} {verdict}")
    return value < target


def _big_run(path: Path) -> RunDirectory:
    cases = [_case(number) for number in range(CASES)]
    # Written in one go: RunDirectory.record waits for the disk after each case, and that is not what is timed here.
    run = write_run(path, cases, [])
    with open(path / "outcomes.jsonl", "w") as outcomes, open(path / "observations.jsonl", "w") as observations:
        for ended, seen in _records(cases):
            outcomes.write(json.dumps(ended, default=vars) + "\n")
            if seen is not None:
                observations.write(json.dumps(seen, default=vars) + "\n")
    return run


def _case(number: int) -> Case:
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


def _records(cases: list[Case]) -> Iterator[tuple[Outcome, Observation | None]]:
    draw = random.Random(1)
    for number, one in enumerate(cases):
        if number % 50 == 0:
            yield (
                outcome(one, "out_of_memory", reason=f"rank 3 asked for {number} MiB", rank=3, host="n1", phase="warm"),
                None,
            )
            continue
        step_s = draw.uniform(0.2, 2.0)
        seconds = [[step_s * draw.gauss(1, 0.03) for _ in range(10)] for _ in range(4)]
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
        yield outcome(one), observation(one, seconds, figures)


if __name__ == "__main__":
    sys.exit(main())
