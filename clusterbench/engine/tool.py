"""Runs external programs beside a case: found or skipped, ended with the worker, quoted when they fail."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from clusterbench.errors import NotHere, ToolError

LINES_QUOTED = 8
SECONDS_TO_LISTEN = 20.0
SECONDS_TO_END = 5.0
_GUARD = ["/bin/sh", "-c", 'read -r group && { read -r line; kill -9 -"$group"; }']
"""Waits until its input closes, then kills the process group it was told: what a launcher started would outlive it.

It is there before the program is, so that only a moment is left in which a program has nobody who would end it.
"""
_LISTENING = "0A"


@dataclass(frozen=True)
class Finished:
    """What a program left: standard output, standard error, and the seconds it ran.

    Two texts, because in one of them a warning may stand in the middle of a number.
    """

    text: str
    warnings: str
    elapsed_s: float


def find_tool(name: str, install: str) -> str:
    """The path of a program, by its name on PATH or by a path of its own.

    Raises
    ------
    NotHere
        With ``install``, the sentence that says how to get it.
    """
    if (path := shutil.which(name)) is None:
        what = "is no program" if "/" in name else "is not on PATH"
        raise NotHere(f"{name} {what} on {socket.gethostname()}.\nhint: {install}")
    return path


def run_tool(words: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Runs a program to its end; it is killed with this process, and what it started with it.

    Raises
    ------
    ToolError
        If it cannot be started, ends with another exit code than 0, or has not ended after ``timeout_s`` seconds;
        with its command and the last lines it printed.
    """
    start_s = time.monotonic()
    with _started(words, environment) as program:
        try:
            program.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            program.end()
            raise ToolError(program.message(f"has not ended after {timeout_s:g} s")) from None
        elapsed_s = time.monotonic() - start_s
        if program.process.returncode != 0:
            raise ToolError(program.message(_ended(program.process.returncode)))
        return Finished(_read(program.output), _read(program.warnings), elapsed_s)


@contextmanager
def serving(words: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> Iterator[Program]:
    """Runs a server while the context is open, which is entered once it listens on ``port``. It is then ended.

    The kernel's table is read to see that; connecting would be taken for the client.

    Raises
    ------
    ToolError
        If it ends before it listens, or does not listen within some seconds.
    """
    with _started(words, environment) as program:
        deadline = time.monotonic() + SECONDS_TO_LISTEN
        while not listens(port):
            if program.process.poll() is not None:
                raise ToolError(program.message(_ended(program.process.returncode)))
            if time.monotonic() > deadline:
                program.end()
                raise ToolError(program.message(f"does not listen on port {port} after {SECONDS_TO_LISTEN:g} s"))
            time.sleep(0.02)
        yield program


def listens(port: int) -> bool:
    """Whether any process of this host (of this network namespace) listens on a TCP port."""
    address_end = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="utf-8").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(address_end) and fields[3] == _LISTENING:
                return True
    return False


def free_port() -> int:
    """A TCP port on which no process listens at the moment."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


@dataclass(frozen=True)
class Program:
    """A program under way. It writes into files: a pipe would stop it when full, and outlive it in what it started."""

    words: Sequence[str]
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    warnings: IO[bytes]

    def last_line(self) -> str:
        """What it printed last, if anything."""
        return next(iter(reversed(self._lines())), "")

    def message(self, what: str) -> str:
        """An error message: how it ended (``what``), its last lines, its command."""
        lines = self._lines()
        quoted = "".join(f"\n    {line[:200]}" for line in lines[-LINES_QUOTED:])
        name = os.path.basename(self.words[0])
        ending = f"It printed at the end:{quoted}" if lines else "It printed nothing."
        return f"{name} on {socket.gethostname()} {what}. {ending}\n    command: {shlex.join(self.words)}"

    def end(self) -> None:
        """Ends it and all processes it started: a process group of their own, which may outlive it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(SECONDS_TO_END)

    def _lines(self) -> list[str]:
        lines = f"{_read(self.output)}\n{_read(self.warnings)}".splitlines()
        return [line.rstrip() for line in lines if line.strip()]


@contextmanager
def _started(words: Sequence[str], environment: Mapping[str, str] | None) -> Iterator[Program]:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as warnings, _guardian() as guardian:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=warnings,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise ToolError(f"{words[0]} cannot be started: {error.strerror}") from None
        program = Program(words, process, output, warnings)
        try:
            guardian.write(f"{process.pid}\n".encode())
            yield program
        finally:
            program.end()


@contextmanager
def _guardian() -> Iterator[IO[bytes]]:
    """The input of a process that outlives this one if this one is killed, for the process group that must not."""
    null = subprocess.DEVNULL
    with subprocess.Popen(
        _GUARD, stdin=subprocess.PIPE, stdout=null, stderr=null, bufsize=0, start_new_session=True
    ) as guardian:
        assert guardian.stdin is not None
        try:
            yield guardian.stdin
        finally:
            guardian.kill()


def _read(file: IO[bytes]) -> str:
    # The program writes through the same open file, so nothing may move its position: pread leaves it alone.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def _ended(exit_code: int) -> str:
    if exit_code < 0:
        return f"was ended by signal {-exit_code} ({signal.strsignal(-exit_code)})"
    return f"ended with exit code {exit_code}"
