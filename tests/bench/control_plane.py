"""What the control plane costs with up to 1,024 agents over TCP on one machine: to meet, to agree, to gather, per case.

Eight processes hold the members, each a connection and the real ``Follower`` with a stand-in for its agent (see
``tests/launch/crowd.py``). The head is a process of its own with the real conductor and run folder. No torch
anywhere. All share this machine's cores, so the members' work is in every figure; on a cluster each has a host.

The stand-ins measure nothing, so that all a case takes is overhead. Growth from 16 agents to 1,024 stands in the notes.

``python -m tests.bench.control_plane AGENTS [RANKS_PER_AGENT]`` prints the figures of one size, e.g. of 2,048 agents
with eight ranks each.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from clusterbench.formulas.statistics import median
from clusterbench.launch.agents import SECONDS_BETWEEN_SIGNS, Agents, dismiss
from clusterbench.launch.allocation import Allocation, gather, measure_clocks
from clusterbench.launch.conductor import Conductor, LostHosts
from clusterbench.launch.control import HEAD, TcpHead
from clusterbench.launch.executions import Execution
from clusterbench.launch.lines import decode_event, encode
from clusterbench.launch.members import members_of
from clusterbench.run_folder import RunFolder
from tests.bench import ROOT, Result, at_most
from tests.launch.crowd import Crowd, StandIn, case_of, hello_of, plan_of, samples_of_all, seconds_of_a_round

SIZES = (16, 64, 256, 1024)
PROCESSES = 8
LOST_OF_1024 = 10
ROUNDS, CASES = 10, 5
TIMEOUT_S = 60.0
SECONDS_OF_IDLING = 3 * SECONDS_BETWEEN_SIGNS
_MODULE = "tests.bench.control_plane"


def measure() -> list[Result]:
    found = {size: _in_a_process(size) for size in SIZES}
    growth = {name: _growth(found, name) for name in found[SIZES[-1]]}
    last = found[SIZES[-1]]
    parsed = f"{last['gathered_mb']:.1f} MB, parsed in {last['parsing_s']:.3f} CPU s; "
    lost = f"{last['num_lost']:.0f} connections cut while a case is timed, until all is ended and named; "
    return [
        at_most("control_plane_start", last["start_s"], "s", 5, growth["start_s"]),
        at_most("control_plane_round", last["round_s"], "s", 0.5, growth["round_s"]),
        at_most("control_plane_gather", last["gather_s"], "s", 1, parsed + growth["gather_s"]),
        at_most("control_plane_case", last["case_s"], "s", 2, growth["case_s"]),
        at_most("control_plane_case_cpu", last["case_cpu_s"], "s", 0.5, "the head's share; " + growth["case_cpu_s"]),
        at_most("control_plane_idle_cpu", last["idle_cpu_s"], "s/s", 0.05, growth["idle_cpu_s"]),
        at_most("control_plane_lost", last["lost_s"], "s", 5, lost + growth["lost_s"]),
        at_most("control_plane_memory", last["memory_mb"], "MB", 1000, growth["memory_mb"]),
    ]


def _growth(found: dict[int, dict[str, float]], name: str) -> str:
    return ", ".join(f"{size:,}: {figures[name]:.3g}" for size, figures in found.items())


def _in_a_process(size: int) -> dict[str, float]:
    """Of a head that has seen no other size: memory is what a process has ever had."""
    command = [sys.executable, "-m", _MODULE, str(size)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=5 * TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{size} agents: the head ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


# The head.


def _lead(size: int, ranks_per_agent: int = 1) -> dict[str, float]:
    """All figures of one number of agents."""
    secret = secrets.token_bytes(32)
    plane = TcpHead(size + 1, secret)
    environment = _environment()
    asked = {"size": size + 1, "secret": secret.hex(), "environment": environment, "ranks_per_agent": ranks_per_agent}
    with _members(size, {"address": plane.address} | asked) as processes:
        start_s = time.perf_counter()
        for process in processes:
            process.stdin.write("come\n")
            process.stdin.flush()
        plane.gather(TIMEOUT_S)
        allocation = gather(plane, hello_of(HEAD, environment))
        figures = {"start_s": time.perf_counter() - start_s}
        agent = StandIn(allocation.hosts[HEAD])
        measure_clocks(plane, allocation)
        agents = Agents(
            agent, plane, members_of(allocation.hosts, [ranks_per_agent] * plane.size, allocation.names[1:])
        )
        figures["round_s"] = median([seconds_of_a_round(agents) for _ in range(ROUNDS)])
        figures["idle_cpu_s"] = _cpu_seconds_of_a_second_of_idling(agents)
        figures |= _gathering(agents)
        with tempfile.TemporaryDirectory() as folder:
            figures |= _cases(agents, Path(folder), allocation)
            figures |= _losses(agents, Path(folder), allocation)
        dismiss(plane, 0, agents.lost)
        ends = sum((Counter(json.loads(process.communicate(timeout=TIMEOUT_S)[0])) for process in processes), Counter())
    expected = {"0": size - len(agents.lost), "the head of the run is gone": len(agents.lost)}
    assert ends == expected, f"members ended like this: {ends}; expected {expected}"
    assert "torch" not in sys.modules
    return figures | {"memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6}


def _cpu_seconds_of_a_second_of_idling(agents: Agents) -> float:
    """What signs of life cost the head's host, in each second of a case that is timed."""
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - start_s < SECONDS_OF_IDLING:
        assert not agents.events(0.5)
    return (time.process_time() - start_cpu_s) / (time.perf_counter() - start_s)


