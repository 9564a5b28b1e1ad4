"""Whether hosts reach the head over a network, asked before anything relies on it."""

import socket
from collections import deque

import pytest

from clusterbench.errors import SuiteError
from clusterbench.launch import reach
from clusterbench.launch.allocation import Allocation
from clusterbench.launch.messages import AddressTried, Interrupted, Sign
from clusterbench.launch.reach import reached_interfaces, why_not_reached

DEAD, NETWORK = "10.88.0", "10.77.0"


class Plane:
    """Members that reach, or do not reach, an address when they are asked to try it."""

    rank = 0

    def __init__(self, size, answer):
        self.size = size
        self.sent = []
        self._answer = answer
        self._arrived = deque()

    def send(self, to, message):
        self.sent.append((to, message.address))
        self._arrived.append([(to, self._answer(to, message))])

    def receive(self):
        return self._arrived.popleft() if self._arrived else []

    def lost(self):
        return {}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Any address can be listened on, and nobody tries for long."""
    monkeypatch.setattr(reach, "SECONDS_TO_REACH", 0.5)
    monkeypatch.setattr(reach, "SECONDS_OF_AN_ANSWER", 0.2)
    monkeypatch.setattr(reach, "SECONDS_BETWEEN_TRIES", 0.01)
    really = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda address, **how: really(("127.0.0.1", address[1]), **how))


def allocation(*hosts):
    """Hosts with two networks, of which the first one listed is fab0."""

    def described(index):
        networks = {"fab0": f"{DEAD}.{index}/24", "eth0": f"{NETWORK}.{index}/24"}
        return {"network": [{"name": name, "addresses": [address]} for name, address in networks.items()]}

    return Allocation(hosts, {host: described(index) for index, host in enumerate(dict.fromkeys(hosts), 1)})


def chosen(plane, found, wanted=None):
    interfaces = reached_interfaces(plane, found, found.names, wanted)
    assert {host: found.environments[host]["interface"] for host in interfaces} == {
        host: interface.name for host, interface in interfaces.items()
    }
    return {host: interface.address for host, interface in interfaces.items()}


def on(network, why="timed out"):
    """Members that reach addresses of one network only."""
    return lambda to, tried: AddressTried(tried.port, "" if tried.address.startswith(network) else why)


def test_the_first_network_is_taken_where_all_reach_the_head_over_it(capfd):
    plane = Plane(4, on(""))
    assert chosen(plane, allocation("a", "a", "b", "c")) == {"a": f"{DEAD}.1", "b": f"{DEAD}.2", "c": f"{DEAD}.3"}
    assert plane.sent == [(2, f"{DEAD}.1"), (3, f"{DEAD}.1")]  # one agent of each other host, once
    assert capfd.readouterr().err == ""


def test_one_that_leads_nowhere_is_passed_over_and_said(capfd):
    assert chosen(Plane(2, on(NETWORK)), allocation("a", "b")) == {"a": f"{NETWORK}.1", "b": f"{NETWORK}.2"}
    assert capfd.readouterr().err == (
        f"warning: b does not reach {DEAD}.1 of a (fab0) within 0.5 s: timed out\n"
        f"warning: ranks talk over eth0, {NETWORK}.1 of a, which all hosts reach\n"
    )


def test_one_host_that_does_not_reach_it_is_enough(capfd):
    plane = Plane(3, lambda to, tried: (on(NETWORK) if to == 2 else on(""))(to, tried))
    assert chosen(plane, allocation("a", "b", "c"))["a"] == f"{NETWORK}.1"
    assert capfd.readouterr().err.startswith("warning: c does not reach 10.88.0.1 of a (fab0)")


def test_a_network_that_comes_back_in_time_is_taken(monkeypatch, capfd):
    monkeypatch.setattr(reach, "SECONDS_TO_REACH", 60.0)
    answers = iter(["No route to host", "", ""])
    plane = Plane(2, lambda to, tried: AddressTried(tried.port, next(answers)))
    assert chosen(plane, allocation("a", "b")) == {"a": f"{DEAD}.1", "b": f"{DEAD}.2"}
    assert capfd.readouterr().err == ""


def test_where_no_network_is_reached_the_run_goes_on_with_the_first_and_says_so(capfd):
    """Cases of one host can be measured all the same, and a link may come back."""
    assert chosen(Plane(2, on("none")), allocation("a", "b")) == {"a": f"{DEAD}.1", "b": f"{DEAD}.2"}
    assert capfd.readouterr().err == (
        f"warning: b does not reach {DEAD}.1 of a (fab0) within 0.5 s: timed out\n"
        f"warning: b does not reach {NETWORK}.1 of a (eth0) within 0.5 s: timed out\n"
        "warning: no network of these hosts leads to a: ranks on several hosts will not meet unless that changes\n"
    )


def test_one_that_was_asked_for_and_leads_nowhere_is_an_error():
    with pytest.raises(SuiteError) as caught:
        reached_interfaces(Plane(3, on(NETWORK)), allocation("a", "b", "c"), ("a", "b", "c"), "fab0")
    assert str(caught.value) == (
        f"--interface fab0: b, c do not reach {DEAD}.1 of a over it within 0.5 s: timed out.\n"
        f"hint: 'ping {DEAD}.1' on b; without --interface the first network that leads to a is taken"
    )


def test_an_answer_about_another_address_is_none(capfd):
    assert (
        chosen(Plane(2, lambda to, tried: AddressTried(tried.port + 1, "")), allocation("a", "b"))["a"] == f"{DEAD}.1"
    )
    assert "does not reach 10.88.0.1 of a (fab0) within 0.5 s: its agent did not answer" in capfd.readouterr().err


def test_who_says_something_else_is_waited_for(capfd):
    plane = Plane(2, on(""))
    plane._arrived.append([(1, Sign())])
    assert chosen(plane, allocation("a", "b")) == {"a": f"{DEAD}.1", "b": f"{DEAD}.2"}


def test_whoever_asks_for_the_end_is_heard():
    with pytest.raises(KeyboardInterrupt):
        chosen(Plane(2, lambda to, tried: Interrupted()), allocation("a", "b"))


def test_alone_nothing_is_asked():
    plane = Plane(1, on("none"))
    assert (chosen(plane, allocation("a")), plane.sent) == ({}, [])


def test_an_agent_tries_for_some_seconds_and_says_why_not(monkeypatch):
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert why_not_reached("127.0.0.1", listener.getsockname()[1]) == ""
        port = listener.getsockname()[1]
    assert why_not_reached("127.0.0.1", port) == "Connection refused"
    assert why_not_reached("no address", port) != ""
