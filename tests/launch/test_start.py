"""Real agents, zygotes and workers on this machine."""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from clusterbench.cluster import Cluster
from clusterbench.launch.agent import Agent, Worker
from clusterbench.launch.agents import Agents
from clusterbench.launch.channel import Channel
from clusterbench.launch.conductor import Conductor, LostHosts
from clusterbench.launch.control import Alone
from clusterbench.launch.executions import Execution, left_to_do
from clusterbench.launch.lines import decode_rank_event
from clusterbench.launch.members import members_of
from clusterbench.launch.messages import End, Ended, RankFailed
from clusterbench.run_folder import RunFolder
from clusterbench.types import Case, Plan

pytestmark = pytest.mark.gloo


class Silent:
    def begin(self, number, total, execution): ...
    def reach(self, phase): ...
    def end(self, outcome, observation): ...


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    agent = Agent(host="here", scratch=tmp_path_factory.mktemp("agent"))
    yield agent
    agent.close()


def drill(fault="none", phase="run", world_size=2, rank=1, iterations=8, time_limit_s=60.0, environment=None):
    point = {"fault": fault, "phase": phase, "rank": rank, "sleep_s": 0.0}
    return Case(
        f"fault_drill/1n{world_size}/{fault}-in-{phase}",
        "fault_drill",
        1,
        point,
        "cpu",
        1,
        world_size,
        iterations,
        2,
        time_limit_s,
        environment=environment or {},
    )


def run_and_agents(agent, tmp_path, cases):
    cluster = Cluster(num_nodes=1, ranks_per_node=4, device="cpu", hosts=("here",))
    run = RunFolder.create(tmp_path / "run", b"", Plan("drill", "", cluster, 1, cases, ()), {})
    return run, Agents(agent, Alone(), members_of(["here"], [4]))


def conduct(agent, tmp_path, *cases, store_host=None):
    run, agents = run_and_agents(agent, tmp_path, cases)
    Conductor(agents, run, Silent(), store_host).conduct([Execution(case, 0, 1) for case in cases])
    assert len(run.outcomes()) == len(cases)
    return run.outcomes(), list(run.observations())


@pytest.mark.quick
def test_every_rank_gives_every_sample(agent, tmp_path):
    (outcome,), (observation,) = conduct(agent, tmp_path, drill(world_size=4))
    assert outcome.status == "ok"
    assert [len(samples) for samples in observation.seconds] == [8] * 4
    assert all(second > 0 for samples in observation.seconds for second in samples)
    assert observation.evidence == [{"wrong_elements": 0.0}] * 4


def test_ranks_meet_over_a_store_process_as_they_do_across_hosts(agent, tmp_path):
    outcomes, _ = conduct(agent, tmp_path, drill(), drill(world_size=3), store_host="127.0.0.1")
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]


@pytest.mark.parametrize("phase", ["prepare", "check", "run"])
@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("raise", "failed", "rank 1 (host here): RuntimeError: planted by fault_drill"),
        ("exit", "failed", "rank 1 (host here) ended by itself with exit code 7"),
        ("segfault", "failed", "rank 1 (host here) was killed by signal 11 (SIGSEGV)"),
        ("kill", "failed", "rank 1 (host here) was killed by signal 9 (SIGKILL)"),
        ("out_of_memory", "out_of_memory", "you tried to allocate 4503599627370496 bytes"),
    ],
)
def test_one_failing_rank_costs_one_case(agent, tmp_path, fault, phase, status, words):
    faulty = drill(fault, phase, world_size=3)
    (before, at, after), _ = conduct(agent, tmp_path, drill(world_size=3), faulty, drill(world_size=3, iterations=9))
    assert (before.status, at.status, after.status) == ("ok", status, "ok")
    assert (at.rank, at.host) == (1, "here")
    assert at.phase == {"prepare": "rendezvous", "check": "prepared", "run": "warm"}[phase]
    assert words in at.reason
    assert (tmp_path / "run" / at.log).exists()


@pytest.mark.parametrize(
    ("fault", "words"), [("stop", "its process is stopped (SIGSTOP)"), ("hang", "in _go_wrong (fault_drill.py:")]
)
def test_a_silent_rank_is_named_at_the_deadline(agent, tmp_path, fault, words):
    (at, after), _ = conduct(agent, tmp_path, drill(fault, world_size=3, time_limit_s=10), drill(world_size=3))
    assert (at.status, at.rank, after.status) == ("timeout", 1, "ok")
    assert words in at.reason
    assert at.reason.endswith("the other 2 ranks wait for it")
    assert 10 <= at.elapsed_s < 60  # and not when its peers' transport gives up, after 80 s


