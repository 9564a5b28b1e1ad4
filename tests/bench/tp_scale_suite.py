"""``clusterbench run suites/tp_scale.yaml`` as a new user has it: its wall time, and the memory of all it starts.

Memory is PSS, in which a page that n processes share counts 1/n in each: the sum is what the machine has to have. Pages
of torch that processes outside the run share would be missing from it, so these are looked for.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.bench import ROOT, Result, at_most

TARGET_S, TARGET_GB = 60.0, 1.5
SECONDS_BETWEEN_LOOKS = 0.5


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/said", "w+") as said:
        command = [sys.executable, "-m", "clusterbench.cli", "run", "suites/tp_scale.yaml", "--out", f"{folder}/run"]
        start_s = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
        try:
            peak, looks, strangers = _watch(process)
        finally:
            process.terminate()
            process.wait()
        elapsed_s = time.perf_counter() - start_s
        said.seek(0)
        end = said.read().strip()[-2000:]
    if process.returncode:
        raise RuntimeError(f"the run ended with {process.returncode}: {end}")
    # One look takes a page-table walk per process, on the cores that are measured.
    looked_s = sum(looks)
    wall = at_most("tp_scale_wall", elapsed_s, "s", TARGET_S, f"beside {looked_s:.1f} CPU seconds of looking at memory")
    memory = at_most("tp_scale_memory", peak / 1e9, "GB", TARGET_GB, f"PSS, most of {len(looks)} looks")
    if strangers and memory.verdict == "within":
        why = f"too low: {strangers} processes outside the run shared torch's pages at times"
        memory = Result(memory.name, memory.value, memory.unit, memory.target, "undecided", why)
    return [wall, memory]


def _watch(process: subprocess.Popen) -> tuple[int, list[float], int]:
    """Most bytes at once, the CPU seconds each look took, and most outsiders that had torch loaded."""
    peak, looks, strangers = 0, [], 0
    while process.poll() is None:
        start_s = time.process_time()
        with suppress(psutil.NoSuchProcess):
            tree = psutil.Process(process.pid)
            family = {process.pid, *(child.pid for child in tree.children(recursive=True))}
            peak = max(peak, sum(map(_pss_bytes, family)))
            if len(looks) % 20 == 0:
                strangers = max(strangers, sum(_has_torch(pid) for pid in psutil.pids() if pid not in family))
        looks.append(time.process_time() - start_s)
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_BETWEEN_LOOKS)
    return peak, looks, strangers


def _pss_bytes(pid: int) -> int:
    with suppress(OSError):  # it has just ended
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _has_torch(pid: int) -> bool:
    with suppress(OSError):
        return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()
    return False
