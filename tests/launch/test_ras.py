"""NCCL's RAS asked over a socket: a stand-in that answers in the shapes the user guide documents, or in others."""

import json
import re
import socket
import threading
from contextlib import contextmanager, suppress

import pytest

from clusterbench.errors import ToolError
from clusterbench.launch import ras
from clusterbench.launch.agent import Agent
from clusterbench.launch.messages import AskRas, RasTold
from clusterbench.launch.ras import ask
from tests.tools.test_nccl_ras import reply

NO_WAIT = lambda seconds: None  # noqa: E731


@contextmanager
def listening(*answers, protocol=b"SERVER PROTOCOL 2\n", form=b"OK\n", closes=True):
    """Where something listens that gives these answers, one a connection."""
    server = socket.create_server(("localhost", 0))
    orders = []

    def serve():
        for answer in answers:
            connection, _ = server.accept()
            with suppress(OSError), connection, connection.makefile("rb") as lines:  # who asks may have gone
                for line in lines:
                    orders.append(line)
                    connection.sendall({b"CLIENT": protocol, b"TIMEOU": b"OK\n", b"SET FO": form}.get(line[:6], answer))
                    if line.startswith(b"VERBOSE") and closes:
                        break

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"localhost:{server.getsockname()[1]}", orders
    finally:
        server.close()


def text(**more):
    return json.dumps(reply(**more), indent=2).encode()


def test_it_is_asked_twice_and_answers_are_held_together():
    with listening(text(counts=[5, 5]), text(counts=[5, 5])) as (at, orders):
        assert ask(at, NO_WAIT).state == "stuck"
    assert orders == [b"CLIENT PROTOCOL 2\n", b"TIMEOUT 2\n", b"SET FORMAT json\n", b"VERBOSE STATUS\n"] * 2


def test_the_comma_that_old_versions_leave_out_is_put_back():
    old = re.sub(rb'("nvml_dev": \d+),(\s*"status": \{\s*"unresponsive)', rb"\1\2", text(missing=1))
    with pytest.raises(json.JSONDecodeError):
        json.loads(old)
    with listening(old, old) as (at, _):
        assert ask(at, NO_WAIT).state == "missing"


def test_the_variable_of_the_case_says_where(monkeypatch):
    monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)
    assert ras.address({}) == "localhost:28028"
    monkeypatch.setenv("NCCL_RAS_ADDR", "localhost:1")
    assert (ras.address({}), ras.address({"NCCL_RAS_ADDR": "localhost:2"})) == ("localhost:1", "localhost:2")


def test_where_nothing_listens_is_said():
    with listening() as (at, _):
        pass
    with pytest.raises(ToolError, match=f"NCCL's RAS does not listen at {at}: "):
        ask(at, NO_WAIT)
    with pytest.raises(ToolError, match="NCCL_RAS_ADDR is 'nowhere', not a host and a port"):
        ask("nowhere", NO_WAIT)


def test_a_version_without_json_is_named():
    with listening(b"", form=b"ERROR: Unknown command\n") as (at, _), pytest.raises(ToolError) as error:
        ask(at, NO_WAIT)
    assert str(error.value) == "what listens for NCCL's RAS gives no JSON: it is older than NCCL 2.28.7"


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.6\r\n", b"x" * 10_000, b""])
def test_what_is_no_ras_is_not_read_on(said):
    with listening(b"", protocol=said or b"\n") as (at, _), pytest.raises(ToolError, match="is no RAS"):
        ask(at, NO_WAIT)


def test_one_that_never_ends_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(ras, "SECONDS_OF_AN_ANSWER", 0.2)
    with listening(text(), closes=False) as (at, _), pytest.raises(ToolError, match=r"did not answer in 0\.2 s"):
        ask(at, NO_WAIT)


def test_one_that_says_too_much_is_cut_off(monkeypatch):
    monkeypatch.setattr(ras, "_MOST_BYTES", 2**20)
    with listening(b" " * 2**21) as (at, _), pytest.raises(ToolError, match="says more than 1 MiB"):
        ask(at, NO_WAIT)


def test_an_agent_asks_aside_and_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(ras, "SECONDS_APART", 0.0)
    agent = Agent(host="here", scratch=tmp_path)
    try:
        with listening(text(counts=[4, 5]), text(counts=[4, 5])) as (at, _):
            agent.execute(AskRas(at))
            events = []
            while not events:
                events += agent.events(0.1)
        assert isinstance(events[0], RasTold)
        assert (events[0].host, events[0].stall.state) == ("here", "lagging")
    finally:
        agent.close()
