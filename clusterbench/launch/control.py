"""The control plane: messages between the head agent and the others, apart from the group under test.

A star. Member agents talk to the head only. An agent that has nothing to do sleeps between looks.
Messages of one sender arrive in order, and what is no message that belongs there costs its sender the connection.
Nothing is ever unpickled.

Outside MPI the plane is a TCP connection per member, and begins with the exchange that ``launch/handshake.py``
specifies. The head listens. A connection that does not prove there that it belongs to the run, or that claims a rank
which is taken or none of ``1 ... size-1``, is closed, and the head goes on listening. Connections are heard side by
side, so that a slow one keeps none waiting; of more than the members and some, the oldest is closed. Once all members
are there the head listens no more, and every line is a message. To send one never waits: what an agent does not take is
kept, so that those that are stuck delay no other.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from clusterbench.errors import LaunchError
from clusterbench.launch.channel import Channel
from clusterbench.launch.handshake import (
    SECONDS_TO_AUTHENTICATE,
    NotAuthenticated,
    Unauthenticated,
    authenticate,
)
from clusterbench.launch.lines import BadLine, Decoder, decode_event, decode_order, encode
from clusterbench.launch.messages import MemberEvent, Order
from clusterbench.launchers import mpi_daemons
from clusterbench.words import few

HEAD = 0
_TAG = 7717
SECONDS_TO_SAY_LATE = 5.0
"""After which a head says for whom it waits: a person may have started it alone."""
_SECONDS_TO_TAKE_A_MESSAGE = 10.0
_SECONDS_TO_HAND_OVER = 5.0
_SECONDS_TO_LEAVE = 1.0
_OTHER_FILES = 256
_MOST_STRANGERS = 128
"""Connections beyond those of the members that the head hears at once; less than the files there are for them."""

CLOSED = "closed its connection"
SAID_NOTHING, TOOK_NOTHING = "said nothing for ", "took no message for "
"""How it begins why an agent is lost: the far end closes a connection, but silence may be the near end's."""
STOOD_STILL = "stood still for "
"""How it begins why the head was lost to the others, which left it."""
EVERY_ADDRESS = ""
"""Of a host, by IPv4 and by IPv6 where it has that."""

Sent = TypeVar("Sent", bound=Order | MemberEvent)
SentTo = TypeVar("SentTo", contravariant=True)
Received = TypeVar("Received")


class ControlPlane(Protocol[SentTo, Received]):
    """``rank`` of this agent among ``size``; the head is rank 0."""

    rank: int
    size: int

    def send(self, to: int, message: SentTo) -> None:
        """Hands over a message; returns before it has arrived."""

    def receive(self) -> list[tuple[int, Received]]:
        """What has arrived, as (sender, message), without waiting."""

    def lost(self) -> Mapping[int, str]:
        """Agents that are known to be gone, each with what it did, as the end of a sentence."""

    def drop(self, agent: int, why: str) -> None:
        """Counts an agent as lost that says what it must not."""

    def close(self) -> None:
        """Returns once everything sent has been taken, or cannot be."""

    def abort(self, exit_code: int) -> None:
        """Ends all agents at once; for failures that no code foresees."""

    def abandon(self, exit_code: int, last: bool) -> None:
        """Leaves where agents are lost. The ``last`` to go on its host sees to it that the launcher ends too.

        MPI cannot be left in order any more, since that waits for all ranks, and its launcher may wait for ever for a
        host that does not answer.
        """


HeadPlane = ControlPlane[Order, MemberEvent]
MemberPlane = ControlPlane[MemberEvent, Order]


class Alone:
    """The plane of a run with one agent."""

    rank = HEAD
    size = 1

    def send(self, to: int, message: Order) -> None:
        raise LaunchError(f"there is no agent {to} in a run with one agent")

    def receive(self) -> list[tuple[int, MemberEvent]]:
        return []

    def lost(self) -> Mapping[int, str]:
        return {}

    def drop(self, agent: int, why: str) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self, exit_code: int) -> None:
        pass

    def abandon(self, exit_code: int, last: bool) -> None:
        pass


