"""The verb ``run``: from a suite's file to a finished folder, as the head or as a member of many agents."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from clusterbench.benchmarks import benchmarks
from clusterbench.cluster import Cluster, Found, MachineOptions, decide_cluster
from clusterbench.derive.at_a_glance import at_a_glance
from clusterbench.diagnoses.unlike_hosts import differences
from clusterbench.engine.scratch import scratch_folder
from clusterbench.errors import ClusterbenchError, LaunchError, SuiteError
from clusterbench.fingerprint import OF_GPUS, OPTION, fingerprint_of
from clusterbench.launch.agent import Agent
from clusterbench.launch.agents import SECONDS_OF_SILENCE, Agents, LostHead, dismiss, follow
from clusterbench.launch.allocation import (
    SECONDS_TO_GATHER,
    VISIBLE,
    Allocation,
    gather,
    hello,
    measure_clocks,
    not_excluded,
    variables_of,
)
from clusterbench.launch.conductor import Conductor
from clusterbench.launch.control import HEAD, Alone, HeadPlane, MemberPlane, mpi_plane
from clusterbench.launch.copies import as_this_copy_expects, this_copy
from clusterbench.launch.ending import EndingSignals, Interrupted, Interruption, output_that_may_close
from clusterbench.launch.executions import Execution, again, left_to_do
from clusterbench.launch.interfaces import Interface
from clusterbench.launch.messages import Hello, SampleGpus
from clusterbench.launch.mpi_cases import in_agents
from clusterbench.launch.neighbours import Neighbours
from clusterbench.launch.progress import progress_on
from clusterbench.launch.reach import reached_interfaces
from clusterbench.launch.rendezvous import meet
from clusterbench.launchers import Started, detect, named_hosts
from clusterbench.planning import make_plan
from clusterbench.planning.text import idle_sentence
from clusterbench.run_folder import COPIES, RunFolder, default_path
from clusterbench.run_folder.attempts import WITHOUT_MACHINE, unrecorded
from clusterbench.run_folder.lock import FolderHeld, IsGone, Lock
from clusterbench.run_folder.process import Process
from clusterbench.run_folder.rounds import so_far, spent_s
from clusterbench.suite import Suite, load_suite
from clusterbench.terminal import tell
from clusterbench.types import Case, Plan
from clusterbench.units import duration
from clusterbench.words import few, plural

SECONDS_BETWEEN_GPU_SAMPLES = 0.5


@dataclass(frozen=True)
class RunOptions:
    """What the command line says about a run. ``resume`` names a folder instead of a suite."""

    suite: Path | None
    resume: Path | None = None
    out: Path | None = None
    device: str | None = None
    num_ranks: int | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    ranks_per_gpu: int | None = None  # None: one
    ranks_per_agent: int | None = None  # None: one under a launcher, all in a plain run; 0: all
    hosts: tuple[str, ...] | None = None
    exclude: str | None = None  # names, or a file of them
    spares: int = 0  # of the hosts that --launch names
    interface: str | None = None
    time_limit_s: float | None = None
    on_lost_host: str | None = None
    fail_on: tuple[str, ...] | None = None
    rates: Path | None = None  # by which reports price training steps
    baseline: Path | None = None  # in place of the suite's own
    accepted: tuple[str, ...] = ()  # fields in which its machine may be another
    take_over: bool = False  # from whoever writes into the folder
    fingerprint: str | None = None  # of the run, where a supervisor has started it
    silence_s: float = SECONDS_OF_SILENCE  # no option of the command line; see Agents
    seconds_of: Callable[[Case], float] | None = None  # what a case is reckoned to take; then the sum is said first
    began: float = field(default_factory=time.monotonic)

    @property
    def machine(self) -> MachineOptions:
        return MachineOptions(
            self.device,
            self.num_ranks,
            self.num_nodes,
            self.gpus_per_node,
            self.ranks_per_agent,
            ranks_per_gpu=self.ranks_per_gpu,
        )


Settle = Callable[[RunFolder, ClusterbenchError | None, tuple[str, ...] | None], int]
"""What the head does with a finished folder; given why the run ended before its end, and what makes exit code 1."""


def run(options: RunOptions, settle: Settle | None = None) -> int:
    """Runs a suite, or what is left of one, and returns the exit code.

    Every process that a launcher starts calls this; all return the same. ``settle`` is by default the report.
    """
    started = detect(os.environ)
    if options.on_lost_host == "continue" and options.resume is None:
        raise SuiteError(_nothing_to_continue(started))
    suite, mistake = None, None
    if started is None or started.rank == HEAD:
        try:
            suite = _suite(options)
        except ClusterbenchError as error:
            if started is None:
                raise
            mistake = error  # the other agents are waiting and must hear of it first
    lead = partial(_lead, options=options, suite=suite, mistake=mistake, settle=settle)
    return take_part(started, lead, _asked(options))


def _asked(options: RunOptions) -> str:
    if options.resume is not None:
        return f"--resume {options.resume.name}"
    return f"suite {options.suite.name}" if options.suite else "nothing"


Lead = Callable[[Agent, HeadPlane, Hello, Interruption], int]
"""What the head does once it hears the others; gives the exit code, of which it has told them all."""


def take_part(started: Started | None, lead: Lead, asked: str) -> int:
    """One process of those that a launcher started for what is ``asked``: leads the others, or follows who does."""
    interruption = Interruption()
    with (
        EndingSignals(interruption) as signals,
        output_that_may_close(interruption),
        scratch_folder("agent") as scratch,
    ):
        # The spawner and what describes this host come first: forking is forbidden on many fabrics once MPI is up.
        forks = started is None or not started.is_mpi
        agent = Agent(host=socket.gethostname(), scratch=Path(scratch), restarts_spawner=forks)
        try:
            own = replace(hello(agent.host, started.local_rank if started else None, agent.copy), asked=asked)
            plane = _plane(started)
            signals.install()
            try:
                if plane.rank == HEAD:
                    return lead(agent, cast(HeadPlane, plane), own, interruption)
                member = cast(MemberPlane, plane)
                interruption.only_noted()
                member.send(HEAD, own)
                return follow(agent, member, interruption)
            except Settled:
                raise
            except LostHead:
                agent.close()
                _say_why()
                plane.abandon(1, last=True)
                return 1
            except BaseException:
                # The other agents do not know of it and would wait for ever.
                agent.close()
                if plane.size > 1:
                    _say_why()
                    plane.abort(1)
                raise
        except Settled as settled:
            raise settled.error from None
        except KeyboardInterrupt:
            raise _not_begun(interruption) from None
        finally:
            interruption.only_noted()
            agent.close()


def _not_begun(interruption: Interruption) -> Interrupted:
    return Interrupted(f"stopped before the first case: {interruption.why}.")


def _nothing_to_continue(started: Started | None) -> str:
    if started is None:
        return "--on-lost-host has no effect without --launch: this run has one host."
    launcher = started.launcher
    command = launcher.program if launcher.commands else "mpirun"
    return (
        f"--on-lost-host continue: when a host is lost, everything that {launcher.program} started ends, and nothing "
        f"is left that could continue.\nhint: 'clusterbench run SUITE --launch \"{command} ...\"' starts it again on "
        "what is left"
    )


class Settled(Exception):
    """Carries an error of which every agent has been told."""

    def __init__(self, error: ClusterbenchError) -> None:
        self.error = error


def _of_hidden_gpus(asked: MachineOptions, cluster: Cluster, found: Found) -> str:
    """What to say where nobody asked for CPU ranks and a variable hides the GPUs, as schedulers set it."""
    why = found.why_no_gpus or ""
    if cluster.device == "cuda" or asked.device is not None or not why.startswith(VISIBLE):
        return ""
    return f"note: this run has CPU ranks, as {why}; --device cuda insists on GPUs, and --device cpu says it is meant"


def _lead(
    agent: Agent,
    plane: HeadPlane,
    own: Hello,
    interruption: Interruption,
    options: RunOptions,
    suite: Suite | None,
    mistake: ClusterbenchError | None,
    settle: Settle | None,
) -> int:
    """The head's part. An error that explains itself ends every agent with its exit code."""
    agents, directory = None, None
    try:
        allocation = gather(plane, own)
        if mistake:
            raise mistake
        assert suite is not None
        excluded = excluded_hosts(options.exclude, allocation.names)
        hosts = allocation.only(options.hosts, options.num_nodes if launched(plane) else None, excluded)
        found = allocation.found(hosts)
        cluster = decide_cluster(options.machine, found, _cpu_ranks(options, suite))
        if note := _of_hidden_gpus(options.machine, cluster, found):
            tell(note)
        ranks_per_gpu = cluster.ranks_per_gpu if cluster.device == "cuda" else None
        members = allocation.members(cluster.ranks_per_node, hosts, ranks_per_gpu)
        interfaces = reached_interfaces(plane, allocation, hosts, options.interface)
        measure_clocks(plane, allocation)
        for difference in differences({"hosts": {host: allocation.environments[host] for host in hosts}}):
            tell(f"{difference.severity}: {difference.sentence}")
        directory, plan = _folder(options, suite, cluster, allocation, interruption, own.copy.digest)
        over = interfaces.get(allocation.hosts[HEAD])
        neighbours = Neighbours(over.address, allocation.addresses()) if over else None
        variables = variables_of(interfaces, options.interface is not None)
        agents = Agents(agent, plane, members, variables, options.silence_s, neighbours)
        first_gpus, settle = allocation.first_gpus, settle or report_of
        copy = own.copy.digest
        exit_code = _conduct(
            agents, directory, plan, options, interfaces, cluster, first_gpus, interruption, settle, copy
        )
    except (ClusterbenchError, KeyboardInterrupt) as caught:
        error = caught if isinstance(caught, ClusterbenchError) else _not_begun(interruption)
        interruption.only_noted()
        dismiss(
            plane, error.exit_code, agents.lost if agents else (), "abandoned" if agents and agents.lost else "in order"
        )
        raise Settled(error) from None
    finally:
        if directory is not None:
            directory.release()
    dismiss(plane, exit_code, agents.lost, agents.leaving)
    if agents.leaving != "in order":
        agent.close()
        if agents.leaving == "aborted":
            plane.abort(exit_code)
        plane.abandon(exit_code, last=True)
    return exit_code


