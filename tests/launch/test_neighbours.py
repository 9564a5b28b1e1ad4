"""Whose link is gone, by hosts that are not of the run."""

from types import SimpleNamespace

import psutil
import pytest

from clusterbench.launch import neighbours
from clusterbench.launch.agents import Agents
from clusterbench.launch.members import members_of
from clusterbench.launch.neighbours import Neighbours
from tests.launch.test_agents import Mute, StandIn

OWN, PEER, LOGIN, FILES = "10.1.0.1", "10.1.0.2", "10.1.0.254", "10.1.0.253"


class Connected:
    """A host that has connections with these addresses, of which some answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *others: tuple[str, str]) -> None:
        self.answer: set[str] = set()
        self.asked: list[str] = []
        monkeypatch.setattr(neighbours, "_connections", lambda: iter(others))
        monkeypatch.setattr(neighbours, "_answers", self.answers)

    def answers(self, address: str) -> bool:
        self.asked.append(address)
        return address in self.answer


def test_those_that_answered_are_gone_when_none_of_them_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Connected(monkeypatch, (OWN, LOGIN), (OWN, FILES), (OWN, LOGIN))
    host.answer = {LOGIN, FILES}
    found = Neighbours(OWN)
    assert found.gone() == ()
    host.answer = {FILES}
    assert found.gone() == ()
    host.answer = set()
    assert found.gone() == (LOGIN, FILES)


def test_who_never_answered_is_of_the_run_or_is_reached_another_way_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Connected(monkeypatch, (OWN, LOGIN), (OWN, PEER), ("192.168.0.1", FILES))
    host.answer = {PEER, FILES}
    found = Neighbours(OWN, {OWN, PEER})
    host.answer = set()
    assert found.gone() == ()
    assert set(host.asked) == {LOGIN}


def test_connections_within_a_host_lead_to_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    def connection(own: str, other: str, status: str = psutil.CONN_ESTABLISHED) -> object:
        laddr, raddr = SimpleNamespace(ip=own, port=5), SimpleNamespace(ip=other, port=22)
        return SimpleNamespace(laddr=laddr, raddr=raddr, status=status)

    connections = [
        connection("127.0.0.1", "127.0.0.1"),
        connection(OWN, OWN),
        connection("::ffff:10.1.0.1", "::ffff:10.1.0.254"),
        connection(OWN, FILES, psutil.CONN_TIME_WAIT),
        SimpleNamespace(laddr=SimpleNamespace(ip=OWN, port=5), raddr=(), status=psutil.CONN_LISTEN),
    ]
    monkeypatch.setattr(psutil, "net_connections", lambda kind: connections)
    assert list(neighbours._connections()) == [(OWN, LOGIN)]


def test_a_system_that_does_not_tell_of_connections_has_no_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: str) -> object:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refuse)
    assert list(neighbours._connections()) == []
    assert Neighbours(OWN).gone() == ()


def test_neighbours_are_asked_only_when_a_host_is_lost_and_no_other_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Connected(monkeypatch, (OWN, LOGIN))
    host.answer = {LOGIN}
    found = Neighbours(OWN)
    found.gone()
    host.answer, host.asked = set(), []
    agents = Agents(StandIn("a"), Mute(), members_of(["a", "b"], [1, 1]), neighbours=found)
    assert agents.heard_at_loss() == agents.heard()
    assert not host.asked
    monkeypatch.setattr(agents._silence, "longer_than", lambda seconds: [1])
    assert agents.heard_at_loss().gone == (LOGIN,)
