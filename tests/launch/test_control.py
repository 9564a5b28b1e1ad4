"""The control plane over TCP, on the loopback, as its specification says."""

import contextlib
import hmac
import json
import socket
import threading
import time

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launch import control, handshake
from clusterbench.launch.control import TcpHead, TcpMember
from clusterbench.launch.handshake import authenticate
from clusterbench.launch.messages import Quit, Sign, TimeTold, Warm

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
    members[0].send(0, TimeTold(1.5))
    assert receive_one(head) == (2, TimeTold(1.5))
    head.send(1, Quit(3, "in order"))
    assert receive_one(members[1]) == (0, Quit(3, "in order"))
    members[0].close()
    while not head.lost():
        head.receive()
    assert head.lost() == {2: "closed its connection"}
    members[1].close()
    head.close()


def test_a_wrong_secret_is_not_let_in_and_the_head_goes_on_listening():
    head = TcpHead(2, SECRET)
    thread, errors = gather_in_background(head)
    with pytest.raises(LaunchError, match=r"agent 1 found no head of this run at 127\.0\.0\.1"):
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


def test_a_member_that_lost_patience_behind_its_proof_may_come_again():
    """It closed its connection when the head had already counted it."""
    head = TcpHead(3, SECRET)
    thread, errors = gather_in_background(head)
    authenticate(head.address, 1, SECRET, 60.0).close()
    member, other = TcpMember(head.address, 3, 1, SECRET), TcpMember(head.address, 3, 2, SECRET)
    thread.join()
    assert errors == []
    head.send(1, Sign())
    while not (arrived := member.receive()):
        pass
    assert arrived == [(0, Sign())]
    for plane in (member, other, head):
        plane.close()


def test_a_head_without_the_secret_is_found_out():
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def pretend():
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(json.dumps({"clusterbench": 2, "nonce": "00"}).encode() + b"\n")
                connection.recv(4096)
                connection.sendall(json.dumps({"proof": "0" * 64}).encode() + b"\n")

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(LaunchError, match="does not know the run's secret"):
            TcpMember(impostor.getsockname(), 2, 1, SECRET)
        thread.join()


NONSENSE = {
    "nothing": b"",
    "an empty line": b"\n",
    "a list": b"[]\n",
    "not UTF-8": b"\xff\xfe\n",
    "no end": b"x" * 8192,
    "nested": b"[" * 4000 + b"\n",
    "nested in a field": b'{"rank": 1, "nonce": ' + b"[" * 4000 + b"\n",
    "rank is text": b'{"rank": "x", "nonce": "a", "proof": "b"}\n',
    "rank is infinite": b'{"rank": 1e999, "nonce": "a", "proof": "b"}\n',
    "rank is no number": b'{"rank": NaN, "nonce": "a", "proof": "b"}\n',
    "rank is true": b'{"rank": true, "nonce": "a", "proof": "b"}\n',
    "rank has 400 digits": b'{"rank": ' + b"9" * 400 + b', "nonce": "a", "proof": "b"}\n',
    "nonce is a list": b'{"rank": 1, "nonce": [], "proof": "b"}\n',
    "proof is not ASCII": '{"rank": 1, "nonce": "a", "proof": "\u00e4"}\n'.encode(),
    "proof is half a character": b'{"rank": 1, "nonce": "a", "proof": "\\ud800"}\n',
    "an unknown field": b'{"rank": 1, "nonce": "a", "proof": "b", "size": 2}\n',
    "a missing field": b'{"rank": 1, "nonce": "a"}\n',
}


