"""A spawner that dies under mpirun, where no other may be started."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from clusterbench.run_folder import RunFolder

MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
SUITE = """
suite: killed
question: What if the process that starts all others dies?
benchmarks:
  - {benchmark: all_reduce, min_size: 8, max_size: 32, iterations: 20}
  - {benchmark: fault_drill, fault: none, phase: run, sleep_s: 1.0, iterations: 8}
  - {benchmark: broadcast, min_size: 8, max_size: 32, iterations: 20}
"""


def spawner_of(agent):
    for child in agent.children():
        if "clusterbench.launch.spawner" in child.cmdline():
            return child
    raise AssertionError("no spawner")


@pytest.mark.mpi
def test_the_run_ends_in_order_and_resume_runs_what_was_not_run(tmp_path):
    (tmp_path / "suite.yaml").write_text(SUITE)
    folder = tmp_path / "run"
    command = [MPIRUN, "-n", "2", sys.executable, "-m", "clusterbench.cli", "run"]
    process = subprocess.Popen(
        [*command, str(tmp_path / "suite.yaml"), "--out", str(folder)], stderr=subprocess.PIPE, text=True
    )
    alive = folder / "alive"
    while not (alive.exists() and '"case": "fault_drill' in alive.read_text()):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    agents = {
        child.environ()["PMI_RANK"]: child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "clusterbench.cli" in child.cmdline()
    }
    spawner_of(agents["1"]).send_signal(signal.SIGKILL)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "can start no worker any more: the spawner on host" in said
    assert "Traceback" not in said
    *before, cut = RunFolder.open(folder).outcomes()
    assert [outcome.status for outcome in before] == ["ok"] * 2
    assert (cut.case, cut.status, cut.rank) == ("fault_drill/1n2/none-in-run", "failed", 1)
    assert cut.lost_hosts
    subprocess.run([*command, "--resume", str(folder)], check=True, timeout=250)
    assert [outcome.status for outcome in RunFolder.open(folder).outcomes()[3:]] == ["ok"] * 3
