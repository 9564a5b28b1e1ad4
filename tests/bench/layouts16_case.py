"""A case in which everything is on at once: from the order to the outcome, with parity, memory, traffic and trace.

Its 16 ranks come out of a zygote that is warm: the same case of another seed goes ahead.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from clusterbench.run_folder import RunFolder
from tests.bench import ROOT, Result, at_most

TARGET_S, TIMEOUT_S = 20.0, 240.0
LAYOUT = "pp2-dp2-cp2-tp2+sp+ep2+zero1"
SUITE = f"""
suite: layouts16
question: How long does a case take that uses every parallelism?
benchmarks:
  - benchmark: train_step
    layouts: [{LAYOUT}]
    shape: moe-tiny
    seq_len: 64
    global_batch_size: 8
    micro_batch_size: 2
    iterations: 3
    warmup: 1
    seed: [0, 1]
cpu:
  num_ranks: 16
"""


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        suite, run = Path(folder, "layouts16.yaml"), Path(folder, "run")
        suite.write_text(SUITE)
        command = [sys.executable, "-m", "clusterbench.cli", "run", str(suite), "--out", str(run)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, check=False)
        if done.returncode:
            raise RuntimeError(f"the run ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        cold_s, warm_s = (outcome.elapsed_s for outcome in RunFolder.open(run).outcomes())
    return [at_most("layouts16_case", warm_s, "s", TARGET_S, f"{cold_s:.1f} s from a zygote that has yet to start")]