class MpiPlane(Generic[Sent, Received]):
    """Messages over a communicator of its own, polled; MPI's blocking calls would spin beside the case under test."""

    def __init__(self, comm: Any, decode: Decoder[Received]) -> None:
        self._comm = comm
        self._mpi = _mpi()
        self._decode = decode
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._on_their_way: list[Any] = []
        self._lost: dict[int, str] = {}

    def send(self, to: int, message: Sent) -> None:
        data = encode(message)
        request = self._comm.Isend([data, self._mpi.BYTE], dest=to, tag=_TAG)
        self._on_their_way = [(sent, kept) for sent, kept in self._on_their_way if not sent.Test()]
        self._on_their_way.append((request, data))

    def receive(self) -> list[tuple[int, Received]]:
        messages: list[tuple[int, Received]] = []
        status = self._mpi.Status()
        while (arrived := self._comm.Improbe(source=self._mpi.ANY_SOURCE, tag=_TAG, status=status)) is not None:
            data = bytearray(status.Get_count(self._mpi.BYTE))
            arrived.Recv([data, self._mpi.BYTE])
            try:
                messages.append((status.Get_source(), self._decode(bytes(data))))
            except BadLine as error:
                self.drop(status.Get_source(), _said(error))
        return [(sender, message) for sender, message in messages if sender not in self._lost]

    def lost(self) -> Mapping[int, str]:
        return self._lost  # MPI does not say who is gone; that is known by its silence

    def drop(self, agent: int, why: str) -> None:
        self._lost.setdefault(agent, why)

    def close(self) -> None:
        deadline = time.monotonic() + _SECONDS_TO_HAND_OVER
        for request, _ in self._on_their_way:
            while not request.Test() and time.monotonic() < deadline:
                time.sleep(0.001)
        self._on_their_way.clear()

    def abort(self, exit_code: int) -> None:
        sys.stderr.flush()
        # Of all there are: MPICH ends the ranks of a smaller one by messages, and mpirun then reports 9 now and then.
        self._mpi.COMM_WORLD.Abort(exit_code)

    def abandon(self, exit_code: int, last: bool) -> None:
        # A launcher that loses the daemon of a host it can reach ends by itself; on Abort it waits for all the others.
        if last and _program(os.getppid()) in mpi_daemons():
            time.sleep(_SECONDS_TO_LEAVE)
            os.kill(os.getppid(), signal.SIGKILL)
        sys.stderr.flush()
        os._exit(exit_code)


def mpi_plane() -> MpiPlane[Order, MemberEvent] | MpiPlane[MemberEvent, Order]:
    """The plane of a process that mpirun started: the head's where this is its first rank."""
    comm = _mpi().COMM_WORLD.Dup()
    if comm.Get_rank() == HEAD:
        return MpiPlane[Order, MemberEvent](comm, decode_event)
    return MpiPlane[MemberEvent, Order](comm, decode_order)


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # as it was built for one library, or looks for one
        raise LaunchError(
            f"mpirun started this process, but mpi4py cannot load an MPI library: {str(error).splitlines()[0]}\n"
            "hint: install the runtime that belongs to this mpirun, or 'pip install clusterbench[mpi]' for MPICH's "
            "and use its mpirun"
        ) from None
    return MPI


