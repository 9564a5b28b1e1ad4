"""How both ends of a TCP connection prove that they belong to one run, before a message passes.

Both know a secret of the run that never travels. One line of JSON each:

1. head to member: ``{"clusterbench": 2, "nonce": H}``
2. member to head: ``{"rank": R, "nonce": M, "proof": HMAC-SHA256(secret, "member:H:M:R")}``
3. head to member: ``{"proof": HMAC-SHA256(secret, "head:H:M:R")}``

Nonces are 32 random bytes in hex. Either side closes the connection when a line is not exactly one of these, has more
than 4 KiB, holds a wrong proof, or when the whole exchange takes longer than 5 s.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from clusterbench.launch.lines import BadLine, decode_as

VERSION = 2
LONGEST_LINE = 4096
SECONDS_TO_AUTHENTICATE = 5.0

Line = TypeVar("Line")


@dataclass(frozen=True)
class Challenge:
    """What the head sends first."""

    clusterbench: int
    nonce: str


@dataclass(frozen=True)
class Proof:
    """What the member answers."""

    rank: int
    nonce: str
    proof: str


@dataclass(frozen=True)
class Counterproof:
    """What shows the member that it has reached the head of its run."""

    proof: str


class NotAuthenticated(ValueError):
    """The other side has not shown that it belongs to the run."""


@dataclass
class Unauthenticated:
    """A connection to the head, not blocking, whose other side has proved nothing yet."""

    connection: socket.socket
    nonce: str = field(default_factory=lambda: secrets.token_hex(32))
    deadline: float = field(default_factory=lambda: time.monotonic() + SECONDS_TO_AUTHENTICATE)
    received: bytes = b""

    def challenge(self) -> None:
        """Raises ``OSError`` if the line cannot be sent."""
        _send(self.connection, Challenge(VERSION, self.nonce))

    def is_late(self) -> bool:
        return self.deadline < time.monotonic()

    def proof(self, secret: bytes) -> Proof | None:
        """What the other side has proved; None while its line is not whole.

        Raises
        ------
        NotAuthenticated, OSError
            As soon as the line cannot be right any more.
        """
        try:
            data = self.connection.recv(LONGEST_LINE + 1)
        except BlockingIOError:
            return None
        self.received += data
        if not data or len(self.received) > LONGEST_LINE:
            raise NotAuthenticated("the line has no end")
        if not self.received.endswith(b"\n"):
            return None
        proof = _line(Proof, self.received)
        if not _is_same(proof.proof, _code(secret, "member", self.nonce, proof.nonce, proof.rank)):
            raise NotAuthenticated("the proof is wrong")
        return proof

    def accept(self, proof: Proof, secret: bytes) -> None:
        """Shows the member in turn that this is the head. Raises ``OSError`` if the line cannot be sent."""
        _send(self.connection, Counterproof(_code(secret, "head", self.nonce, proof.nonce, proof.rank)))


def authenticate(address: tuple[str, int], rank: int, secret: bytes, patience_s: float) -> socket.socket:
    """The member's side: a connection to the head that listens at ``address`` and knows the secret.

    Parameters
    ----------
    patience_s
        For the whole exchange; never more than :data:`SECONDS_TO_AUTHENTICATE`.

    Raises
    ------
    NotAuthenticated, OSError
        If that is not the head of this run, or the exchange takes longer than its deadline.
    """
    patience_s = min(patience_s, SECONDS_TO_AUTHENTICATE)
    deadline = time.monotonic() + patience_s
    connection = socket.create_connection(address, timeout=patience_s)
    try:
        challenge = _line(Challenge, _receive_line(connection, deadline))
        if challenge.clusterbench != VERSION:
            raise NotAuthenticated(f"it speaks version {challenge.clusterbench} of this exchange, not {VERSION}")
        nonce = secrets.token_hex(32)
        _send(connection, Proof(rank, nonce, _code(secret, "member", challenge.nonce, nonce, rank)))
        counterproof = _line(Counterproof, _receive_line(connection, deadline))
        if not _is_same(counterproof.proof, _code(secret, "head", challenge.nonce, nonce, rank)):
            raise NotAuthenticated("it does not know the run's secret")
    except BaseException:
        connection.close()
        raise
    return connection


def _code(secret: bytes, side: str, head_nonce: str, member_nonce: str, rank: int) -> str:
    return hmac.new(secret, f"{side}:{head_nonce}:{member_nonce}:{rank}".encode(), "sha256").hexdigest()


def _is_same(proof: str, code: str) -> bool:
    return hmac.compare_digest(proof.encode(), code.encode())


def _send(connection: socket.socket, line: Challenge | Proof | Counterproof) -> None:
    connection.sendall(json.dumps(asdict(line)).encode() + b"\n")


def _receive_line(connection: socket.socket, deadline: float) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        # Not one byte of the message behind the exchange may be taken with it.
        ahead = connection.recv(LONGEST_LINE, socket.MSG_PEEK)
        if not ahead:
            raise NotAuthenticated("the connection was closed")
        line += connection.recv(ahead.find(b"\n") + 1 or len(ahead))
        if len(line) > LONGEST_LINE:
            raise NotAuthenticated("the line is too long")
    return line


def _line(kind: type[Line], data: bytes) -> Line:
    try:
        return decode_as(kind, data)
    except BadLine as error:
        raise NotAuthenticated(str(error)) from None