@pytest.mark.parametrize("line", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_from_an_unauthenticated_connection_changes_nothing(line):
    head = TcpHead(2, SECRET)
    thread, errors = gather_in_background(head)
    with socket.create_connection(head.address) as connection:
        connection.sendall(line)
        if len(line) > 4096 or line.endswith(b"\n"):
            assert is_closed(connection)
    member = TcpMember(head.address, 2, 1, SECRET)
    thread.join()
    assert errors == []
    member.close()
    head.close()


def is_closed(connection):
    """Whether the other side closes it, after what it sent first."""
    connection.settimeout(60)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def answers(first, second=b""):
    """A listener that sends ``first`` to whoever connects, and ``second`` to what that says."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = listener.accept()
        with connection:
            connection.sendall(first)
            if second:
                connection.recv(4096)
                connection.sendall(second)
            is_closed(connection)

    thread = threading.Thread(target=answer)
    thread.start()
    return listener, thread


CHALLENGE = b'{"clusterbench": 2, "nonce": "00"}\n'


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"[" * 4000 + b"\n", b""),
        (b'{"clusterbench": 2, "nonce": []}\n', b""),
        (b'{"clusterbench": 2, "nonce": "\\ud800"}\n', b""),
        (b'{"clusterbench": 1e999, "nonce": "00"}\n', b""),
        (b'{"clusterbench": 7, "nonce": "00"}\n', b""),
        (b"x" * 5000, b""),
        (CHALLENGE, b"[" * 4000 + b"\n"),
        (CHALLENGE, '{"proof": "\u00e4"}\n'.encode()),
        (CHALLENGE, b'{"proof": ["0"]}\n'),
        (CHALLENGE, b'{"proof": "0", "rank": 2}\n'),
    ],
)
def test_whatever_listens_in_the_heads_place_is_not_believed(first, second):
    listener, thread = answers(first, second)
    with pytest.raises(LaunchError, match=r"127\.0\.0\.1"):
        TcpMember(listener.getsockname(), 2, 1, SECRET)
    thread.join(60)
    listener.close()


def test_a_head_that_sends_byte_by_byte_has_one_deadline_for_all_of_them(monkeypatch):
    monkeypatch.setattr(handshake, "SECONDS_TO_AUTHENTICATE", 0.5)
    listener, is_over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip():
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while not is_over.wait(0.1):  # each comes well within the time that one receive may take
                connection.sendall(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    began_s = time.monotonic()
    with pytest.raises(LaunchError, match="timed out"):
        TcpMember(listener.getsockname(), 2, 1, SECRET)
    assert time.monotonic() - began_s < 30
    is_over.set()
    thread.join()
    listener.close()


def test_a_connection_that_says_nothing_keeps_no_member_waiting(monkeypatch):
    monkeypatch.setattr(handshake, "SECONDS_TO_AUTHENTICATE", 250.0)
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


def test_a_member_that_sends_what_is_no_message_is_lost_and_the_others_are_not():
    head = TcpHead(3, SECRET)
    thread, _ = gather_in_background(head)
    members = [TcpMember(head.address, 3, rank, SECRET) for rank in (1, 2)]
    thread.join()
    members[0]._head.socket.sendall(b'{"message": "TimeTold", "time_s": NaN}\n')
    members[1].send(0, Sign())
    heard = []
    while not heard or not head.lost():
        heard += head.receive()
    assert heard == [(2, Sign())]
    assert head.lost() == {
        1: "sent what is no message of this run (in TimeTold 'time_s' is NaN, not a number)",
    }
    head._members[2].socket.sendall(b"[]\n")
    while not members[1].lost():
        members[1].receive()
    assert members[1].lost() == {0: "sent what is no message of this run (the line is no JSON object)"}
    for plane in (*members, head):
        plane.close()


def test_nobody_is_let_in_once_all_are_there():
    head = TcpHead(2, SECRET)
    thread, _ = gather_in_background(head)
    address = head.address
    member = TcpMember(address, 2, 1, SECRET)
    thread.join()
    with pytest.raises(LaunchError, match="Connection refused"):
        TcpMember(address, 2, 1, SECRET)
    member.send(0, Sign())
    assert receive_one(head) == (1, Sign())
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
    assert "within 0.2 s: 1, 3.\nhint: these are ranks of the launcher" in error
    member.close()
    head.close()


MUCH = Warm({}, ("x" * 2**24,))
"""An order that no socket takes whole."""


def test_members_that_take_nothing_keep_neither_head_nor_others_waiting(monkeypatch):
    head = TcpHead(5, SECRET)
    thread, _ = gather_in_background(head)
    members = [TcpMember(head.address, 5, rank, SECRET) for rank in range(1, 5)]
    thread.join()
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    for rank in (1, 2, 3):  # which never look
        head.send(rank, MUCH)
        head.send(rank, Sign())
    head.send(4, Sign())
    assert receive_one(members[3]) == (0, Sign())
    now_s[0] = 10.0
    assert head.receive() == []
    assert head.lost() == {}
    while len(head.lost()) < 3:  # the kernel takes a little more now and then, for a moment
        now_s[0] += 10.1
        assert head.receive() == []
    assert head.lost() == dict.fromkeys((1, 2, 3), "took no message for 10 s")
    for plane in (*members, head):
        plane.close()


def test_what_a_member_takes_slowly_arrives_whole_and_in_order():
    head = TcpHead(2, SECRET)
    thread, _ = gather_in_background(head)
    member = TcpMember(head.address, 2, 1, SECRET)
    thread.join()
    for message in (MUCH, Sign(), MUCH, Quit(0, "in order")):
        head.send(1, message)
    arrived = []
    while len(arrived) < 4:
        head.receive()
        arrived += [message for _, message in member.receive()]
    assert arrived == [MUCH, Sign(), MUCH, Quit(0, "in order")]
    member.close()
    head.close()


def test_the_last_words_of_an_agent_are_handed_over_before_it_closes():
    head = TcpHead(2, SECRET)
    thread, _ = gather_in_background(head)
    member = TcpMember(head.address, 2, 1, SECRET)
    thread.join()
    head.send(1, MUCH)
    closing = threading.Thread(target=head.close)
    closing.start()
    assert receive_one(member) == (0, MUCH)
    closing.join()
    member.close()


def test_a_head_that_takes_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(control, "_SECONDS_TO_TAKE_A_MESSAGE", 0.2)
    head = TcpHead(2, SECRET)
    thread, _ = gather_in_background(head)
    member = TcpMember(head.address, 2, 1, SECRET)
    thread.join()
    member.send(0, MUCH)
    while not member.lost():
        member.receive()
    assert member.lost() == {0: "took no message for 0.2 s"}
    member.close()
    head.close()


def test_a_flood_of_connections_that_say_nothing_is_bounded_and_keeps_no_member_out(monkeypatch):
    monkeypatch.setattr(control, "_MOST_STRANGERS", 8)
    head = TcpHead(2, SECRET)
    thread, errors = gather_in_background(head)
    flood = []
    for _ in range(60):
        flood.append(socket.create_connection(head.address))
        flood[-1].recv(4096)  # each was accepted
        assert len(head._unauthenticated) <= 10
    member = TcpMember(head.address, 2, 1, SECRET)
    thread.join()
    assert errors == []
    for end in (*flood, member, head):
        end.close()