class TcpHead:
    """The head's side of a plane over TCP. See the module's docstring for what passes over the wire.

    Parameters
    ----------
    port
        0 lets the system choose.

    Raises
    ------
    LaunchError
        If ``port`` is not free at ``host``.
    """

    rank = HEAD

    def __init__(self, size: int, secret: bytes, host: str = "127.0.0.1", port: int = 0) -> None:
        self.size = size
        self._secret = secret
        self._listener = _listen(host, port, backlog=min(max(size, 128), 4096))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._unauthenticated: dict[socket.socket, Unauthenticated] = {}
        self._members: dict[int, Channel[MemberEvent]] = {}
        self._behind: set[int] = set()
        self._lost: dict[int, str] = {}

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return host, port

    @property
    def _where(self) -> str:
        """The address in words; that of every network says nothing."""
        host, port = self.address
        return f"{socket.gethostname() if host in ('::', '0.0.0.0') else host}:{port}"

    def gather(self, timeout_s: float, say_late: Callable[[list[int]], None] | None = None) -> None:
        """Waits until every member has come; later connections are not accepted.

        ``say_late`` is given the ranks that have not come after :data:`SECONDS_TO_SAY_LATE`.

        Raises
        ------
        LaunchError
            With the ranks that have not come after ``timeout_s`` seconds; if this process may not open so many files.
        """
        _allow_connections(self.size)
        began = time.monotonic()
        while len(self._members) < self.size - 1:
            waited_s = time.monotonic() - began
            if say_late and waited_s > SECONDS_TO_SAY_LATE:
                say_late(self._missing())
                say_late = None
            if waited_s > timeout_s:
                missing = self._missing()
                raise LaunchError(
                    f"{len(missing)} of {self.size} agents did not come to {self._where} within "
                    f"{timeout_s:g} s: {few(missing, 16)}.\nhint: these are ranks of the launcher; one that was "
                    "started says where it looked for the head, and one that says nothing was not started, or has ended"
                )
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._unauthenticated:
                    self._hear(self._unauthenticated[key.fileobj])
            for late in list(takewhile(Unauthenticated.is_late, self._unauthenticated.values())):  # they stand in order
                self._close(late)
        for unauthenticated in list(self._unauthenticated.values()):
            self._close(unauthenticated)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self.size) if rank not in self._members]

    def _accept(self) -> None:
        """Takes new connections, no more at once than members are expected: others must not keep those waiting."""
        for _ in range(self.size):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # none left, gone again, or too many open files: those that are late will make room
                return
            if len(self._unauthenticated) + len(self._members) >= self.size + _MOST_STRANGERS:
                self._close(next(iter(self._unauthenticated.values())))  # a member proves its rank in milliseconds
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
            unauthenticated = self._unauthenticated[connection] = Unauthenticated(connection)
            try:
                unauthenticated.challenge()
            except OSError:
                self._close(unauthenticated)

    def _hear(self, unauthenticated: Unauthenticated) -> None:
        """Makes a member of it once it has proved its rank; closes it as soon as it cannot any more."""
        try:
            if (proof := unauthenticated.proof(self._secret)) is None:
                return
            if not 0 < proof.rank < self.size or not self._is_free(proof.rank):
                raise NotAuthenticated("the rank is taken, or none of this run")
            unauthenticated.accept(proof, self._secret)
        except (OSError, NotAuthenticated):
            self._close(unauthenticated)
            return
        connection = unauthenticated.connection
        del self._unauthenticated[connection]
        self._selector.unregister(connection)
        self._members[proof.rank] = _channel_over(connection, decode_event)
        self._selector.register(self._members[proof.rank], selectors.EVENT_READ, proof.rank)

    def _is_free(self, rank: int) -> bool:
        """Whether nobody has proved this rank; or its member had lost patience meanwhile, and comes again."""
        if (member := self._members.get(rank)) is None:
            return True
        if not _is_closed(member.socket):
            return False
        self._selector.unregister(member)
        del self._members[rank]
        member.close()
        return True

    def _close(self, unauthenticated: Unauthenticated) -> None:
        del self._unauthenticated[unauthenticated.connection]
        self._selector.unregister(unauthenticated.connection)
        unauthenticated.connection.close()

    def send(self, to: int, message: Order) -> None:
        if not self._members[to].send(message):
            self.drop(to, _why_not_taken(self._members[to]))
        elif self._members[to].is_behind():
            self._behind.add(to)

    def receive(self) -> list[tuple[int, MemberEvent]]:
        self._hand_over()
        messages: list[tuple[int, MemberEvent]] = []
        for key, _ in self._selector.select(0):
            member = self._members[key.data]
            messages += [(key.data, message) for message in member.receive()]
            if member.closed:
                self.drop(key.data, _said(member.error) if member.error else CLOSED)
        return messages

    def _hand_over(self) -> None:
        """What members had not taken before."""
        for agent in list(self._behind):
            if not self._members[agent].hand_over():
                self.drop(agent, _why_not_taken(self._members[agent]))
            elif not self._members[agent].is_behind():
                self._behind.discard(agent)

    def lost(self) -> Mapping[int, str]:
        return self._lost

    def drop(self, agent: int, why: str) -> None:
        self._behind.discard(agent)
        if agent not in self._lost:
            self._selector.unregister(self._members[agent])
            self._members[agent].close()
            self._lost[agent] = why

    def close(self) -> None:
        self._listener.close()
        for connection in self._unauthenticated:
            connection.close()
        deadline = time.monotonic() + _SECONDS_TO_HAND_OVER
        while self._behind and time.monotonic() < deadline:
            self._hand_over()
            time.sleep(0.001)
        for member in self._members.values():
            member.close()
        self._selector.close()

    def abort(self, exit_code: int) -> None:
        self.close()

    def abandon(self, exit_code: int, last: bool) -> None:
        self.close()