def test_a_rank_that_stops_between_two_cases_is_named(agent, tmp_path):
    class StopRank2(Silent):
        def end(self, outcome, observation):
            if outcome.status == "ok":
                os.kill(agent._workers[2].pid, signal.SIGSTOP)

    cases = drill(world_size=3), drill(world_size=3, iterations=9, time_limit_s=5)
    run, agents = run_and_agents(agent, tmp_path, cases)
    Conductor(agents, run, StopRank2()).conduct([Execution(case, 0, 1) for case in cases])
    before, at = run.outcomes()
    assert (before.status, at.status, at.rank) == ("ok", "timeout", 2)
    assert at.reason == (
        "stopped after 5 s: rank 2 (host here) has not left the phase after 'device': its process is stopped "
        "(SIGSTOP); the other 2 ranks wait for it"
    )


def stop_another(agent):
    """Stops the second zygote as soon as the agent knows it, which is long before it has imported torch."""
    while len(agent._zygotes) < 2 or not (another := list(agent._zygotes.values())[1]).pid:
        time.sleep(0.01)
    assert not another.is_ready
    os.kill(another.pid, signal.SIGSTOP)


def stop_another_at_once(agent):
    """Stops the second zygote before it has run a line."""
    (first,) = agent._zygotes.values()
    spawner = psutil.Process(agent._spawner_process.pid)
    while not (new := [child for child in spawner.children() if child.pid != first.pid]):
        time.sleep(0.001)
    new[0].send_signal(signal.SIGSTOP)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("helper", "store_host", "words"),
    [
        ("zygote", None, "its process, or one that starts it, is stopped (SIGSTOP)"),
        ("zygote", "127.0.0.1", "the store on host here, at which ranks of different hosts meet, did not open in 3 s"),
        ("spawner", None, "its process, or one that starts it, is stopped (SIGSTOP)"),
        ("zygote that imports torch", None, "its process, or one that starts it, is stopped (SIGSTOP)"),
        ("zygote that begins", None, "its process, or one that starts it, is stopped (SIGSTOP)"),
    ],
)
def test_a_helper_that_is_stopped_costs_one_case(tmp_path, monkeypatch, helper, store_host, words):
    with closing(Agent(host="here", scratch=tmp_path)) as agent:

        class Stop(Silent):
            def begin(self, number, total, execution):
                # on a busy host a new zygote is there to be stopped after seconds only
                of_second = 5.0 if "that" in helper else 1.0
                patience_s = of_second if number == 2 else 60.0
                monkeypatch.setattr("clusterbench.launch.conductor.SECONDS_TO_START", patience_s)
                if number == 2:
                    (zygote,) = agent._zygotes.values()
                    if "that" in helper:
                        stop = stop_another if helper == "zygote that imports torch" else stop_another_at_once
                        threading.Thread(target=stop, args=(agent,)).start()
                    else:
                        os.kill(zygote.pid if helper == "zygote" else agent._spawner_process.pid, signal.SIGSTOP)

        # variables of its own take a new zygote, which the spawner starts
        variables = {} if helper == "zygote" else {"OMP_WAIT_POLICY": "PASSIVE"}
        variables_of = ({}, variables, variables)
        cases = [drill(world_size=3 - number, time_limit_s=2, environment=of) for number, of in enumerate(variables_of)]
        run, agents = run_and_agents(agent, tmp_path, cases)
        Conductor(agents, run, Stop(), store_host).conduct([Execution(case, 0, 1) for case in cases])
        before, at, after = run.outcomes()
        assert [before.status, at.status, after.status] == ["ok", "timeout", "ok"], (at.reason, after.reason)
        assert (at.host, at.phase) == ("here", "spawned"), at.reason
        assert words in at.reason
        assert store_host or "not left the phase after 'spawned': " in at.reason


def test_a_zygote_that_stops_while_its_ranks_work_costs_none(tmp_path):
    with closing(Agent(host="here", scratch=tmp_path)) as agent:

        class Stop(Silent):
            def end(self, outcome, observation):
                for zygote in agent._zygotes.values():
                    os.kill(zygote.pid, signal.SIGSTOP)

        cases = [drill(world_size=2), drill(world_size=2, iterations=9), drill(world_size=1)]
        run, agents = run_and_agents(agent, tmp_path, cases)
        Conductor(agents, run, Stop()).conduct([Execution(case, 0, 1) for case in cases])
        assert [outcome.status for outcome in run.outcomes()] == ["ok"] * 3


