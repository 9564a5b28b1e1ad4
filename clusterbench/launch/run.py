"""The verb ``run``: from a suite's file to a finished folder, as the head or as a member of many agents."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from clusterbench.cluster import Cluster, nodes_and_ranks
from clusterbench.errors import ClusterbenchError, LaunchError, SuiteError
from clusterbench.launch.agent import Agent
from clusterbench.launch.conductor import Conductor, Execution
from clusterbench.launch.control import HEAD, Alone, ControlPlane, MpiPlane
from clusterbench.launch.crew import Crew, dismiss, follow, members_of
from clusterbench.launch.launcher import Launcher, detect, without_launcher
from clusterbench.launch.progress import progress_on
from clusterbench.plan import make_plan
from clusterbench.run_directory import RunDirectory, default_path
from clusterbench.suite import Suite, load_suite
from clusterbench.types import Outcome, Plan

SECONDS_TO_GATHER = 60.0
SECONDS_BETWEEN_GPU_SAMPLES = 0.5


@dataclass(frozen=True)
class RunOptions:
    """What the command line says about a run. ``resume`` names a folder instead of a suite."""

    suite: Path | None
    resume: Path | None = None
    out: Path | None = None
    device: str | None = None
    num_ranks: int | None = None
    gpus_per_node: int | None = None
    ranks_per_agent: int | None = None  # None: one under a launcher, all in a plain run; 0: all


class Interrupted(ClusterbenchError):
    """Somebody asked the run to stop."""


def run(options: RunOptions) -> int:
    """Runs a suite, or what is left of one, and returns the exit code.

    Every process that a launcher starts calls this; all return the same.
    """
    launcher = detect(os.environ)
    if launcher is not None and not launcher.is_mpi:
        raise LaunchError(
            f"clusterbench was started by {launcher.name}; this version runs alone or under mpirun.\n"
            "hint: 'mpirun -n 4 clusterbench run SUITE', or start it once without a launcher"
        )
    suite, mistake = None, None
    if launcher is None or launcher.rank == HEAD:
        try:
            suite = _suite(options)
        except ClusterbenchError as error:
            if launcher is None:
                raise
            mistake = error  # the other agents are waiting in MPI_Init and must hear of it first
    with _interruptible() as interruption, tempfile.TemporaryDirectory(prefix="clusterbench-agent-") as scratch:
        # The spawner comes first of all: forking is forbidden on many fabrics once MPI is up.
        agent = Agent(host=socket.gethostname(), scratch=Path(scratch))
        try:
            environment = _capture() if launcher is None or launcher.local_rank == 0 else {}
            plane = _plane(launcher)
            try:
                if plane.rank == HEAD:
                    return _lead(agent, plane, environment, options, suite, mistake)
                interruption.only_noted()
                plane.send(HEAD, {"host": agent.host, "environment": environment})
                return follow(agent, plane, interruption)
            except _Settled:
                raise
            except BaseException:
                # Nobody has told the other agents, who would wait for ever.
                agent.close()
                if plane.size > 1:
                    _say_why()
                    plane.abort(1)
                raise
        except _Settled as settled:
            raise settled.error from None
        finally:
            agent.close()


class _Settled(Exception):
    """Carries an error of which every agent has been told."""

    def __init__(self, error: ClusterbenchError) -> None:
        self.error = error


def _lead(
    agent: Agent,
    plane: ControlPlane,
    environment: dict[str, Any],
    options: RunOptions,
    suite: Suite | None,
    mistake: ClusterbenchError | None,
) -> int:
    """The head's part. An error that explains itself ends every agent with its exit code."""
    try:
        hosts, environments = _hosts(agent, plane, environment)
        if mistake:
            raise mistake
        assert suite is not None
        cluster = _cluster(options, suite, hosts, environments, alone=plane.size == 1)
        share = cluster.world_size // len(hosts)
        members = members_of(hosts, [share] * len(hosts))
        directory, plan = _folder(options, suite, cluster, environments)
        exit_code = _conduct(Crew(agent, plane, members), directory, plan)
    except ClusterbenchError as error:
        dismiss(plane, error.exit_code)
        raise _Settled(error) from None
    dismiss(plane, exit_code)
    return exit_code


def _conduct(crew: Crew, directory: RunDirectory, plan: Plan) -> int:
    executions = left_to_do(plan, directory.outcomes())
    print(f"{directory.path}: {_count(executions)} to run on {plan.cluster.world_size} ranks", file=sys.stderr)
    if plan.cluster.device == "cuda":
        crew.order("telemetry", interval_s=SECONDS_BETWEEN_GPU_SAMPLES)
    progress = progress_on(sys.stderr)
    store_host = None if len(crew.hosts) == 1 else socket.gethostbyname(socket.gethostname())
    try:
        Conductor(crew, directory, progress, store_host).conduct(executions)
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped before the end; everything finished is in {directory.path}.\n"
            f"hint: 'clusterbench run --resume {directory.path}' does the rest"
        ) from None
    finally:
        progress.close()
    from clusterbench.report import render_report  # pandas and matplotlib, only now

    report = render_report(directory)
    print(f"{report.verdict.word}: {report.verdict.sentence}\nreport: {report.path}", file=sys.stderr)
    return report.verdict.exit_code


def left_to_do(plan: Plan, outcomes: Sequence[Outcome]) -> list[Execution]:
    """Every repeat of every case that has no outcome yet, repeats interleaved: the whole list, then the list again."""
    tried = Counter((outcome.hash, outcome.repeat) for outcome in outcomes)
    return [
        Execution(case, repeat, 1 + tried[case.hash, repeat])
        for repeat in range(plan.repeats)
        for case in plan.cases
        if not tried[case.hash, repeat]
    ]