def _conduct(
    agents: Agents,
    directory: RunFolder,
    plan: Plan,
    options: RunOptions,
    interfaces: Mapping[str, Interface],
    cluster: Cluster,
    first_gpus: Mapping[int, int],
    interruption: Interruption,
    settle: Settle,
    copy: str,
) -> int:
    outcomes = directory.outcomes()
    lacking = unrecorded(plan, outcomes, directory.observations())
    wanted = left_to_do(plan, outcomes, lacking, cheapest_first=options.time_limit_s is not None)
    executions = [execution for execution in wanted if execution.case.num_nodes <= cluster.num_nodes]
    if agents.mpi:  # a case inside MPI can take the run with it: all others are on disk by then
        executions.sort(key=lambda execution: in_agents(execution.case))

    def more() -> Sequence[Execution]:
        here = [each for each in again(plan, directory.outcomes()) if each.case.num_nodes <= cluster.num_nodes]
        return sorted(here, key=lambda each: in_agents(each.case)) if agents.mpi else here

    reckoned = options.seconds_of and sum(options.seconds_of(execution.case) for execution in executions)
    how_long = f", about {duration(reckoned)}" if reckoned else ""
    ranks = f"on {plural(cluster.world_size, 'rank')}"
    if executions:
        is_over = spent_s(outcomes) >= plan.for_s
        until = "" if is_over else f", and again until they have taken {duration(plan.for_s)}"
        num_cases = len({execution.case.hash for execution in executions})
        repeats = f"{plural(len(executions), 'repeat')} of " * (num_cases < len(executions))
        to_run = f"{repeats}{plural(num_cases, 'case')} to run {ranks}{how_long}{until}"
    elif rest := more():
        taken = so_far(spent_s(outcomes), plan.for_s)
        to_run = f"{plural(len(rest), 'case')} to run again and again {ranks}: they have taken {taken}"
    else:
        to_run = f"nothing is left to run {ranks}"
    tell(f"{directory.path}: {to_run}")
    if anew := sum((execution.case.hash, execution.repeat) in lacking for execution in executions):
        whose, they = ("its record", "is") if anew == 1 else ("their records", "are")
        told = f"{anew} of them ended well, but {whose} in observations.jsonl {they} missing or damaged"
        tell(f"{told}: {'it is' if anew == 1 else 'they are'} measured again")
    if idle := idle_sentence([execution.case for execution in wanted], cluster):
        tell(idle)
    if len(executions) < len(wanted):
        missing = f"{len(wanted) - len(executions)} more need"
        tell(f"{missing} more nodes than the {cluster.num_nodes} that are left")
    for member in agents.members if cluster.device == "cuda" else ():
        if member.agent in first_gpus:
            agents.order_some([member], SampleGpus(SECONDS_BETWEEN_GPU_SAMPLES, first_gpus[member.agent]))
    shows = partial(at_a_glance, cluster=plan.cluster)
    progress = progress_on(sys.stderr, plan.for_s, spent_s(outcomes), shows)
    here = socket.gethostname()
    store_host = None if agents.hosts == (here,) else interfaces[here].address
    ends_at = None if options.time_limit_s is None else options.began + options.time_limit_s
    stopped: ClusterbenchError | None = None

    try:
        interruption.raised_again()
        conductor = Conductor(agents, directory, progress, store_host, ends_at, cluster.ranks_per_gpu, copy)
        conductor.conduct(executions or more(), more)
    except LaunchError as error:
        stopped = error
    except KeyboardInterrupt:
        stopped = Interrupted(interruption.why)
    finally:
        interruption.only_noted()  # the report is written in any case
        progress.close()
    agents.rest()
    return settle(directory, stopped, options.fail_on)