def test_the_stacks_of_all_ranks_are_in_the_logs(agent, tmp_path):
    conduct(agent, tmp_path, drill("hang", world_size=3, time_limit_s=10))
    culprit, victim = ((tmp_path / "run/logs" / f"start-0000-rank-000{rank}.log").read_text() for rank in (1, 0))
    assert "_go_wrong" in culprit
    assert "all_reduce" in victim


def test_a_killed_zygote_costs_one_case(agent, tmp_path):
    def kill_the_zygote():
        time.sleep(1.5)
        while not (zygotes := children_of(agent._spawner_process.pid)):
            time.sleep(0.1)
        for pid in zygotes:
            os.kill(pid, signal.SIGKILL)

    threading.Thread(target=kill_the_zygote).start()
    (at, after), _ = conduct(agent, tmp_path, drill("hang", world_size=2, time_limit_s=200), drill(world_size=2))
    assert (at.status, after.status) == ("failed", "ok")
    assert at.elapsed_s < 100


def test_a_store_that_is_killed_before_ranks_meet_costs_one_case_at_once_and_is_named(agent, tmp_path, monkeypatch):
    open_store = Agent._open_store

    def and_kill_it(agent, order):
        monkeypatch.undo()
        open_store(agent, order)
        (zygote,) = children_of(agent._spawner_process.pid)
        while not (stores := children_of(zygote)):
            time.sleep(0.001)
        for pid in stores:
            os.kill(pid, signal.SIGKILL)

    conduct(agent, tmp_path, drill())  # its zygote stays, and has no children
    monkeypatch.setattr(Agent, "_open_store", and_kill_it)
    (at, after), _ = conduct(agent, tmp_path / "2", drill(world_size=3), drill(), store_host="127.0.0.1")
    assert (at.status, at.rank, at.host, after.status) == ("failed", None, "here", "ok")
    assert at.reason.startswith("the store on host here, at which ranks meet, was killed by signal 9 (SIGKILL): by ")
    assert at.elapsed_s < 60  # and not when the time for a start is over


def kill_while_a_case_hangs(pid, agent):
    """Kills the process ``pid`` once the agent has workers."""
    while not agent._workers or not all(worker.pid for worker in agent._workers.values()):
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)


def test_a_killed_spawner_costs_one_case_which_says_so(agent, tmp_path):
    threading.Thread(target=kill_while_a_case_hangs, args=(agent._spawner_process.pid, agent)).start()
    (at, after), _ = conduct(agent, tmp_path, drill("hang", time_limit_s=200), drill())
    assert (at.status, at.host, at.lost_hosts, after.status) == ("failed", "here", (), "ok")
    assert at.elapsed_s < 100
    assert at.reason == (
        "the spawner on host here, from which all other processes there are started, was killed by signal 9 (SIGKILL): "
        "by someone, by the batch system, or by the kernel for want of memory (dmesg tells)"
    )


def test_a_rank_that_is_killed_while_its_zygote_is_stopped_is_named_and_not_its_victims(agent, tmp_path):
    class StopZygote(Silent):
        def reach(self, phase):
            if phase == "checked" and not run.outcomes():
                os.kill(agent._in_use.pid, signal.SIGSTOP)

    cases = drill("kill", world_size=3), drill()
    run, agents = run_and_agents(agent, tmp_path, cases)
    Conductor(agents, run, StopZygote()).conduct([Execution(case, 0, 1) for case in cases])
    at, after = run.outcomes()
    assert (at.status, at.rank, at.host, at.blame, after.status) == ("failed", 1, "here", "process", "ok")
    assert "rank 1 (host here) was killed by signal 9 (SIGKILL)" in at.reason
    assert at.elapsed_s < 20  # and not when it is certain that no agent is silent


def test_temporary_files_that_are_cleared_away_between_two_cases_cost_nothing(tmp_path, monkeypatch):
    class ClearAway(Silent):
        def end(self, outcome, observation):
            shutil.rmtree(temporary)

    temporary = tmp_path / "tmp"
    (temporary / "agent").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    cases = drill(environment={"CASE": "1"}), drill(environment={"CASE": "2"})
    with closing(Agent(host="here", scratch=temporary / "agent")) as agent:
        run, agents = run_and_agents(agent, tmp_path, cases)
        Conductor(agents, run, ClearAway()).conduct([Execution(case, 0, 1) for case in cases])
    assert [outcome.status for outcome in run.outcomes()] == ["ok", "ok"]


