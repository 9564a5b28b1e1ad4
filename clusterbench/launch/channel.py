"""JSON lines over a Unix socket, with file descriptors beside them where asked."""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

Message = dict[str, Any]

# MSG_CMSG_CLOEXEC: what one child is handed must not leak into the next.
_WAITING = int(socket.MSG_CMSG_CLOEXEC)
_NOT_WAITING = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_ROOM_FOR_DESCRIPTORS = socket.CMSG_SPACE(253 * array.array("i").itemsize)  # the most the kernel passes at once


class Channel:
    """One end of a connection between two processes of a host.

    Attributes
    ----------
    closed
        True once the other end is gone and everything it sent has been read.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.closed = False
        self._unread: list[bytes] = []
        self._descriptors: list[int] = []

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel to keep and the bare end to hand to another process."""
        kept, given = socket.socketpair()
        return cls(kept), given

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> bool:
        """False when nobody is there to read it any more."""
        data = json.dumps({**message, "descriptors": len(descriptors)} if descriptors else message).encode() + b"\n"
        try:
            if descriptors:
                sent = socket.send_fds(self.socket, [data], list(descriptors))
                data = data[sent:]
            self.socket.sendall(data)
        except BlockingIOError:  # nobody took it in time: half a line may be out, and nothing may be written behind it
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
            return False
        except OSError:
            return False
        return True

    def receive(self, wait: bool = False) -> list[Message]:
        """Everything that has arrived; with ``wait``, blocks until something has or the other end is gone.

        A message that came with file descriptors holds them under ``descriptors``.
        """
        flags = _WAITING if wait else _NOT_WAITING
        messages: list[Message] = []
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
            messages += self._parse(data)
        return messages

    def _parse(self, data: bytes) -> Iterable[Message]:
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._unread, lines[0]))
            self._unread.clear()
        self._unread.append(rest)
        for line in lines:
            message: Message = json.loads(line)
            if count := message.get("descriptors"):
                message["descriptors"], self._descriptors = self._descriptors[:count], self._descriptors[count:]
            yield message

    def close(self) -> None:
        self.closed = True
        self.socket.close()
