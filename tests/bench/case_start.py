"""A start of four CPU ranks from warm zygotes: from the order until the head knows that a counted all-reduce is done.

Alone one agent owns the four ranks; under mpirun four agents own one each, and orders and answers cross MPI.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from clusterbench.formulas.statistics import median
from clusterbench.launch.agent import Agent
from clusterbench.launch.agents import Agents, dismiss, follow
from clusterbench.launch.control import HEAD, Alone, mpi_plane
from clusterbench.launch.members import members_of
from clusterbench.launch.messages import End, Ended, Event, LostZygote, RankFailed, RankReady, Start, StorePlace
from clusterbench.launchers import detect
from tests.bench import ROOT, Result, at_most

TARGET_S, TARGET_UNDER_MPIRUN_S = 0.15, 0.3
RANKS, STARTS, TIMEOUT_S = 4, 15, 120.0


def measure() -> list[Result]:
    return [_result("case_start", _alone(), TARGET_S), _under_mpirun()]


def _result(name: str, seconds: list[float], target: float) -> Result:
    note = f"median of {len(seconds)} starts, {min(seconds):.3f} to {max(seconds):.3f}"
    return at_most(name, median(seconds), "s", target, note)


def _alone() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(host=socket.gethostname(), scratch=Path(folder))
        try:
            return _starts(Agents(agent, Alone(), members_of([agent.host], [RANKS])), Path(folder))
        finally:
            agent.close()


def _under_mpirun() -> Result:
    name = "case_start_mpirun"
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpirun is None:
        return Result(
            name, None, "s", TARGET_UNDER_MPIRUN_S, "undecided", "there is no mpirun; install the extra 'mpi'"
        )
    command = [mpirun, "-n", str(RANKS), sys.executable, "-m", "tests.bench.case_start"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"mpirun ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return _result(name, json.loads(done.stdout), TARGET_UNDER_MPIRUN_S)


def _one_of_many() -> None:
    """What mpirun starts: the head measures and prints, the others follow."""
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(host=socket.gethostname(), scratch=Path(folder))  # its spawner comes before MPI
        try:
            plane = mpi_plane()
            if plane.rank == HEAD:
                hosts = [agent.host] * plane.size
                print(json.dumps(_starts(Agents(agent, plane, members_of(hosts, [1] * plane.size)), Path(folder))))
                dismiss(plane, 0)
            else:
                follow(agent, plane, SimpleNamespace(asked=False))
        finally:
            agent.close()


def _starts(agents: Agents, folder: Path) -> list[float]:
    """Seconds of each start, one right after the other as in a run."""
    _start(agents, folder, 0)  # waits until torch is imported
    return [_start(agents, folder, number) for number in range(1, STARTS + 1)]


def _start(agents: Agents, folder: Path, number: int) -> float:
    store = StorePlace(file=str(folder / f"store-{number}"))
    start_s = time.perf_counter()
    agents.order(Start(number, RANKS, "cpu", {}, store, TIMEOUT_S, str(folder)))
    _await(agents, RANKS, RankReady)
    elapsed_s = time.perf_counter() - start_s
    agents.order(End(number, kill=False))
    _await(agents, len(agents.members), Ended)
    return elapsed_s


def _await(agents: Agents, count: int, kind: type) -> None:
    for event in _events(agents):
        if isinstance(event, (RankFailed, LostZygote)):
            raise RuntimeError(f"a start failed: {event}")
        count -= isinstance(event, kind)
        if count == 0:
            return


def _events(agents: Agents) -> Iterator[Event]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        yield from agents.events(0.5)
    raise TimeoutError(f"a start of {RANKS} ranks did not get on for {TIMEOUT_S:g} s")


if __name__ == "__main__":
    assert detect(os.environ) is not None, "mpirun starts this; 'python -m tests.bench case_start' does both"
    _one_of_many()
