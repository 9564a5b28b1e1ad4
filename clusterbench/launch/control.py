"""The control plane: JSON messages between the head agent and the others, apart from the group under test.

A star. Member agents talk to the head only, and nobody waits busily: whoever has nothing to do sleeps between looks.
Messages of one sender arrive in order. Nothing is ever unpickled.

Outside MPI the plane is a TCP connection per member, and this is its specification. The head listens; both sides know a
secret of the run that never travels. One line of JSON each:

1. head to member: ``{"clusterbench": 1, "nonce": H}``
2. member to head: ``{"rank": R, "nonce": M, "proof": HMAC-SHA256(secret, "member:H:M:R")}``
3. head to member: ``{"proof": HMAC-SHA256(secret, "head:H:M:R")}``

Nonces are 32 random bytes in hex. A wrong proof, a rank that is taken or none of ``1 ... size-1``, a line of more than
4 KiB or 5 s of silence closes the connection, and the head goes on listening. After that every line is a message.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from typing import Any, Protocol

from clusterbench.errors import LaunchError
from clusterbench.launch.channel import Channel, Message

HEAD = 0
_TAG = 7717
_LONGEST_GREETING = 4096
_SECONDS_TO_GREET = 5.0


class ControlPlane(Protocol):
    """``rank`` of this agent among ``size``; the head is rank 0."""

    rank: int
    size: int

    def send(self, to: int, message: Message) -> None:
        """Hands over a message; returns before it has arrived."""

    def receive(self) -> list[tuple[int, Message]]:
        """What has arrived, as (sender, message), without waiting."""

    def close(self) -> None:
        """Returns once everything sent has been taken."""

    def abort(self, exit_code: int) -> None:
        """Ends all agents at once; for failures nobody planned for."""


class Alone:
    """The plane of a run with one agent."""

    rank = HEAD
    size = 1

    def send(self, to: int, message: Message) -> None:
        raise LaunchError(f"there is no agent {to} in a run with one agent")

    def receive(self) -> list[tuple[int, Message]]:
        return []

    def close(self) -> None:
        pass

    def abort(self, exit_code: int) -> None:
        pass


class MpiPlane:
    """Messages over a communicator of its own, polled; MPI's blocking calls would spin beside the case under test."""

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except RuntimeError as error:
            raise LaunchError(
                f"mpirun started this process, but mpi4py cannot load an MPI library: {str(error).splitlines()[0]}\n"
                "hint: install the runtime that belongs to this mpirun, or 'pip install clusterbench[mpi]' for MPICH's "
                "and use its mpirun"
            ) from None
        self._mpi: Any = MPI
        self._comm = MPI.COMM_WORLD.Dup()
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self._on_their_way: list[Any] = []

    def send(self, to: int, message: Message) -> None:
        data = json.dumps(message).encode()
        request = self._comm.Isend([data, self._mpi.BYTE], dest=to, tag=_TAG)
        self._on_their_way = [(sent, kept) for sent, kept in self._on_their_way if not sent.Test()]
        self._on_their_way.append((request, data))

    def receive(self) -> list[tuple[int, Message]]:
        messages = []
        status = self._mpi.Status()
        while (arrived := self._comm.Improbe(source=self._mpi.ANY_SOURCE, tag=_TAG, status=status)) is not None:
            data = bytearray(status.Get_count(self._mpi.BYTE))
            arrived.Recv([data, self._mpi.BYTE])
            messages.append((status.Get_source(), json.loads(bytes(data))))
        return messages

    def close(self) -> None:
        for request, _ in self._on_their_way:
            while not request.Test():
                time.sleep(0.001)
        self._on_their_way.clear()

    def abort(self, exit_code: int) -> None:
        self._comm.Abort(exit_code)


