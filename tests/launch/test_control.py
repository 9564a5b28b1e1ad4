"""The control plane over TCP, on the loopback, as its specification says."""

import hmac
import json
import socket
import threading
import time

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launch import control
from clusterbench.launch.control import TcpHead, TcpMember

SECRET = b"of the run"


def gather_in_background(head, timeout_s=60):
    errors = []

    def gather():
        try:
            head.gather(timeout_s)
        except LaunchError as error:
            errors.append(str(error))

    thread = threading.Thread(target=gather)
    thread.start()
    return thread, errors


def receive_one(plane):
    while True:
        if messages := plane.receive():
            (message,) = messages
            return message


def test_members_and_head_exchange_messages():
    head = TcpHead(3, SECRET)
    thread, errors = gather_in_background(head)
    members = [TcpMember(head.address, 3, rank, SECRET) for rank in (2, 1)]
    thread.join()
    assert errors == []
    members[0].send(0, {"host": "b"})
    assert receive_one(head) == (2, {"host": "b"})
    head.send(1, {"order": "quit"})
    assert receive_one(members[1]) == (0, {"order": "quit"})
    members[0].close()
    while not head.lost():
        head.receive()
    assert head.lost() == [2]
    members[1].close()
    head.close()


def test_a_wrong_secret_is_not_let_in_and_the_head_goes_on_listening():
    head = TcpHead(2, SECRET)
    thread, errors = gather_in_background(head)
    with pytest.raises(LaunchError, match=r"agent 1 was not let in by the head at 127\.0\.0\.1"):
        TcpMember(head.address, 2, 1, b"guessed")
    member = TcpMember(head.address, 2, 1, SECRET)
    thread.join()
    assert errors == []
    member.close()
    head.close()


def test_a_rank_cannot_be_taken_twice():
    head = TcpHead(3, SECRET)
    thread, _ = gather_in_background(head)
    first = TcpMember(head.address, 3, 1, SECRET)
    with pytest.raises(LaunchError):
        TcpMember(head.address, 3, 1, SECRET)
    second = TcpMember(head.address, 3, 2, SECRET)
    thread.join()
    for plane in (first, second, head):
        plane.close()


def test_a_head_without_the_secret_is_found_out():
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def pretend():
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(json.dumps({"clusterbench": 1, "nonce": "00"}).encode() + b"\n")
                connection.recv(4096)
                connection.sendall(json.dumps({"proof": "0" * 64}).encode() + b"\n")

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(LaunchError, match="does not know the run's secret"):
            TcpMember(impostor.getsockname(), 2, 1, SECRET)
        thread.join()


@pytest.mark.parametrize("greeting", [b"\n", b"[]\n", b'{"rank": "x"}\n', b"\xff\xfe\n", b"x" * 8192, b""])
def test_nonsense_from_a_stranger_changes_nothing(greeting):
    head = TcpHead(2, SECRET)
    thread, errors = gather_in_background(head)
    with socket.create_connection(head.address) as stranger:
        stranger.sendall(greeting)
    member = TcpMember(head.address, 2, 1, SECRET)
    thread.join()
    assert errors == []
    member.close()
    head.close()


def test_a_stranger_who_says_nothing_keeps_nobody_waiting(monkeypatch):
    monkeypatch.setattr(control, "_SECONDS_TO_GREET", 250.0)
    head = TcpHead(2, SECRET)
    thread, errors = gather_in_background(head)
    with socket.create_connection(head.address) as silent:
        member = TcpMember(head.address, 2, 1, SECRET)
        thread.join(60)  # the silent one has not used up the time that a greeting may take
        assert not thread.is_alive()
        assert errors == []
        assert silent.recv(4096)  # the head's greeting,
        assert silent.recv(4096) == b""  # and then the door
    member.close()
    head.close()


def test_nobody_is_let_in_once_all_are_there():
    head = TcpHead(2, SECRET)
    thread, _ = gather_in_background(head)
    address = head.address
    member = TcpMember(address, 2, 1, SECRET)
    thread.join()
    with pytest.raises(LaunchError, match="Connection refused"):
        TcpMember(address, 2, 1, SECRET)
    member.send(0, {"still": "here"})
    assert receive_one(head) == (1, {"still": "here"})
    member.close()
    head.close()


def test_a_greeting_in_pieces_is_put_together():
    head = TcpHead(2, SECRET)
    thread, errors = gather_in_background(head)
    with socket.create_connection(head.address) as slow:
        nonce = json.loads(slow.recv(4096))["nonce"]
        proof = hmac.new(SECRET, f"member:{nonce}:ab:1".encode(), "sha256").hexdigest()
        line = json.dumps({"rank": 1, "nonce": "ab", "proof": proof}).encode() + b"\n"
        slow.sendall(line[:20])
        thread.join(0.1)
        slow.sendall(line[20:])
        thread.join()
    assert errors == []
    head.close()


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError) as caught:
            TcpHead(1, SECRET, port=port)
    assert str(caught.value) == f"the head cannot listen at 127.0.0.1:{port}: Address already in use"


def test_members_that_do_not_come_are_named(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    head = TcpHead(4, SECRET)
    member_thread, errors = gather_in_background(head, timeout_s=0.2)
    member = TcpMember(head.address, 4, 2, SECRET)
    now_s[0] = 1.0
    member_thread.join()
    (error,) = errors
    assert error.startswith("2 of 4 agents did not come to 127.0.0.1:")
    assert error.endswith("within 0.2 s: 1, 3")
    member.close()
    head.close()
