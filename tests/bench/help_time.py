"""``clusterbench --help``, from the shell's point of view."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from clusterbench.formulas.statistics import median
from tests.bench import ROOT, Result, at_most

TARGET_S = 0.3
PROCESSES = 5


def measure() -> list[Result]:
    _help()  # reads the files, so that the disk is not part of it
    seconds = [_help() for _ in range(PROCESSES)]
    note = f"median of {PROCESSES} processes, {min(seconds):.2f} to {max(seconds):.2f}"
    return [at_most("help_time", median(seconds), "s", TARGET_S, note)]


def _help() -> float:
    installed = Path(sys.executable).with_name("clusterbench")
    command = [str(installed)] if installed.exists() else [sys.executable, "-m", "clusterbench.cli"]
    start_s = time.perf_counter()
    subprocess.run([*command, "--help"], stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
    return time.perf_counter() - start_s
