"""Stand-ins for programs that need hardware: they print what the real ones do, or lie, or hang, as they are told."""

import csv
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

from clusterbench.run_folder import RunFolder

ROOT = Path(__file__).parents[2]


def program(folder: Path, name: str, source: str) -> Path:
    """An executable in ``folder``, in Python."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, socket, subprocess, sys, time\n{source}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run_suite(tmp_path: Path, entries: str, num_ranks: int = 2, only_fakes: bool = False):
    """Runs these benchmarks by the command line, with the programs of ``tmp_path/bin``.

    Gives what the run said, its outcomes by case and its rows by case and metric. ``only_fakes`` hides the programs of
    this machine.
    """
    suite = tmp_path / "fakes.yaml"
    suite.write_text(f"suite: fakes\nquestion: Is it told?\nbenchmarks:\n{entries}\ncpu: {{num_ranks: {num_ranks}}}\n")
    path = f"{tmp_path}/bin" if only_fakes else f"{tmp_path}/bin:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "clusterbench.cli", "run", str(suite), "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=ROOT,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert (tmp_path / "run" / "rows.csv").exists(), done.stderr
    outcomes = {outcome.case: outcome for outcome in RunFolder.open(tmp_path / "run").outcomes()}
    with (tmp_path / "run" / "rows.csv").open(newline="") as file:
        table = [row for row in csv.DictReader(file) if row["value"]]
    rows = {(row["case"], row["metric"], row["part"]): float(row["value"]) for row in table}
    return done, outcomes, rows


def processes_of(tmp_path: Path, within_s: float = 60.0) -> list[str]:
    """Command lines of all processes that still run a program of ``tmp_path/bin`` after that long."""
    deadline = time.monotonic() + within_s
    while (processes := _processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes


def _processes_of(tmp_path: Path) -> list[str]:
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if f"{tmp_path}/bin/" in command:
                processes.append(command)
    return processes