def _environment() -> dict:
    """What a host says of itself."""
    command = [sys.executable, "-P", "-m", "clusterbench.facts"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout)


@contextmanager
def _members(size: int, asked: dict[str, Any]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that wait for the word to connect."""
    each = size // PROCESSES
    shares = [range(1 + number * each, 1 + (number + 1) * each) for number in range(PROCESSES)]
    command = [sys.executable, "-m", _MODULE, "members"]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in shares
    ]
    try:
        for process, agents in zip(processes, shares, strict=True):
            process.stdin.write(json.dumps({**asked, "agents": [agents.start, agents.stop]}) + "\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _gathering(agents: Agents) -> dict[str, float]:
    """A hundred samples of every rank, and CPU seconds that reading and checking their lines takes."""
    gather_s, records = samples_of_all(agents)
    lines = [encode(record) for record in records]
    start_s = time.process_time()
    for line in lines:
        decode_event(line)
    parsing_s = time.process_time() - start_s
    return {"gather_s": gather_s, "parsing_s": parsing_s, "gathered_mb": sum(map(len, lines)) / 1e6}


class _Watch:
    """When cases began and how they ended."""

    def __init__(self) -> None:
        self.outcomes = []
        self.began_s = []
        self.cpu_s = []

    def begin(self, number, total, execution):
        self.began_s.append(time.perf_counter())
        self.cpu_s.append(time.process_time())

    def reach(self, phase):
        pass

    def end(self, outcome, observation):
        self.outcomes.append(outcome)


def _cases(agents: Agents, folder: Path, allocation: Allocation) -> dict[str, float]:
    """Whole cases, each with a start of its own, from one beginning to the next."""
    case = case_of(_num_ranks(agents))
    directory = RunFolder.create(folder / "ok", b"", plan_of(_num_ranks(agents), [case]), _hosts(allocation))
    watch = _Watch()
    executions = [Execution(case, repeat, 1) for repeat in range(CASES + 1)]
    Conductor(agents, directory, watch, store_host="127.0.0.1").conduct(executions)
    assert [outcome.status for outcome in watch.outcomes] == ["ok"] * len(executions), watch.outcomes
    start_s = time.process_time()
    num_read = sum(1 for _ in directory.observations())
    return {
        "case_read_s": (time.process_time() - start_s) / num_read,
        "case_s": median(_steps(watch.began_s)),
        "case_cpu_s": median(_steps(watch.cpu_s)),
        "case_mb": (directory.path / "observations.jsonl").stat().st_size / len(executions) / 1e6,
    }


def _num_ranks(agents: Agents) -> int:
    return sum(len(member.local_ranks) for member in agents.members)


def _steps(clock_s: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(clock_s)]


def _losses(agents: Agents, folder: Path, allocation: Allocation) -> dict[str, float]:
    """Connections are cut in the middle of a case: it is recorded, the hosts are named, and nothing else goes wrong."""
    size = len(agents.members)
    num_lost = max(1, size * LOST_OF_1024 // 1024)
    lost = [agents.members[number * size // num_lost + 3] for number in range(num_lost)]
    cases = [case_of(_num_ranks(agents), "cut", [member.first_rank for member in lost]), case_of(_num_ranks(agents))]
    directory = RunFolder.create(folder / "cut", b"", plan_of(_num_ranks(agents), cases), _hosts(allocation))
    watch = _Watch()
    try:
        Conductor(agents, directory, watch, store_host="127.0.0.1").conduct([Execution(case, 0, 1) for case in cases])
    except LostHosts as error:
        lost_s = time.perf_counter() - watch.began_s[0]
        said = str(error)
    else:
        raise AssertionError("nobody missed the hosts that are gone")
    (outcome,) = directory.outcomes()
    hosts = [member.host for member in lost]
    assert (outcome.status, list(outcome.lost_hosts)) == ("failed", hosts), outcome
    assert all(host in said for host in hosts), said
    print(f"{size} agents: {outcome.reason}\n{said}", file=sys.stderr)
    return {"lost_s": lost_s, "num_lost": num_lost}


def _hosts(allocation: Allocation) -> dict:
    return {"hosts": allocation.environments}


# The members.


def _follow() -> None:
    asked = json.loads(sys.stdin.readline())
    asked |= {"address": tuple(asked["address"]), "secret": bytes.fromhex(asked["secret"])}
    crowd = Crowd(**asked | {"agents": range(*asked["agents"])})
    print("ready", flush=True)
    if sys.stdin.readline() != "come\n":
        os._exit(1)  # the head is gone before it began
    ends = crowd.live()
    assert "torch" not in sys.modules
    print(json.dumps(ends))


if __name__ == "__main__":
    if sys.argv[1:] == ["members"]:
        _follow()
    else:
        print(json.dumps(_lead(*map(int, sys.argv[1:]))))
