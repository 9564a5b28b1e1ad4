import os
import socket

import pytest

from clusterbench.launch import channel
from clusterbench.launch.channel import Channel
from clusterbench.launch.lines import decode_worker_order, decode_zygote_order
from clusterbench.launch.messages import ForkStore, GoOn, Leave, RunCase
from clusterbench.launch.progress_page import ProgressPage


def case(number, text):
    return RunCase("drill", {"text": text}, None, "megatron", number, 0, False, True, 1)


@pytest.fixture
def ends():
    left, end = Channel.pair(decode_worker_order)
    right = Channel(end, decode_worker_order)
    yield left, right
    left.close()
    right.close()


def test_messages_arrive_whole_and_in_order(ends):
    left, right = ends
    for number in range(3):
        assert left.send(case(number, "x" * 50_000 if number == 1 else ""))
        received = []
        while not received:
            received = right.receive(wait=True)
        assert [message.iterations for message in received] == [number]


def test_reading_without_waiting_returns_at_once(ends):
    assert ends[1].receive() == []


def test_the_other_ends_death_shows_after_its_last_words(ends):
    left, right = ends
    left.send(GoOn("check"))
    left.close()
    assert right.receive() == [GoOn("check")]
    assert right.closed
    assert right.error == ""
    assert not right.send(GoOn("time"))


def test_file_descriptors_travel_with_their_message():
    left, end = Channel.pair(decode_zygote_order)
    right = Channel(end, decode_zygote_order)
    read, write = os.pipe()
    left.send(ForkStore("10.0.0.1", (write,)))
    (message,) = right.receive(wait=True)
    assert message.address == "10.0.0.1"
    (received,) = message.descriptors
    os.write(received, b"through")
    assert os.read(read, 10) == b"through"
    for descriptor in (read, write, received):
        os.close(descriptor)
    left.close()
    right.close()


def test_a_message_whose_file_descriptors_are_missing_closes_the_channel():
    left, end = socket.socketpair()
    right = Channel(end, decode_zygote_order)
    left.sendall(b'{"message": "ForkStore", "address": "a", "descriptors": [7]}\n')
    assert right.receive() == []
    assert (right.closed, right.error) == (True, "a message came without its file descriptors")
    left.close()
    right.close()


@pytest.mark.parametrize("line", [b"{\n", b"[" * 5000 + b"\n", b'{"message": "Quit"}\n', b"\xff\n"])
def test_what_is_no_message_closes_the_channel_after_those_before_it(line):
    left, end = socket.socketpair()
    right = Channel(end, decode_worker_order)
    left.sendall(b'{"message": "Leave"}\n' + line + b'{"message": "Leave"}\n')
    assert right.receive() == [Leave()]
    assert right.closed
    assert right.error
    assert right.receive() == []
    left.close()
    right.close()


def test_a_line_without_end_closes_the_channel(monkeypatch):
    monkeypatch.setattr(channel, "LONGEST_LINE", 1000)
    left, end = socket.socketpair()
    right = Channel(end, decode_worker_order)
    left.sendall(b"x" * 1001)
    assert right.receive() == []
    assert right.error == "a message may have 1000 bytes, and this one has no end"
    left.close()
    right.close()


def test_a_page_shows_what_another_mapping_of_it_wrote():
    page = ProgressPage.create(2)
    other = ProgressPage(os.dup(page.descriptor), 2)
    other.write(1, 4, 17)
    assert page.read(1) == (4, 17)
    assert page.read(0) == (0, -1)
    other.close()
    page.close()


def test_a_channel_works_over_tcp_as_well():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = Channel(socket.create_connection(listener.getsockname()), decode_worker_order)
        right = Channel(listener.accept()[0], decode_worker_order)
    left.send(Leave())
    assert right.receive(wait=True) == [Leave()]
    left.close()
    right.close()
