"""A published sweep's size, 3,306 configurations of six models: from its file, through its mapping, to a page."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from clusterbench.importing import import_files
from clusterbench.report import render_report
from tests.bench import ROOT, Result, at_most

CASES, TARGET_S, TARGET_MB = 3306, 8.0, 8.0
_MODELS = {"1B": 9.0, "3B": 25.0, "8B": 58.0, "70B": 470.0, "80B": 540.0, "160B": 1100.0}
"""What one token costs, in GFLOP: any that grows with the model."""
_MAPPING = """\
import: sweep
question: Which layout is the fastest?
gpu: NVIDIA H100 80GB HBM3
gpus_per_node: 8
attempts: true
status: {column: end, equals: {done: ok, oom: out_of_memory}}
case:
  shape: model
  world_size: gpus
  pp: pp
  dp: dp
  tp: tp
  micro_batch_size: mbs
  gradient_accumulation_steps: acc
  seq_len: {value: 4096}
  dtype: {value: bfloat16}
figures:
  tokens_per_s_per_rank: tok_s
  peak_memory: {column: mem, unit: GiB, optional: true}
"""


def measure() -> list[Result]:
    # In a process of its own: what was imported before must not change the figure.
    command = [sys.executable, "-m", "tests.bench.report_import"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    elapsed_s, size_bytes = json.loads(done.stdout)
    return [
        at_most("import_to_page", elapsed_s, "s", TARGET_S, f"{CASES:,} rows of a CSV"),
        at_most("import_to_page_size", size_bytes / 1e6, "MB", TARGET_MB),
    ]


def _import() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table, mapping = Path(folder) / "sweep.csv", Path(folder) / "sweep.yaml"
        mapping.write_text(_MAPPING)
        with open(table, "w", newline="") as file:
            csv.writer(file).writerows(_rows())
        start_s = time.perf_counter()
        page = render_report(import_files([table], mapping, Path(folder) / "run")).path
        print(json.dumps([time.perf_counter() - start_s, page.stat().st_size]))


def _rows() -> Iterator[list[object]]:
    yield ["model", "gpus", "pp", "dp", "tp", "mbs", "acc", "tok_s", "mem", "end"]
    draw = random.Random(1)
    for _ in range(CASES):
        model, gpus = draw.choice(list(_MODELS)), 8 * 2 ** draw.randrange(7)
        tp = 2 ** draw.randrange(4)
        pp = 2 ** draw.randrange((gpus // tp).bit_length())
        speed = draw.uniform(0.1, 0.5) * 989e3 / _MODELS[model] / (1 + 0.1 * pp)
        end = "oom" if draw.random() < 0.15 else "done"
        micro, steps = 2 ** draw.randrange(4), 2 ** draw.randrange(6)
        figures = ["", ""] if end == "oom" else [f"{speed:.1f}", f"{draw.uniform(10, 75):.1f}"]
        yield [model, gpus, pp, gpus // tp // pp, tp, micro, steps, *figures, end]


if __name__ == "__main__":
    _import()