def report_of(directory: RunFolder, stopped: ClusterbenchError | None, fail_on: tuple[str, ...] | None) -> int:
    """Writes the report and says what it came to, and why the run ended if that was before the end."""
    from clusterbench.report import render_report  # pandas and matplotlib, only now

    report = render_report(directory, fail_on)
    tell(f"{report.text}\nreport: {report.link}")
    if stopped is None:
        return report.verdict.exit_code
    tell(
        f"stopped before the end: {stopped}; everything finished is in {directory.path}.\n"
        f"hint: 'clusterbench run --resume {directory.path}' does the rest"
    )
    return report.verdict.exit_code or Interrupted.exit_code


# Who takes part.


def excluded_hosts(text: str | None, hosts: Collection[str]) -> list[str]:
    """What ``--exclude`` names, after it is said which of ``hosts`` that leaves out, and what is none of them.

    Raises
    ------
    SuiteError
        If it names a file that cannot be read.
    """
    if text is None:
        return []
    excluded = named_hosts(text)
    taking_part = not_excluded(hosts, excluded)
    left_out = [host for host in hosts if host not in taking_part]
    unknown = not_excluded(excluded, left_out)
    words = [f"leaves out {few(left_out)}" if left_out else "leaves out no host"]
    words += [f"{few(unknown)} {'is' if len(unknown) == 1 else 'are'} not in the allocation"] if unknown else []
    tell(f"--exclude {'; '.join(words)}")
    return excluded


