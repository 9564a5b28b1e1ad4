from types import SimpleNamespace

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launch.agents import SECONDS_BETWEEN_SIGNS, Agents
from clusterbench.launch.control import Alone
from clusterbench.launch.culprit import Heard
from clusterbench.launch.members import Member, members_of
from clusterbench.launch.messages import (
    Disabled,
    ExpectSilence,
    GpuSamples,
    GpusSampled,
    Inspected,
    LostAgent,
    RankDone,
    RankPlace,
    RankReached,
)
from tests.launch.crowd import StandIn


def test_one_agent_per_rank_counts_node_by_node():
    assert members_of(["a", "a", "b", "b"], [1, 1, 1, 1]) == (
        Member(0, "a", 0, (0,)),
        Member(1, "a", 1, (1,)),
        Member(2, "b", 2, (0,)),
        Member(3, "b", 3, (1,)),
    )


def test_agents_dealt_out_in_turn_still_count_node_by_node():
    members = members_of(["a", "b", "a", "b"], [1, 1, 1, 1])
    assert [(member.agent, member.host, member.first_rank) for member in members] == [
        (0, "a", 0),
        (2, "a", 1),
        (1, "b", 2),
        (3, "b", 3),
    ]


def test_one_agent_may_own_a_whole_node():
    assert members_of(["a", "b"], [8, 8])[1] == Member(1, "b", 8, tuple(range(8)))


def test_uneven_nodes_are_refused_with_the_counts():
    with pytest.raises(LaunchError) as caught:
        members_of(["a", "a", "b"], [1, 1, 1])
    assert str(caught.value) == (
        "nodes must own equally many ranks, but a has 2, b has 1.\n"
        "hint: give mpirun as many slots on every host, e.g. -n 8 -host a:4,b:4, and srun --ntasks-per-node=4"
    )


def test_mpi_is_aborted_where_a_rank_is_stuck_and_abandoned_where_one_does_not_answer():
    agents = Agents(StandIn("a"), Alone(), members_of(["a"], [1]))
    assert agents.leaving == "in order"
    agents.is_stuck = True
    assert agents.leaving == "aborted"
    agents.all_answer = False
    assert agents.leaving == "abandoned"
    agents.is_stuck, agents.all_answer, agents.lost = False, True, {1: "closed its connection"}
    assert agents.leaving == "abandoned"


class Mute:
    """The plane of two agents of which the other says this much and never another word."""

    size = 2

    def __init__(self, *said):
        self.sent = []
        self.said = list(said)
        self.dropped = {}

    def send(self, to, message):
        self.sent.append(message)

    def receive(self):
        said, self.said = self.said, []
        return said

    def lost(self):
        return self.dropped

    def drop(self, agent, why):
        self.dropped[agent] = why


@pytest.mark.parametrize("silence_s", [6.0, 20.0])
def test_an_agent_is_lost_after_as_long_a_silence_as_was_said(monkeypatch, silence_s):
    clock = [0.0]
    monkeypatch.setattr("clusterbench.launch.agents.time.monotonic", lambda: clock[0])
    plane = Mute()
    agents = Agents(StandIn("a"), plane, members_of(["a", "b"], [1, 1]), silence_s=silence_s)
    assert plane.sent[0] == ExpectSilence(silence_s)  # and the other waits as long for the head
    while clock[0] < silence_s:
        clock[0] += 1.0
        assert agents.events(0.0) == []
    clock[0] += 1.0
    (event,) = agents.events(0.0)
    assert (event.host, event.why) == ("b", f"said nothing for {silence_s:g} s")


@pytest.mark.parametrize(
    ("stood_still_s", "host", "why"),
    [
        (31.0, "a", "stood still for 31 s, and the other agents took it for lost"),
        (12.0, "b", "closed its connection"),  # as nobody leaves for that
    ],
)
def test_a_head_that_stood_still_for_as_long_as_the_others_wait_is_what_was_lost(monkeypatch, stood_still_s, host, why):
    clock = [0.0]
    monkeypatch.setattr("clusterbench.launch.agents.time.monotonic", lambda: clock[0])
    plane = Mute()
    agents = Agents(StandIn("a"), plane, members_of(["a", "b"], [1, 1]))
    for seconds in (0.5, 0.5, stood_still_s):
        assert agents.events(0.0) == []
        clock[0] += seconds
    plane.drop(1, "closed its connection")
    assert agents.events(0.0) == [LostAgent(1, "b", why)]
    assert agents.losses == {host: why}
    assert agents.lost_hosts == (host,)


def test_a_connection_that_is_closed_long_after_the_head_stood_still_is_the_others_doing(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("clusterbench.launch.agents.time.monotonic", lambda: clock[0])
    plane = Mute()
    agents = Agents(StandIn("a"), plane, members_of(["a", "b"], [1, 1]))
    for seconds in (0.5, 31.0, 1.0, 1.0, 1.0):
        assert agents.events(0.0) == []
        clock[0] += seconds
    plane.drop(1, "closed its connection")
    assert agents.events(0.0) == [LostAgent(1, "b", "closed its connection")]
    assert agents.losses == {"b": "closed its connection"}


def test_heard_is_who_misses_no_sign_and_what_the_own_links_are(monkeypatch):
    clock, up = [0.0], {"lo": True, "ib0": True, "ib1": False}
    monkeypatch.setattr("clusterbench.launch.agents.time.monotonic", lambda: clock[0])
    seen = {name: SimpleNamespace(isup=True) for name in up}
    monkeypatch.setattr("psutil.net_if_stats", lambda: {name: seen[name] for name in up if up[name]})
    agents = Agents(StandIn("a"), Mute(), members_of(["a", "b"], [1, 1]))
    assert agents.heard() == Heard("a", {"a", "b"}, 2)
    while clock[0] <= 2 * SECONDS_BETWEEN_SIGNS:
        clock[0] += 1.0
        agents.events(0.0)
    up |= {"ib0": False, "ib1": True}  # another that comes up is none that was there
    assert agents.heard() == Heard("a", {"a"}, 2, ("ib0",))


PLACE = RankPlace(0, "a", "warm", 3, "S", (), "")


@pytest.mark.parametrize(
    ("said", "whose"),
    [
        (RankReached(0, "b", "checked"), "rank 0"),
        (RankReached(7, "b", "checked"), "rank 7"),
        (RankDone(1, "a", [], {}, {}), "host a"),
        (Inspected((PLACE,)), "rank 0"),
        (GpusSampled("a", GpuSamples(1.0, ())), "host a"),
    ],
)
def test_an_agent_that_speaks_for_another_is_lost(said, whose):
    agents = Agents(StandIn("a"), Mute((1, said)), members_of(["a", "b"], [1, 1]))
    (event,) = agents.events(0.0)
    assert event == LostAgent(1, "b", f"spoke for {whose}, which is not its own")
    assert agents.lost_hosts == ("b",)


def test_an_agent_that_can_start_nothing_is_lost_for_the_run_and_still_answers():
    agents = Agents(StandIn("a"), Mute((1, Disabled("can start no worker"))), members_of(["a", "b"], [1, 1]))
    assert agents.events(0.0) == [LostAgent(1, "b", "can start no worker")]
    assert (agents.lost, agents.disabled, agents.lost_hosts) == ({}, {1: "can start no worker"}, ("b",))
    assert [member.agent for member in agents.present] == [0, 1]
    assert agents.leaving == "in order"
