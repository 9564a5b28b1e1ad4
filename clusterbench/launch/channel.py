"""Messages over a connection, one line each, with file descriptors beside them where a message has some."""

from __future__ import annotations

import array
import dataclasses
import socket
import time
from collections.abc import Iterable
from typing import Generic, TypeVar

from clusterbench.launch.lines import LONGEST_LINE, BadLine, Decoder, encode
from clusterbench.launch.messages import Message

# MSG_CMSG_CLOEXEC: what one child is handed must not leak into the next.
_WAITING = int(socket.MSG_CMSG_CLOEXEC)
_NOT_WAITING = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_ROOM_FOR_DESCRIPTORS = socket.CMSG_SPACE(253 * array.array("i").itemsize)  # the most the kernel passes at once

Received = TypeVar("Received")


class Channel(Generic[Received]):
    """One end of a connection between two processes.

    Parameters
    ----------
    decode
        Makes a message of a line; what it refuses closes the channel.
    patience_s
        Where it is given, ``send`` never waits: what the other end does not take at once is kept for ``hand_over``,
        until that end has taken nothing for so many seconds.

    Attributes
    ----------
    closed
        True once the other end is gone and everything it sent has been read, or it sent what is no message.
    error
        What was wrong with what it sent; empty where nothing was.
    is_stuck
        Whether it has taken nothing for longer than ``patience_s``.
    """

    def __init__(self, end: socket.socket, decode: Decoder[Received], patience_s: float | None = None) -> None:
        self.socket = end
        self.closed = False
        self.error = ""
        self.is_stuck = False
        self._patience_s = patience_s
        self._unsent = bytearray()
        self._took_at = 0.0
        self._decode = decode
        self._unread: list[bytes] = []
        self._num_unread = 0
        self._descriptors: list[int] = []

    @classmethod
    def pair(cls, decode: Decoder[Received]) -> tuple[Channel[Received], socket.socket]:
        """A channel to keep and the bare end to hand to another process."""
        kept, given = socket.socketpair()
        return cls(kept, decode), given

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message) -> bool:
        """False when the other end is gone, or has taken nothing for too long."""
        data = encode(message)
        if self._patience_s is not None:
            if not self._unsent:
                self._took_at = time.monotonic()
            self._unsent += data
            return self.hand_over()
        descriptors: tuple[int, ...] = getattr(message, "descriptors", ())
        try:
            if descriptors:
                sent = socket.send_fds(self.socket, [data], list(descriptors))
                data = data[sent:]
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def is_behind(self) -> bool:
        """Whether something is kept that the other end has not taken yet."""
        return bool(self._unsent)

    def hand_over(self) -> bool:
        """Sends what was kept, as far as it is taken now. False when the other end is gone, or is stuck."""
        if self.is_stuck:
            return False
        try:
            while self._unsent:
                sent = self.socket.send(self._unsent, socket.MSG_DONTWAIT)
                del self._unsent[:sent]
                self._took_at = time.monotonic()
        except BlockingIOError:
            assert self._patience_s is not None
            self.is_stuck = time.monotonic() - self._took_at > self._patience_s
            return not self.is_stuck
        except OSError:
            self._unsent.clear()
            return False
        return True

    def receive(self, wait: bool = False) -> list[Received]:
        """Everything that has arrived; with ``wait``, blocks until something has or the other end is gone."""
        flags = _WAITING if wait else _NOT_WAITING
        messages: list[Received] = []
        while not self.closed and not (messages and wait):
            try:
                # Not socket.recv_fds: up to Python 3.13 it drops its flags.
                data, ancillary, _, _ = self.socket.recvmsg(1 << 16, _ROOM_FOR_DESCRIPTORS, flags)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data, ancillary = b"", []
            for _, kind, packed in ancillary:
                if kind == socket.SCM_RIGHTS:
                    self._descriptors += array.array("i", packed)
            if not data:
                self.closed = True
            try:
                for line in self._lines(data):
                    messages.append(self._message(line))
            except BadLine as error:
                self.closed, self.error = True, str(error)
        return messages

    def _lines(self, data: bytes) -> Iterable[bytes]:
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._unread, lines[0]))
            self._unread.clear()
            self._num_unread = 0
        self._unread.append(rest)
        self._num_unread += len(rest)
        yield from lines
        if self._num_unread > LONGEST_LINE:
            raise BadLine(f"a message may have {LONGEST_LINE} bytes, and this one has no end")

    def _message(self, line: bytes) -> Received:
        message = self._decode(line)
        if count := len(getattr(message, "descriptors", ())):
            if len(self._descriptors) < count:
                raise BadLine("a message came without its file descriptors")
            here, self._descriptors = tuple(self._descriptors[:count]), self._descriptors[count:]
            return dataclasses.replace(message, descriptors=here)  # type: ignore[type-var]
        return message

    def close(self) -> None:
        self.closed = True
        self.socket.close()
