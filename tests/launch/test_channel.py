import os
import socket

import pytest

from clusterbench.launch.channel import Channel
from clusterbench.launch.progress_page import ProgressPage


@pytest.fixture
def ends():
    left, end = Channel.pair()
    right = Channel(end)
    yield left, right
    left.close()
    right.close()


def test_messages_arrive_whole_and_in_order(ends):
    left, right = ends
    for number in range(3):
        assert left.send({"number": number, "text": "x" * 50_000 if number == 1 else ""})
        received = []
        while not received:
            received = right.receive(wait=True)
        assert [message["number"] for message in received] == [number]


def test_reading_without_waiting_returns_at_once(ends):
    assert ends[1].receive() == []


def test_the_other_ends_death_shows_after_its_last_words(ends):
    left, right = ends
    left.send({"last": "words"})
    left.close()
    assert right.receive() == [{"last": "words"}]
    assert right.closed
    assert not right.send({"too": "late"})


def test_file_descriptors_travel_with_their_message(ends):
    left, right = ends
    read, write = os.pipe()
    left.send({"pipe": True}, [write])
    (message,) = right.receive(wait=True)
    (received,) = message["descriptors"]
    os.write(received, b"through")
    assert os.read(read, 10) == b"through"
    for descriptor in (read, write, received):
        os.close(descriptor)


def test_a_page_shows_what_another_mapping_of_it_wrote():
    page = ProgressPage.create(2)
    other = ProgressPage(os.dup(page.descriptor), 2)
    other.write(1, 4, 17)
    assert page.read(1) == (4, 17)
    assert page.read(0) == (0, 0)
    other.close()
    page.close()


def test_a_channel_works_over_tcp_as_well():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = Channel(socket.create_connection(listener.getsockname()))
        right = Channel(listener.accept()[0])
    left.send({"hello": 1})
    assert right.receive(wait=True) == [{"hello": 1}]
    left.close()
    right.close()
