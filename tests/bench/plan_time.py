"""The CPU seconds of a plan, on one core: of ``suites/top_configs.yaml``, and of a suite with 20,000 layouts.

Each in a process of its own with its imports, as a person waits for them. The cluster is invented, and what is refused
counts as what is planned does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from clusterbench.formulas.statistics import median
from tests.bench import INSTALLED, ROOT, Result, at_most

LAYOUTS = 20_000
OF_TOP_CONFIGS_S, OF_LAYOUTS_S = 3.0, 20.0

PLAN = """
import sys, clusterbench
plan = clusterbench.plan(sys.argv[1], clusterbench.Cluster(4, 8, "cuda", "NVIDIA H100 80GB HBM3"))
print(len(plan.cases), len(plan.refusals))
"""
PROCESSES = 3

SUITE = """\
suite: layouts_20000
num_nodes: [1, 2, 4, 8]
benchmarks:
  - benchmark: train_step
    layouts: [all]
    shape: [llama-1b, llama-3b, llama-8b, llama-70b]
    recompute: [none, selective]
    seq_len: [2048, 4096, 8192, 16384, 32768]
    dtype: bfloat16
    global_batch_size: 256
"""


def measure() -> list[Result]:
    plans = [_planned(ROOT / "suites" / "top_configs.yaml") for _ in range(PROCESSES)]
    seconds = [plan_s for plan_s, _, _ in plans]
    note = f"{_counts(plans[0])}; median of {PROCESSES} processes, {min(seconds):.1f} to {max(seconds):.1f}"
    of_top_configs = at_most("plan_top_configs", median(seconds), "s", OF_TOP_CONFIGS_S, note)
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "layouts.yaml"
        suite.write_text(SUITE)
        plan = _planned(suite)
    assert sum(plan[1:]) >= LAYOUTS, plan
    return [of_top_configs, at_most("plan_layouts", plan[0], "s", OF_LAYOUTS_S, _counts(plan))]


def _counts(plan: tuple[float, int, int]) -> str:
    return f"{plan[1]:,} cases and {plan[2]:,} refusals"


def _planned(suite: Path) -> tuple[float, int, int]:
    before = os.times()
    command = [sys.executable, "-c", PLAN, str(suite)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=INSTALLED).stdout
    after = os.times()
    num_cases, num_refusals = map(int, said.split())
    return sum(after[2:4]) - sum(before[2:4]), num_cases, num_refusals
