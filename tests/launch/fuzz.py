"""What an unauthenticated peer may send, a hundred thousand times: ``python -m tests.launch.fuzz [NUMBER [SEED]]``.

Each input is a right one with a few structured changes (a value of another kind, a field more or less, nesting, numbers
beyond all bounds, half characters) or broken bytes, sent whole or in pieces to one of three readers: the head's side of
the exchange of proofs, the member's side, and the decoder of messages. Each refuses it in its own way or reads it; an
error of another kind is a failure.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from clusterbench.launch import handshake
from clusterbench.launch.handshake import (
    Challenge,
    Counterproof,
    NotAuthenticated,
    Proof,
    Unauthenticated,
    authenticate,
)
from clusterbench.launch.lines import BadLine, encode
from tests.launch.test_messages import ALL

SECRET = b"of the run"
ODD = (
    *(None, True, -1, 0, 2**63, 1.5, "", "\udcff", "\u00e4", "x" * 5000, [], {}, [[[]]], {"rank": {}}),
    *(float("inf"), float("nan"), -float("inf"), 10**400, ["a"] * 300, "0" * 64),
)
RAW = (b"1e999", b"-", b"[" * 4000, b'{"a":' * 3000, b'"\\ud800"', b"\xff\xfe", b"\x00", b"9" * 500, b"\n", b"")


def changed(chance: random.Random, fields: Any) -> Any:
    """The same with one value of another kind, one field more, or one less, somewhere in it."""
    if isinstance(fields, dict) and fields and chance.random() < 0.9:
        name = chance.choice(list(fields))
        kind = chance.random()
        if kind < 0.15:
            return {key: value for key, value in fields.items() if key != name}
        if kind < 0.3:
            return {**fields, chance.choice(["x", "rank", "descriptors", "__class__", ""]): chance.choice(ODD)}
        return {**fields, name: changed(chance, fields[name])}
    if isinstance(fields, list) and fields and chance.random() < 0.7:
        at = chance.randrange(len(fields))
        return [*fields[:at], changed(chance, fields[at]), *fields[at + 1 :]]
    return chance.choice(ODD)


def spoiled(chance: random.Random, line: bytes) -> bytes:
    """A line that is not what it was: its fields changed, its bytes, or both."""
    if chance.random() < 0.7:
        fields = json.loads(line)
        for _ in range(chance.randint(1, 3)):
            fields = changed(chance, fields)
        line = json.dumps(fields, ensure_ascii=chance.random() < 0.5).encode(errors="surrogatepass")
    for _ in range(chance.randint(0, 2)):
        at = chance.randrange(len(line) + 1)
        line = line[:at] + chance.choice(RAW) + line[at + chance.choice([0, 0, 1, 5]) :]
    return line + chance.choice([b"\n", b"\n", b"\n", b"", b"\n{}\n"])


def sent(chance: random.Random, connection: socket.socket, data: bytes) -> None:
    """Whole, or in pieces."""
    pieces = chance.choice([1, 1, 2, 5])
    size = -(-len(data) // pieces) or 1
    for at in range(0, len(data), size):
        connection.sendall(data[at : at + size])


def head_reads(chance: random.Random) -> str:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        unauthenticated = Unauthenticated(ours)
        unauthenticated.challenge()
        line = json.dumps(asdict(Proof(chance.randint(-1, 9), "ab", "0" * 64))).encode()
        data = spoiled(chance, line)[: 2 * handshake.LONGEST_LINE]
        sent(chance, theirs, data)
        theirs.shutdown(socket.SHUT_WR)
        while True:
            try:
                if unauthenticated.proof(SECRET) is not None:
                    raise AssertionError(f"{data!r} was taken for a proof")
            except NotAuthenticated:
                return "refused by the head"


class FalseHead:
    """Listens in the head's place, and says what it is told to."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.lines: list[bytes] = []
        self.chance = random.Random(0)
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            with connection:
                try:
                    *first, last = self.lines
                    for line in first:
                        connection.sendall(line)
                        connection.recv(4096)
                    sent(self.chance, connection, last)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(1)
                except OSError:
                    pass


FALSE_HEAD = FalseHead()


def member_reads(chance: random.Random) -> str:
    challenge = json.dumps(asdict(Challenge(handshake.VERSION, "00"))).encode()
    counterproof = json.dumps(asdict(Counterproof("0" * 64))).encode()
    if chance.random() < 0.5:
        FALSE_HEAD.lines = [spoiled(chance, challenge)]
    else:
        FALSE_HEAD.lines = [challenge + b"\n", spoiled(chance, counterproof)]
    try:
        authenticate(FALSE_HEAD.listener.getsockname(), 1, SECRET, 0.2).close()
    except (NotAuthenticated, OSError):
        return "refused by the member"
    raise AssertionError(f"{FALSE_HEAD.lines!r} was taken for the head")


def decoder_reads(chance: random.Random) -> str:
    decode, message = chance.choice(ALL)
    try:
        decode(spoiled(chance, encode(message).rstrip(b"\n")).rstrip(b"\n"))
    except BadLine:
        return "refused by the decoder"
    return "read by the decoder"


READERS: tuple[Callable[[random.Random], str], ...] = (decoder_reads, decoder_reads, head_reads, member_reads)


def fuzz(number: int, seed: int) -> Counter[str]:
    """How often each reader did what."""
    chance = random.Random(seed)
    return Counter(READERS[turn % len(READERS)](chance) for turn in range(number))


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began_s = time.monotonic()
    verdicts = fuzz(number, seed)
    print(f"{number} inputs (seed {seed}) in {time.monotonic() - began_s:.0f} s, no error of another kind:")
    for verdict, count in sorted(verdicts.items()):
        print(f"{count:7} {verdict}")


if __name__ == "__main__":
    main()