# Who takes part.


def _plane(launcher: Launcher | None) -> ControlPlane:
    if launcher is None:
        return Alone()
    plane = MpiPlane()
    if plane.size != launcher.size:
        raise LaunchError(
            f"mpirun started {launcher.size} processes, but the MPI library that mpi4py loaded sees {plane.size}: they "
            f"belong to different MPIs.\nhint: use the mpirun of that library ('python -m mpi4py --mpi-lib-version' "
            "names it)"
        )
    return plane


def _hosts(
    agent: Agent, plane: ControlPlane, environment: dict[str, Any]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Every agent's host, in the order of their ranks, and each host's environment."""
    hosts = {HEAD: agent.host}
    environments = {agent.host: environment} if environment else {}
    deadline = time.monotonic() + SECONDS_TO_GATHER
    while len(hosts) < plane.size:
        for sender, message in plane.receive():
            hosts[sender] = message["host"]
            if message["environment"]:
                environments[message["host"]] = message["environment"]
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{plane.size - len(hosts)} of {plane.size} agents said nothing for {SECONDS_TO_GATHER:g} s"
            )
        time.sleep(0.002)
    return [hosts[rank] for rank in range(plane.size)], environments


def _capture() -> dict[str, Any]:
    """This host, described by a process of its own: the agent must not load a driver's library."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "clusterbench.engine.environment"],
        env=without_launcher(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise LaunchError(f"this host could not be described: {done.stderr.strip()[-500:]}") from None
    return found


def _cluster(
    options: RunOptions,
    suite: Suite,
    hosts: Sequence[str],
    environments: dict[str, dict[str, Any]],
    alone: bool,
) -> Cluster:
    """What there is to run on, from what each host said of itself and what the command line makes of it."""
    names = tuple(dict.fromkeys(hosts))
    per_node = {host: hosts.count(host) for host in names}
    first = environments[names[0]]
    num_gpus = len(first.get("gpus") or [])
    device = options.device or ("cuda" if num_gpus else "cpu")
    if device == "cuda" and not num_gpus:
        raise SuiteError(
            "--device cuda needs a GPU, but NVML finds none on this host.\nhint: leave --device out, or cpu"
        )
    everything = (
        (options.gpus_per_node or num_gpus) if device == "cuda" else (options.num_ranks or suite.cpu.num_ranks or 2)
    )
    if alone:
        ranks_per_node = everything
    elif options.ranks_per_agent is None:
        ranks_per_node = per_node[names[0]]
    else:
        ranks_per_node = (options.ranks_per_agent or everything) * per_node[names[0]]
    if device == "cuda" and ranks_per_node > num_gpus:
        raise SuiteError(
            f"{ranks_per_node} ranks on a node need as many GPUs, but {names[0]} has {num_gpus}.\n"
            "hint: start fewer processes per node"
        )
    return Cluster(
        num_nodes=len(names),
        ranks_per_node=ranks_per_node,
        device=device,  # type: ignore[arg-type]
        gpu_name=first["gpus"][0]["name"] if num_gpus else None,
        cpu_name=first.get("cpu_model"),
        hosts=names,
    )


def _suite(options: RunOptions) -> Suite:
    if options.resume is not None:
        return load_suite(RunDirectory.open(options.resume).path / "suite.yaml")
    assert options.suite is not None
    return load_suite(options.suite)


def _folder(
    options: RunOptions, suite: Suite, cluster: Cluster, environments: dict[str, dict[str, Any]]
) -> tuple[RunDirectory, Plan]:
    """A new folder with its plan, or the one to continue: with the plan it has, if this is still its cluster."""
    if options.resume is None:
        plan = make_plan(suite, cluster)
        path = options.out or default_path(Path("reports"), plan.suite, datetime.now())
        return RunDirectory.create(path, suite.text, plan, {"hosts": environments}), plan
    directory = RunDirectory.open(options.resume)
    plan = directory.plan()
    there, here = _size(plan.cluster), _size(cluster)
    if there != here:
        raise SuiteError(
            f"{options.resume} was begun on {there}, but this is {here}.\n"
            "hint: resume it on the same number of nodes and ranks, or start a new run"
        )
    return directory, plan


def _size(cluster: Cluster) -> str:
    return nodes_and_ranks(cluster.num_nodes, cluster.ranks_per_node, cluster.device)


def _count(executions: Sequence[Execution]) -> str:
    return f"{len(executions)} case{'' if len(executions) == 1 else 's'}"


class _Interruption:
    """SIGTERM, as batch systems send it at the end of a job's time, and Ctrl-C."""

    def __init__(self) -> None:
        self.asked = False
        self._raises = True

    def only_noted(self) -> None:
        """From here on a signal is passed to the head, which ends the run in order on all agents."""
        self._raises = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._raises and not self.asked:  # once is enough: tidying up must not be interrupted
            self.asked = True
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def _interruptible() -> Iterator[_Interruption]:
    interruption = _Interruption()
    before = {number: signal.signal(number, interruption) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_why() -> None:
    """MPI's abort ends this process before anybody else could print what happened."""
    error = sys.exception()
    if isinstance(error, ClusterbenchError):
        print(f"error: {error}", file=sys.stderr)
    elif error is not None and not isinstance(error, KeyboardInterrupt):
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