def test_an_agent_without_room_for_temporary_files_is_lost_in_order_and_says_where(tmp_path):
    (tmp_path / "file").touch()
    with closing(Agent(host="here", scratch=tmp_path / "file" / "agent")) as agent:
        run, agents = run_and_agents(agent, tmp_path, (drill(),))
        with pytest.raises(LostHosts) as caught:
            Conductor(agents, run, Silent()).conduct([Execution(drill(), 0, 1)])
    assert str(caught.value) == (
        "host here was lost: its agent can start no worker any more: its temporary folder "
        f"{tmp_path}/file/agent cannot be written: Not a directory (name a folder that can be made)"
    )
    assert left_to_do(run.plan(), run.outcomes())


def test_a_spawner_that_is_killed_between_runs_costs_nothing(agent, tmp_path):
    conduct(agent, tmp_path, drill())
    agent._spawner_process.kill()
    agent._spawner_process.wait()  # a kill takes effect later; what is asked of it until then is lost with it
    (outcome,), _ = conduct(agent, tmp_path / "again", drill())
    assert outcome.status == "ok"


def test_where_no_spawner_can_be_started_again_the_run_ends_and_the_rest_is_left_to_resume(tmp_path):
    agent = Agent(host="here", scratch=tmp_path, restarts_spawner=False)
    cases = drill("hang", time_limit_s=200), drill()
    run, agents = run_and_agents(agent, tmp_path, cases)
    threading.Thread(target=kill_while_a_case_hangs, args=(agent._spawner_process.pid, agent)).start()
    try:
        with pytest.raises(
            LostHosts, match=r"^host here was lost: its agent can start no worker any more: the spawner"
        ):
            Conductor(agents, run, Silent()).conduct([Execution(case, 0, 1) for case in cases])
    finally:
        agent.close()
    (outcome,) = run.outcomes()
    assert (outcome.case, outcome.status, outcome.lost_hosts) == (cases[0].id, "failed", ("here",))
    assert (
        "ranks 0-3 (host here) were lost: the agent there can start no worker any more: the spawner" in outcome.reason
    )
    assert agents.leaving == "in order"
    left = [(execution.case.hash, execution.attempt) for execution in left_to_do(run.plan(), run.outcomes())]
    assert left == [(cases[0].hash, 2), (cases[1].hash, 1)]


