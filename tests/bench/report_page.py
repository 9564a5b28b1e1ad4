"""``clusterbench report`` of a run of 8 cases: the seconds of CPU that a person waits for a small page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from clusterbench.formulas.statistics import median
from tests.bench import INSTALLED, ROOT, Result, at_most

TARGET_S = 1.5
PROCESSES = 7


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "tp_scale-cpu"
        shutil.copytree(ROOT / "reports" / "examples" / "tp_scale-cpu", run)
        _report(run)  # reads the files, so that the disk is not part of it
        seconds = [_report(run) for _ in range(PROCESSES)]
    note = f"seconds of CPU, 8 cases; median of {PROCESSES} processes, {min(seconds):.2f} to {max(seconds):.2f}"
    return [at_most("report_page", median(seconds), "s", TARGET_S, note)]


def _report(run: Path) -> float:
    before = os.times()
    command = [sys.executable, "-m", "clusterbench", "report", str(run)]
    devnull = subprocess.DEVNULL
    subprocess.run(command, stdout=devnull, stderr=devnull, check=True, cwd=ROOT, env=INSTALLED)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])
