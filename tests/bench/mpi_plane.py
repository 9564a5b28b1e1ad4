"""What the control plane costs over MPI: a round of agreement and the gathering of samples, of 16, 32 and 64 ranks.

Raw ``MpiPlane`` and the real ``follow`` with a stand-in for each agent (``tests/launch/crowd.py``): one
process per rank, all on this machine. MPI itself spins while ranks start and leave, so more of them than cores take
their time for that; it is in none of the figures but the start, which stands in a note.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

from clusterbench.formulas.statistics import median
from clusterbench.launch.agents import Agents, dismiss, follow
from clusterbench.launch.control import HEAD, mpi_plane
from clusterbench.launch.members import members_of
from clusterbench.launchers import detect
from tests.bench import ROOT, Result, at_most
from tests.launch.crowd import SAMPLES, StandIn, samples_of_all, seconds_of_a_round

SIZES = (16, 32, 64)
ROUNDS = 10
TARGET_S = 1.0
TIMEOUT_S = 120.0


def measure() -> list[Result]:
    mpirun = shutil.which("mpirun", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    if mpirun is None:
        note = "there is no mpirun; install the extra 'mpi'"
        return [
            Result(name, None, "s", TARGET_S, "undecided", note) for name in ("mpi_plane_round", "mpi_plane_gather")
        ]
    found = {size: _under(mpirun, size) for size in SIZES}
    start = ", ".join(f"{size}: {figures['start_s']:.1f}" for size, figures in found.items())
    return [
        _result("mpi_plane_round", found, "round_s", f"; start {start} s"),
        _result("mpi_plane_gather", found, "gather_s", f"; {SAMPLES} samples a rank"),
    ]


def _result(name: str, found: dict[int, dict[str, float]], key: str, more: str) -> Result:
    growth = ", ".join(f"{size}: {figures[key]:.3g}" for size, figures in found.items())
    return at_most(name, found[SIZES[-1]][key], "s", TARGET_S, growth + more)


def _under(mpirun: str, size: int) -> dict[str, float]:
    command = [mpirun, "-n", str(size), sys.executable, "-m", "tests.bench.mpi_plane"]
    start = time.time()
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"mpirun -n {size} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    found = json.loads(done.stdout)
    return found | {"start_s": found["began"] - start}


def _one_of_many() -> None:
    """What mpirun starts: the head, which owns a rank too, measures and prints; the others follow."""
    plane = mpi_plane()
    agent = StandIn("here")
    if plane.rank != HEAD:
        follow(agent, plane, SimpleNamespace(asked=False))
    else:
        agents = Agents(agent, plane, members_of(["here"] * plane.size, [1] * plane.size))
        seconds_of_a_round(agents)  # the first waits until the last has come
        began = time.time()
        found = {
            "round_s": median([seconds_of_a_round(agents) for _ in range(ROUNDS)]),
            "gather_s": samples_of_all(agents)[0],
        }
        print(json.dumps(found | {"began": began}))
        dismiss(plane, 0)
    assert "torch" not in sys.modules


if __name__ == "__main__":
    assert detect(os.environ) is not None, "mpirun starts this; 'python -m tests.bench mpi_plane' does it"
    _one_of_many()