def test_torch_that_cannot_be_imported_is_said_with_the_error(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: wrong ELF class')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    agent = Agent(host="here", scratch=tmp_path)
    try:
        (outcome,), _ = conduct(agent, tmp_path, drill())
    finally:
        agent.close()
    assert outcome.reason == "torch could not be imported on host here: ImportError: libtorch.so: wrong ELF class"


def test_a_zygote_that_is_killed_while_it_imports_does_not_blame_torch(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    agent = Agent(host="here", scratch=tmp_path)
    try:
        (outcome,), _ = conduct(agent, tmp_path, drill())
    finally:
        agent.close()
    assert outcome.reason == "the process that forks workers on host here ended while it imported torch"


def test_a_worker_whose_words_cannot_be_read_has_failed(agent, tmp_path):
    channel, worker = Channel.pair(decode_rank_event)
    agent._workers[0] = Worker(0, 0, channel, tmp_path / "log", tmp_path / "own_log")
    agent._selector.register(channel, selectors.EVENT_READ)
    worker.sendall(b'{"message": "RankReady"}\n')
    try:
        assert agent.events(60) == [
            RankFailed(0, "here", "failed", "what it sent is no message (in RankReady 'host' is missing)", "spawned")
        ]
    finally:
        agent._workers.clear()
        worker.close()
        channel.close()


FORKING = """
import os, signal, sys, time
if "clusterbench.launch.zygote" in sys.orig_argv:
    from clusterbench.benchmarks import fault_drill
    def go_wrong(fault, rig):
        if (pid := os.fork()) == 0:  # with all that its parent has open: connections, channel, log
            time.sleep(1000)
        with open(os.environ["FORKED"], "a") as forked:
            print(pid, file=forked)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    fault_drill._go_wrong = go_wrong
"""


def test_what_a_worker_forks_ends_with_it_and_hides_neither_its_death_nor_its_end(tmp_path, monkeypatch):
    """As a data loader does."""
    (tmp_path / "sitecustomize.py").write_text(FORKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FORKED", str(tmp_path / "forked"))
    agent = Agent(host="here", scratch=tmp_path)
    try:
        outcomes, _ = conduct(
            agent, tmp_path, drill("raise"), drill("kill", iterations=9), drill("raise", iterations=10)
        )
    finally:
        agent.close()
    assert [(outcome.status, outcome.rank) for outcome in outcomes] == [("ok", None), ("failed", 1), ("ok", None)]
    assert "was killed by signal 9 (SIGKILL)" in outcomes[1].reason
    assert max(outcome.elapsed_s for outcome in outcomes) < 60  # its peers see an open connection
    forked = [int(pid) for pid in (tmp_path / "forked").read_text().split()]
    assert len(forked) == 3
    deadline = time.monotonic() + 60
    while any(map(is_alive, forked)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_alive, forked))


@pytest.mark.matrix
@pytest.mark.parametrize("killed", ["agent", "agent while the zygote is stopped", "spawner", "zygote"])
def test_what_a_worker_forked_ends_where_what_started_it_is_killed(tmp_path, monkeypatch, killed):
    (tmp_path / "sitecustomize.py").write_text(FORKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FORKED", str(tmp_path / "forked"))
    (tmp_path / "suite.yaml").write_text(
        "suite: forking\nbenchmarks: [{benchmark: fault_drill, sleep_s: 0.5, iterations: 100}]\ncpu: {num_ranks: 2}\n"
    )
    words = [sys.executable, "-m", "clusterbench.cli", "run", str(tmp_path / "suite.yaml"), "--out", "run"]
    agent = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (said := tmp_path / "forked").exists() or not said.read_text().endswith("\n"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (spawner,) = children_of(agent.pid)
        (zygote,) = children_of(spawner)
        if killed == "agent while the zygote is stopped":
            os.kill(zygote, signal.SIGSTOP)
        victim = {"spawner": spawner, "zygote": zygote}.get(killed, agent.pid)
        forked, family = int(said.read_text()), descendants_of(victim)
        assert forked in family
        os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while any(map(is_alive, family)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(is_alive, family))
    finally:
        agent.kill()
        agent.wait()
        with suppress(ProcessLookupError):
            os.kill(forked, signal.SIGKILL)


def test_an_agent_waits_for_no_disk_but_its_own(tmp_path, monkeypatch):
    """A pipe that nobody writes to stands for a log on a network disk that stalls."""
    monkeypatch.setattr("clusterbench.launch.agent.SECONDS_OF_A_DISK", 0.2)
    agent = Agent(host="here", scratch=tmp_path)
    channel, given = Channel.pair(decode_rank_event)
    os.mkfifo(tmp_path / "log")
    sleeper = subprocess.Popen(["sleep", "100"])
    agent._workers[0] = Worker(0, 0, channel, tmp_path / "log", tmp_path / "own_log", sleeper.pid, -9)
    try:
        agent.execute(End(7, kill=True))
        assert agent.events(0.0) == [Ended(7, {})]
    finally:
        os.close(os.open(tmp_path / "log", os.O_RDWR))  # the disk is back
        given.close()
        agent.close()
        sleeper.kill()
        sleeper.wait()


def test_a_log_that_cannot_be_made_costs_no_case(agent, tmp_path):
    """As on a disk without inodes; what a rank says of its failure is there all the same."""
    cases = drill(), drill("raise")
    run, agents = run_and_agents(agent, tmp_path, cases)
    run.logs.rmdir()
    run.logs.write_text("no folder")
    Conductor(agents, run, Silent()).conduct([Execution(case, 0, 1) for case in cases])
    well, failed = run.outcomes()
    assert (well.status, failed.status, failed.rank) == ("ok", "failed", 1)
    assert "RuntimeError: planted by fault_drill" in failed.reason


def test_a_cases_variables_reach_its_workers(agent, tmp_path):
    (outcome,), _ = conduct(agent, tmp_path, drill(environment={"OMP_NUM_THREADS": "2"}))
    assert outcome.status == "ok"
    assert RunFolder.open(tmp_path / "run").environment()["loaded"]["here"]["num_threads"] == 2


def test_nothing_survives_the_death_of_an_agent(tmp_path):
    program = f"""
import time
from contextlib import suppress
from pathlib import Path
from clusterbench.launch.agent import Agent
from clusterbench.launch.messages import Own, RankReady, Start, StorePlace
agent = Agent("here", Path({str(tmp_path)!r}))
agent.execute(Own((0, 1), {{}}))
agent.execute(Start(0, 2, "cpu", {{}}, StorePlace(file={str(tmp_path / "s")!r}), 60.0, {str(tmp_path)!r}))
ready = 0
while ready < 2:
    ready += sum(isinstance(event, RankReady) for event in agent.events(0.1))
print("ready", flush=True)
time.sleep(100)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    family = descendants_of(process.pid)
    assert len(family) == 4  # spawner, zygote, two workers
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 60
    while any(map(is_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_alive, family))


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants_of(pid):
    return [each for child in children_of(pid) for each in (child, *descendants_of(child))]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