def launched(plane: HeadPlane) -> bool:
    """Whether a launcher started more than this one agent."""
    return plane.size > 1


def _plane(started: Started | None) -> HeadPlane | MemberPlane:
    if started is None:
        return Alone()
    if not started.is_mpi:
        return meet(started, os.environ, SECONDS_TO_GATHER)
    plane = mpi_plane()
    if plane.size != started.size:
        raise LaunchError(
            f"mpirun started {started.size} processes, but the MPI library that mpi4py loaded sees {plane.size}: they "
            f"belong to different MPIs.\nhint: use the mpirun of that library ('python -m mpi4py --mpi-lib-version' "
            "names it)"
        )
    return plane


def _suite(options: RunOptions) -> Suite:
    if options.resume is not None:
        directory = RunFolder.open(options.resume)
        if any(case.benchmark in WITHOUT_MACHINE for case in directory.plan().cases):
            raise SuiteError(f"{options.resume} is no run on a machine: nothing of it is left to measure.")
        return load_suite(directory.path / "suite.yaml", is_planned=True)
    assert options.suite is not None
    return load_suite(options.suite, baseline=options.baseline)


def _cpu_ranks(options: RunOptions, suite: Suite) -> int | None:
    """Of each node where the command line does not say: those with which the run began, or the suite's."""
    if options.resume is None:
        return suite.cpu.num_ranks
    return RunFolder.open(options.resume).plan().cluster.ranks_per_node