class TcpHead:
    """The head's side of a plane over TCP. See the module's docstring for what passes over the wire."""

    rank = HEAD

    def __init__(self, size: int, secret: bytes, host: str = "127.0.0.1", port: int = 0) -> None:
        self.size = size
        self._secret = secret
        self._listener = socket.create_server((host, port), backlog=min(size, 4096))
        self._listener.setblocking(False)
        self._members: dict[int, Channel] = {}

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return host, port

    def gather(self, timeout_s: float) -> None:
        """Waits until every member has come.

        Raises
        ------
        LaunchError
            With the ranks that have not come after ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while len(self._members) < self.size - 1:
            if time.monotonic() > deadline:
                missing = [rank for rank in range(1, self.size) if rank not in self._members]
                raise LaunchError(
                    f"{len(missing)} of {self.size} agents did not come to {self.address[0]}:{self.address[1]} within "
                    f"{timeout_s:g} s: {', '.join(map(str, missing[:16]))}{' ...' if len(missing) > 16 else ''}"
                )
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                time.sleep(0.005)
                continue
            self._greet(connection)

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(_SECONDS_TO_GREET)
        nonce = secrets.token_hex(32)
        try:
            _write_line(connection, {"clusterbench": 1, "nonce": nonce})
            answer = _read_line(connection)
            rank, theirs = int(answer["rank"]), str(answer["nonce"])
            right = hmac.compare_digest(str(answer["proof"]), _proof(self._secret, "member", nonce, theirs, rank))
            if not right or not 0 < rank < self.size or rank in self._members:
                raise ValueError
            _write_line(connection, {"proof": _proof(self._secret, "head", nonce, theirs, rank)})
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        connection.settimeout(None)
        self._members[rank] = Channel(connection)

    def send(self, to: int, message: Message) -> None:
        self._members[to].send(message)

    def receive(self) -> list[tuple[int, Message]]:
        return [(rank, message) for rank, member in self._members.items() for message in member.receive()]

    def lost(self) -> list[int]:
        """Members whose connection is gone."""
        return [rank for rank, member in self._members.items() if member.closed]

    def close(self) -> None:
        self._listener.close()
        for member in self._members.values():
            member.close()

    def abort(self, exit_code: int) -> None:
        self.close()


class TcpMember:
    """A member's side of a plane over TCP."""

    def __init__(self, address: tuple[str, int], size: int, rank: int, secret: bytes) -> None:
        self.rank = rank
        self.size = size
        where = f"{address[0]}:{address[1]}"
        connection = None
        try:
            connection = socket.create_connection(address, timeout=_SECONDS_TO_GREET)
            greeting = _read_line(connection)
            nonce, theirs = secrets.token_hex(32), str(greeting["nonce"])
            _write_line(
                connection, {"rank": rank, "nonce": nonce, "proof": _proof(secret, "member", theirs, nonce, rank)}
            )
            proof = str(_read_line(connection)["proof"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if connection:
                connection.close()
            raise LaunchError(f"agent {rank} was not let in by the head at {where}: {error}") from None
        if not hmac.compare_digest(proof, _proof(secret, "head", theirs, nonce, rank)):
            connection.close()
            raise LaunchError(f"{where} is not the head of this run: it does not know the run's secret")
        connection.settimeout(None)
        self._head = Channel(connection)

    def send(self, to: int, message: Message) -> None:
        self._head.send(message)

    def receive(self) -> list[tuple[int, Message]]:
        return [(HEAD, message) for message in self._head.receive()]

    def close(self) -> None:
        self._head.close()

    def abort(self, exit_code: int) -> None:
        self.close()


def _proof(secret: bytes, side: str, head_nonce: str, member_nonce: str, rank: int) -> str:
    return hmac.new(secret, f"{side}:{head_nonce}:{member_nonce}:{rank}".encode(), "sha256").hexdigest()


def _write_line(connection: socket.socket, message: Message) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _read_line(connection: socket.socket) -> Message:
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)  # not one byte of the message behind the greeting may be taken with it
        if not byte:
            raise ValueError("the connection was closed")
        line += byte
        if len(line) > _LONGEST_GREETING:
            raise ValueError("the greeting is too long")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("the greeting is no JSON object")
    return message
