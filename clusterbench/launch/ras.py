"""Asks NCCL's RAS on this host what the ranks of a program that stands still are doing.

Each process with NCCL answers on a socket of its host, for all ranks of its job. Whoever listens there is not known, so
of what comes a bounded part is read for a bounded time, and nothing of it is believed but numbers and names.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

from clusterbench.errors import ToolError
from clusterbench.tools.nccl_ras import Communicator, Stall, communicators, stall

ADDRESS = "localhost:28028"
"""Where RAS listens unless NCCL_RAS_ADDR says otherwise. Source: NCCL user guide, environment variables."""

SECONDS_APART = 2.0
"""Between two answers; a collective takes less."""
SECONDS_OF_AN_ANSWER = 4.0
"""With what RAS itself waits for ranks that do not answer it."""
_SECONDS_OF_RAS = 2
_MOST_BYTES = 2**26
"""4,096 ranks with 16 communicators each have 40 MB."""
_MOST_BYTES_OF_A_LINE = 4096


def address(environment: Mapping[str, str]) -> str:
    """Where RAS of a case listens: as its own variables say, or this process's."""
    return environment.get("NCCL_RAS_ADDR") or os.environ.get("NCCL_RAS_ADDR") or ADDRESS


def ask(at: str, wait: Callable[[float], object] = time.sleep) -> Stall:
    """What two answers say together.

    Raises
    ------
    ToolError
        With the reason why there is no answer.
    """
    first = _answer(at)
    wait(SECONDS_APART)
    return stall(first, _answer(at))


def _answer(at: str) -> list[Communicator]:
    host, _, port = at.rpartition(":")
    if not port.isdecimal():
        raise ToolError(f"NCCL_RAS_ADDR is '{at:.60}', not a host and a port")
    deadline = time.monotonic() + SECONDS_OF_AN_ANSWER
    try:
        with socket.create_connection((host.strip("[]"), int(port)), SECONDS_OF_AN_ANSWER) as connection:
            said = _Line(connection, deadline)
            said.expect("CLIENT PROTOCOL 2", "SERVER PROTOCOL ", "is no RAS")
            said.expect(f"TIMEOUT {_SECONDS_OF_RAS}", "OK", "takes no time limit")
            said.expect("SET FORMAT json", "OK", "gives no JSON: it is older than NCCL 2.28.7")
            return communicators(said.rest("VERBOSE STATUS"))
    except TimeoutError:
        raise ToolError(f"NCCL's RAS at {at} did not answer in {SECONDS_OF_AN_ANSWER:g} s") from None
    except (OSError, OverflowError) as error:
        raise ToolError(f"NCCL's RAS does not listen at {at}: {error}") from None


class _Line:
    """Orders and what is answered to them, until a deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def expect(self, order: str, begins: str, why_not: str) -> None:
        """One line that begins so; anything else is no answer that could be used."""
        self._connection.sendall(f"{order}\n".encode())
        line = b""
        while not line.endswith(b"\n") and len(line) < _MOST_BYTES_OF_A_LINE:
            if not (more := self._receive(1)):
                break
            line += more
        if not line.startswith(begins.encode()):
            raise ToolError(f"what listens for NCCL's RAS {why_not}")

    def rest(self, order: str) -> bytes:
        """All that comes until the other end closes."""
        self._connection.sendall(f"{order}\n".encode())
        parts, size = [], 0
        while part := self._receive(2**16):
            parts.append(part)
            size += len(part)
            if size > _MOST_BYTES:
                raise ToolError(f"NCCL's RAS says more than {_MOST_BYTES / 2**20:.0f} MiB")
        return b"".join(parts)

    def _receive(self, most: int) -> bytes:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv(most)