def _folder(
    options: RunOptions, suite: Suite, cluster: Cluster, allocation: Allocation, interruption: Interruption, copy: str
) -> tuple[RunFolder, Plan]:
    """A new folder with its plan, or the one to continue: with the plan it has, if this is still its cluster.

    From the first file on a signal is only noted, until there is a run that it can end.
    """
    if options.resume is None:
        machine = fingerprint_of({"hosts": {host: allocation.environments[host] for host in cluster.hosts}})
        plan = make_plan(suite, cluster, machine, options.accepted)
        return _new_folder(options, plan, suite, allocation, interruption, copy)
    directory = RunFolder.open(options.resume)
    plan = directory.plan()
    there, here = plan.cluster.size, cluster.size
    is_part = (cluster.ranks_per_node, cluster.device) == (plan.cluster.ranks_per_node, plan.cluster.device)
    fewer = is_part and cluster.num_nodes < plan.cluster.num_nodes
    if there != here and not (fewer and options.on_lost_host == "continue"):
        hint = "resume it on the same number of nodes and ranks, or start a new run"
        if fewer:
            hint = "--on-lost-host continue runs what fits on those that are left"
        raise SuiteError(f"{options.resume} was begun on {there}, but this is {here}.\nhint: {hint}")
    if other := _what_is_another(directory, plan, allocation.environments):
        raise SuiteError(
            f"{options.resume} was begun with {other}: the repeats of a case would be of both.\n"
            "hint: start a new run, or go back to what it was begun with"
        )
    directory.lock = lock_of(options.resume, options)
    interruption.only_noted()
    try:
        directory.add_hosts(allocation.environments)
        plan = as_this_copy_expects(directory, plan, suite, copy)
    except ClusterbenchError:
        directory.release()
        raise
    if cut_off := directory.cut_off():
        where = f"in the middle of {cut_off['case']}, after its phase '{cut_off['phase']}'"
        tell(f"the last run in {options.resume} ended without a word, {where}")
    return directory, plan


def _what_is_another(directory: RunFolder, plan: Plan, environments: Mapping[str, Any]) -> str:
    """What makes a run go on as another one: a benchmark's version, or a host's GPUs and software. Empty if nothing.

    A port that is down makes another network, and no other machine; on hosts that are new it is for diagnoses to say.
    GPUs beside CPU ranks make none either: an allocation may show others, or none.
    """
    without_effect = ("network", *(OF_GPUS if plan.cluster.device == "cpu" else ()))
    kinds, recorded = benchmarks(), directory.environment().get("hosts") or {}
    if not directory.outcomes():
        return ""
    for case in plan.cases:
        if case.benchmark in kinds and (version := kinds[case.benchmark].version) != case.version:
            return f"version {case.version} of {case.benchmark}, and this is version {version}"
    for host in sorted(recorded.keys() & environments.keys()):
        then, now = (fingerprint_of({"hosts": {host: each[host]}}) for each in (recorded, environments))
        for name in then.unlike(now):
            if name not in without_effect:
                return f"{name} {getattr(then, name)} on host {host}, where it is {getattr(now, name)} now"
    return ""


def _new_folder(
    options: RunOptions, plan: Plan, suite: Suite, allocation: Allocation, interruption: Interruption, copy: str
) -> tuple[RunFolder, Plan]:
    rates = None if options.rates is None else _rates(options.rates, plan, allocation)
    interruption.only_noted()
    while True:
        path = options.out or default_path(Path("reports"), plan.suite, datetime.now())
        RunFolder(path).expect_empty()
        try:
            lock = lock_of(path, options)
        except FolderHeld:
            if options.out is not None:
                raise
            continue  # one that started in the same moment has the name
        try:
            environment = {"hosts": allocation.environments, COPIES: this_copy(copy)}
            return RunFolder.create(path, suite.text, plan, environment, lock, rates, suite.named_files), plan
        except ClusterbenchError:
            lock.release()
            raise


def _rates(path: Path, plan: Plan, allocation: Allocation) -> bytes:
    """A file of rates as it is, once every training step of the plan was priced by it.

    Raises
    ------
    SuiteError
        If it is mistaken, of another machine or framework, or no step could be priced by it.
    """
    from clusterbench.derive.prices import prices_of  # profiles of frameworks, only now

    try:
        prices = prices_of(plan, {"hosts": allocation.environments}, path)
    except SuiteError as error:
        if OPTION not in str(error):
            raise
        why = str(error).splitlines()[0]
        raise SuiteError(f"{why}\nhint: run without --rates; 'clusterbench report' has {OPTION}") from None
    if not prices.by_case:
        why = next(iter(prices.reasons.values()), "it has no case of train_step")
        raise SuiteError(f"--rates has no effect on {plan.suite}, of which no step can be priced: {why}.")
    return path.read_bytes()


def lock_of(folder: Path, options: RunOptions, is_gone: IsGone = Process.is_gone) -> Lock:
    """The right to write into ``folder``, which is said to wait for."""
    run = options.fingerprint or secrets.token_hex(8)
    return Lock.take(folder, run, options.take_over, tell, is_gone)


def _say_why() -> None:
    """MPI's abort ends this process before anybody else could print what happened."""
    error = sys.exception()
    if isinstance(error, ClusterbenchError):
        tell(f"error: {error}")
    elif error is not None and not isinstance(error, KeyboardInterrupt):
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
