"""Many members at once, over TCP in one process, with the real conductor; ``tests/bench`` has the seconds."""

import os
import resource
import secrets
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launch import events
from clusterbench.launch.agents import Agents, Silence, dismiss
from clusterbench.launch.allocation import gather, measure_clocks
from clusterbench.launch.channel import Channel
from clusterbench.launch.conductor import Conductor, LostHosts
from clusterbench.launch.control import HEAD, TcpHead
from clusterbench.launch.executions import Execution
from clusterbench.launch.lines import decode_event
from clusterbench.launch.members import members_of
from clusterbench.launch.messages import LostZygote, RankDone, Sign
from clusterbench.run_folder import RunFolder
from tests.launch.crowd import SAMPLES, Crowd, StandIn, case_of, hello_of, plan_of

RANKS = 64
SECRET = secrets.token_bytes(32)


class Watch:
    def begin(self, number, total, execution): ...
    def reach(self, phase): ...
    def end(self, outcome, observation): ...


@pytest.fixture
def ends_and_agents():
    plane = TcpHead(RANKS + 1, SECRET)
    crowd = Crowd(plane.address, RANKS + 1, range(1, RANKS + 1), SECRET, {"cpu_model": "x"})
    with ThreadPoolExecutor() as pool:
        ends = pool.submit(crowd.live)
        yield ends, _agents(plane)
        plane.close()


def _agents(plane):
    plane.gather(60)
    allocation = gather(plane, hello_of(HEAD, {"cpu_model": "x"}))
    agent = StandIn(allocation.hosts[HEAD])
    measure_clocks(plane, allocation)
    assert all("clock_offset_s" in allocation.environments[host] for host in allocation.names[1:])
    return Agents(agent, plane, members_of(allocation.hosts, [1] * plane.size, allocation.names[1:]))


def conduct(agents, path, *cases):
    directory = RunFolder.create(path / "run", b"", plan_of(RANKS, cases), {})
    try:
        Conductor(agents, directory, Watch(), "127.0.0.1").conduct([Execution(case, 0, 1) for case in cases])
        said = ""
    except LostHosts as error:
        said = str(error)
    return directory, said


def test_the_samples_of_all_ranks_arrive_in_rank_order(ends_and_agents, tmp_path):
    ends, agents = ends_and_agents
    directory, said = conduct(agents, tmp_path, case_of(RANKS))
    assert said == ""
    assert [outcome.status for outcome in directory.outcomes()] == ["ok"]
    (observation,) = directory.observations()
    assert [len(samples) for samples in observation.seconds] == [SAMPLES] * RANKS
    assert observation.hosts == tuple(f"n{number:04d}" for number in range(RANKS // 8))
    dismiss(agents._plane, 7)
    assert ends.result() == {"7": RANKS}


def test_connections_cut_in_the_middle_of_a_case_are_all_named(ends_and_agents, tmp_path):
    ends, agents = ends_and_agents
    directory, said = conduct(agents, tmp_path, case_of(RANKS, "cut", cut=(3, 17, 20)), case_of(RANKS))
    assert said == "hosts n0000, n0002 were lost: each of their agents closed its connection"
    (outcome,) = directory.outcomes()  # the case behind it is left for later
    assert (outcome.status, outcome.rank, outcome.host, outcome.phase) == ("failed", 3, "n0000", "warm")
    assert outcome.lost_hosts == ("n0000", "n0002")
    assert outcome.reason == (
        "ranks 3, 17 and 20 (hosts n0000, n0002) were lost: each agent there closed its connection"
    )
    assert len(agents.present) == RANKS - 3
    dismiss(agents._plane, 0, agents.lost)
    assert ends.result() == {"0": RANKS - 3, "the head of the run is gone": 3}


def test_a_run_that_loses_everybody_ends_at_once(ends_and_agents, tmp_path, monkeypatch):
    monkeypatch.setattr(events, "SECONDS_TO_ANSWER", 60.0)
    ends, agents = ends_and_agents
    start_s = time.monotonic()
    directory, said = conduct(agents, tmp_path, case_of(RANKS, "cut", cut=range(RANKS)))
    assert time.monotonic() - start_s < 25  # the head asks nobody who is not there, and waits for nobody
    assert "n0007 were lost" in said
    (outcome,) = directory.outcomes()
    assert len(outcome.lost_hosts) == RANKS // 8
    assert ends.result() == {"the head of the run is gone": RANKS}


def test_the_soft_limit_of_open_files_is_raised_as_far_as_needed(monkeypatch):
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    head = TcpHead(2000, SECRET)
    with pytest.raises(LaunchError, match="1999 of 2000 agents did not come"):
        head.gather(0)
    head.close()
    assert raised == [(2256, 4096)]


def test_more_agents_than_files_may_be_open_are_refused_at_once(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(socket, "gethostname", lambda: "login1")
    head = TcpHead(16384, SECRET)
    with pytest.raises(LaunchError) as caught:
        head.gather(60)
    head.close()
    assert str(caught.value) == (
        "16384 agents are as many connections to the head, but login1 lets a process open 4096 files, and 256 of them "
        "are for other things.\n"
        "hint: start one agent per node (--ranks-per-agent all), or have the hard limit raised (see 'ulimit -Hn')"
    )


def test_who_was_heard_longest_ago_is_found_silent_first(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    silence = Silence([1, 2, 3])
    for now, heard in ((1.0, [3]), (2.0, [1]), (4.0, [])):
        clock[0] = now
        silence.heard(heard)
    assert silence.longer_than(1.5) == [2, 3, 1]
    assert silence.longer_than(2.5) == [2, 3]
    clock[0] = 1000.0  # this process was stopped meanwhile, which is nobody's silence
    silence.heard([])
    assert silence.longer_than(5.5) == [2]


def test_nothing_is_written_behind_half_a_message():
    ours, theirs = socket.socketpair()
    sender, reader = Channel(ours, decode_event, patience_s=0.0), Channel(theirs, decode_event)
    assert not sender.send(LostZygote("a", "x" * 10_000_000))  # nobody takes it
    assert reader.receive() == []
    assert not sender.send(Sign())
    sender.close()
    assert reader.receive() == []
    assert reader.closed
    for channel in (sender, reader):
        channel.close()


def test_a_long_message_in_many_pieces_is_put_together():
    ours, theirs = socket.socketpair()
    sender, reader = Channel(ours, decode_event), Channel(theirs, decode_event)
    long, short = RankDone(0, "a", [0.5], {}, {"trace": list(range(300_000))}), Sign()
    thread = threading.Thread(target=lambda: [sender.send(message) for message in (long, short)])
    thread.start()
    heard = []
    while len(heard) < 2:
        heard += reader.receive(wait=True)
    thread.join()
    assert heard == [long, short]
    for channel in (sender, reader):
        channel.close()


def test_no_torch_is_needed():
    code = "import sys, tests.launch.test_scale; sys.exit('torch' in sys.modules)"
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0