class TcpMember:
    """A member's side of a plane over TCP.

    Parameters
    ----------
    patience_s
        For the exchange of proofs with what listens at ``address``.

    Raises
    ------
    LaunchError
        If that is not the head of this run.
    """

    def __init__(
        self,
        address: tuple[str, int],
        size: int,
        rank: int,
        secret: bytes,
        patience_s: float = SECONDS_TO_AUTHENTICATE,
    ) -> None:
        self.rank = rank
        self.size = size
        try:
            connection = authenticate(address, rank, secret, patience_s)
        except (OSError, NotAuthenticated) as error:
            where = f"{address[0]}:{address[1]}"
            raise LaunchError(f"agent {rank} found no head of this run at {where}: {error}") from None
        self._head = _channel_over(connection, decode_order)

    def send(self, to: int, message: MemberEvent) -> None:
        self._head.send(message)

    def receive(self) -> list[tuple[int, Order]]:
        self._head.hand_over()
        return [(HEAD, message) for message in self._head.receive()]

    def lost(self) -> Mapping[int, str]:
        if self._head.is_stuck:
            return {HEAD: _why_not_taken(self._head)}
        why = _said(self._head.error) if self._head.error else CLOSED
        return {HEAD: why} if self._head.closed else {}

    def drop(self, agent: int, why: str) -> None:
        self._head.close()

    def close(self) -> None:
        deadline = time.monotonic() + _SECONDS_TO_HAND_OVER
        while self._head.is_behind() and self._head.hand_over() and time.monotonic() < deadline:
            time.sleep(0.001)
        self._head.close()

    def abort(self, exit_code: int) -> None:
        self.close()

    def abandon(self, exit_code: int, last: bool) -> None:
        self.close()


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other side is gone and all it sent has been read."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    both = host == EVERY_ADDRESS and socket.has_dualstack_ipv6() and _has_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=backlog, dualstack_ipv6=both)
    except OSError as error:
        raise LaunchError(f"the head cannot listen at {host}:{port}: {os.strerror(error.errno or 0)}") from None
    listener.setblocking(False)
    return listener


def _has_ipv6() -> bool:
    """Whether this host has it at all: it can be built in and switched off."""
    try:
        with socket.create_server(("::", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def _allow_connections(size: int) -> None:
    """A connection is an open file. The soft limit is raised as far as needed and the hard one allows."""
    needed = size + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LaunchError(
            f"{size} agents are as many connections to the head, but {socket.gethostname()} lets a process open {hard} "
            f"files, and {_OTHER_FILES} of them are for other things.\n"
            "hint: start one agent per node (--ranks-per-agent all), or have the hard limit raised (see 'ulimit -Hn')"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _said(error: BadLine | str) -> str:
    return f"sent what is no message of this run ({error})"


def _why_not_taken(channel: Channel[Received]) -> str:
    return f"{TOOK_NOTHING}{_SECONDS_TO_TAKE_A_MESSAGE:g} s" if channel.is_stuck else CLOSED


def _channel_over(connection: socket.socket, decode: Decoder[Received]) -> Channel[Received]:
    """A channel whose ``send`` does not wait, and which is prompt."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Channel(connection, decode, _SECONDS_TO_TAKE_A_MESSAGE)
